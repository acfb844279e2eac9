"""The console: one page that tries the whole service from a phone or a desktop browser.

Rule: the page is whole in itself. It is put together here from the files of this folder, once at start; it loads
nothing, and its Content-Security-Policy lets it run exactly this script, wear exactly this style and talk to nobody
but the service it came from. The scripts write text nodes only: what a model, an article or a user says is never
markup (`require-trusted-types-for` makes the browser refuse it where it knows how).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
PAGE = "page.html"
STYLES = ("colors.css", "layout.css", "talk.css")
# One scope, in this order: what a file uses at once stands above it.
SCRIPTS = (
    "text.js",
    "sse.js",
    "service.js",
    "cards.js",
    "report.js",
    "photos.js",
    "turn.js",
    "talk.js",
    "composer.js",
    "retrieval.js",
    "verify.js",
    "start.js",
)
STYLE_PLACE = "/*style*/"
SCRIPT_PLACE = "/*script*/"


@dataclass(frozen=True, slots=True)
class Page:
    """`headers` go with every answer that holds `body`, which is UTF-8 HTML."""

    body: bytes
    headers: Mapping[str, str]


def load_page(directory: Path = DIRECTORY) -> Page:
    """Put the page together. Raises OSError for a missing file, ValueError for one that would break out of its place."""
    style = _join(directory, STYLES)
    script = _join(directory, SCRIPTS)
    html = _read(directory, PAGE)
    for place, text in ((STYLE_PLACE, style), (SCRIPT_PLACE, script)):
        if html.count(place) != 1:
            raise ValueError(f"{PAGE} must hold {place} once")
        html = html.replace(place, text)
    return Page(html.encode(), {"Content-Security-Policy": _policy(style, script), **_HEADERS})


_HEADERS = {
    # Asked anew each time, as it must fit the service that runs, yet kept for the way back from another page.
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def _policy(style: str, script: str) -> str:
    """https://www.w3.org/TR/CSP3/ – the hashes are of the text between the tags."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src blob: data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _join(directory: Path, names: tuple[str, ...]) -> str:
    return "\n".join(_read(directory, name) for name in names)


def _read(directory: Path, name: str) -> str:
    """The text of one file. A script that says `</script` would end its element, `<!--` hide the end of it."""
    text = (directory / name).read_text("utf-8")  # with LF alone, as a browser hashes it
    if name != PAGE and ("</" in text or "<!--" in text):
        raise ValueError(f"{name} holds the beginning of a tag")
    return text

"""The page of the vision evaluation in a headless Chromium, opened from the disk as a site opens it."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from cg_rag.core.photo_labels import PhotoLabel
from cg_rag.core.photo_verdict import Rules
from cg_rag.modes.vision_measure import Run, Terms, judge_record
from cg_rag.modes.vision_page import picture_urls, render_page
from cg_rag.modes.vision_rules import load_vision_taxonomy
from tests.browser import Page, chromium, find_chromium
from tests.evaluating import agentic_body, free_form
from tests.pictures import chunk

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed"),
]
HOSTILE = (
    "</pre></details><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
    "<svg onload=window.pwned=3><a href='javascript:window.pwned=4'>x</a><style>*{display:none}</style>\u202e反"
)
LEVELS = ("一般隐患", "无隐患", "一般隐患")


def true_png(shade: int) -> bytes:
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 3, 8, 0, 0, 0, 0))
    pixels = (b"\0" + bytes([shade] * 4)) * 3
    return head + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def write_page(folder: Path, embed_bytes: int) -> Path:
    """Three photos, one 是, one 否, one that was not asked; every text that can be hostile is."""
    terms = Terms(load_vision_taxonomy(), {}, Rules(), "level")
    labels = [
        PhotoLabel(f"{n} <b>#?%.png", n, level, hazards=((HOSTILE,),)) for n, level in enumerate(LEVELS)
    ]
    photos = {label.photo: folder / label.photo for label in labels}
    for number, path in enumerate(photos.values()):
        path.write_bytes(true_png(40 * number))
    documents = [{"law_name": HOSTILE, "article_number": HOSTILE, "contents": ""}]
    payload: dict[str, Any] = agentic_body(
        free_form("一般隐患", "施工用电") + f"{HOSTILE}[cite^1]", documents
    )
    judged = {label.photo: judge_record(label, {"payload": payload}, terms) for label in labels[:2]}
    run = Run(HOSTILE, {"model": HOSTILE, "question": HOSTILE}, judged)
    page = folder / "out" / "report.html"
    page.parent.mkdir()
    urls = picture_urls(photos, page, embed_bytes)
    page.write_bytes(render_page([run, run], labels, urls, terms, HOSTILE))
    return page


def shown(page: Page) -> int:
    count: int = page.run(
        "[...document.querySelectorAll('.photo')].filter(each => getComputedStyle(each).display != 'none').length"
    )
    return count


@pytest.mark.parametrize("embed_bytes", [0, 1 << 20])
def test_hostile_answers_are_text_photos_are_seen_and_choices_choose(
    tmp_path: Path, embed_bytes: int
) -> None:
    path = write_page(tmp_path, embed_bytes)
    with chromium() as browser, browser.page(path.as_uri()) as page:
        page.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
        page.run("[...document.images].forEach(each => { each.loading = 'eager' })")
        page.until("[...document.images].every(each => each.complete && each.naturalWidth == 4)")
        assert page.run("document.images.length") == 3
        assert page.run("document.scripts.length + document.querySelectorAll('svg, a, b > b').length") == 0
        assert page.run("typeof window.pwned") == "undefined"
        assert "window.pwned = 1" in page.text("pre")
        assert "\u202e" not in page.text("body")
        assert page.faults == []
        assert all(url.startswith("file:") for url in page.requested)
        assert len(page.requested) == (1 if embed_bytes else 4)
        assert shown(page) == 3
        page.click("#only-no")
        assert shown(page) == 1

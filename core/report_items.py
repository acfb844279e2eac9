"""Takes the points out of a section, however they are numbered. No I/O, never raises.

Rule: an item is one line without number, Markdown and citation of a form of its own, so that what is written as
`1. item` is read back as the same items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

_CHINESE: Final = "[一二三四五六七八九十]{1,3}"
# How an item may begin, the outer ways first: what is numbered in another way below it belongs to it.
_MARKERS: Final[tuple[tuple[str, str], ...]] = (
    ("chinese", rf"(?:{_CHINESE}[、.．]|第{_CHINESE}[、，,：:]|[（(]{_CHINESE}[)）])"),
    ("decimal", r"\d{1,2}(?:[、)）]|[.．:：](?!\d))"),
    ("bracket", r"(?:[（(【\[]\d{1,2}[)）】\]]|[①-⑳]|[⑴-⒇])[、.．]?"),
    ("letter", r"[a-zA-Z][)）]"),
    ("bullet", r"(?:[-*+•·●▪◆■○–—➢✓✔](?=[\s\u3400-\u9fff*（《“【])|[-*+•·●▪◆■○–—➢✓✔]{1,3}\s)"),
)
_MARKER: Final = re.compile(
    r"(?P<indent>[\s>#]*)(?:\*\*|__)?(?:"
    + "|".join(f"(?P<{name}>{form})" for name, form in _MARKERS)
    + r")\s*"
)
_TAGS: Final = re.compile(
    r"</?(?:b|strong|em|i|u|p|span|font|li|ul|ol|div)\b[^<>\n]{0,80}>|<br ?/?>", re.IGNORECASE
)
_STRONG: Final = re.compile(r"\*\*+|__+|~~+|`+")
_BLANKS: Final = re.compile(r"\s+")
_ENDS: Final = "：:，,；;。.、!！?？（(“《—"
# 1. A。2. B。 on one line: the number that is due, behind the end of a sentence or a blank.
_INLINE: Final = r"(?<=[。；;！!\s）)”》])[（(]?{number}(?:[.．、)）](?!\d))\s*"
# An item that says that there is none.
EMPTY: Final = frozenset(
    (
        "",
        "无",
        "暂无",
        "无。",
        "无内容",
        "/",
        "-",
        "n/a",
        "N/A",
        "None",
        "none",
        "无需",
        "不适用",
        "略",
        "...",
        "…",
    )
)


def split_items(lines: Sequence[str], defuse: Callable[[str], str]) -> tuple[str, ...]:
    """The items of the lines below a head. `defuse` takes out of an item what would be read as a head."""
    items: list[list[str]] = []
    base: tuple[str, int] | None = None
    for line in lines:
        if not line.strip():
            continue
        kind, indent, rest = _read_marker(line)
        if kind and (base is None or _is_item(base, (kind, indent))):
            base = base or (kind, indent)
            items.append([rest])
        elif items:
            items[-1].append(_without_bullet(line) if kind else line.strip())
        else:
            items.append([line])
    joined = [_join(parts) for parts in items]
    return _finish(joined, defuse)


def _read_marker(line: str) -> tuple[str, int, str]:
    match = _MARKER.match(line)
    if match is None:
        return "", 0, line
    kind = next(name for name, _ in _MARKERS if match[name])
    return kind, len(match["indent"].expandtabs(4)), line[match.end() :]


def _is_item(base: tuple[str, int], found: tuple[str, int]) -> bool:
    """Whether a marker begins an item beside those of `base`, not a part of one."""
    order = [name for name, _ in _MARKERS]
    if found[1] > base[1] + 1:
        return False
    return order.index(found[0]) <= order.index(base[0])


def _without_bullet(line: str) -> str:
    match = _MARKER.match(line)
    return line[match.end() :] if match and match["bullet"] else line.strip()


def _join(parts: Sequence[str]) -> str:
    text = ""
    for part in (_clean(part) for part in parts):
        if text and part:
            text += part if text[-1] in _ENDS else f"；{part}"
        else:
            text += part
    return text


def _clean(text: str) -> str:
    """Without Markdown, tags, a second number and doubled blanks; to the point where nothing changes."""
    for _ in range(len(text) + 1):
        done = _TAGS.sub(" ", text)
        done = _BLANKS.sub(" ", _STRONG.sub("", done)).strip(" #>|")
        match = _MARKER.match(done)
        done = done[match.end() :] if match else done
        if done == text:
            break
        text = done
    return text


def _finish(texts: Sequence[str], defuse: Callable[[str], str]) -> tuple[str, ...]:
    items: list[str] = []
    queue = list(reversed(texts))
    while queue:
        text = _settle(queue.pop(), defuse)
        if text in EMPTY:
            continue
        cut = re.search(_INLINE.format(number=len(items) + 2), text)
        if cut and cut.start() and text[: cut.start()].strip():
            queue.append(text[cut.end() :])
            text = _settle(text[: cut.start()], defuse)
            if text in EMPTY:
                continue
        items.append(text)
    return tuple(items)


def _settle(text: str, defuse: Callable[[str], str]) -> str:
    """Cleaned and without heads, to the point where nothing changes. Both only take away."""
    while True:
        done = _clean(defuse(_clean(text)))
        if done == text:
            return done
        text = done

"""What a record must be to become an article: the rules that JSON, JSONL, CSV and documents share.

Rule: text is kept as the source writes it but for white space at its ends and characters that nobody can see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cg_rag.index.corpus import Article

# The longest article of national law, a tax table glued to its last article, has 11,184 characters; what is
# longer than this is a whole text that was not cut into articles, and would be of no use as a citation.
MAX_CONTENTS_CHARS = 20_000
MAX_LAW_NAME_CHARS = 300
MAX_ARTICLE_NUMBER_CHARS = 100

# The service adds these to an article that it returns.
RESERVED_FIELDS = frozenset({"score", "debug"})

# The limit of the service's JSON: what is stored here is sent out again.
MAX_DEPTH = 32
_MAX_SHOWN = 40  # characters of a wrong value

_INVISIBLE = re.compile("[\u200b-\u200d\u2060\ufeff]")
_TAG = re.compile(r"[\w.-]{1,64}")
_TAG_SEPARATORS = re.compile(r"[,，;；、\s]+")


class RecordInvalid(ValueError):
    """The reason in Chinese; the importer adds the place."""


def parse_record(record: Mapping[str, Any], bounded: bool = True) -> Article:
    """An article from a record's fields; fields without a meaning of their own go to `extra`.

    Unless `bounded`, contents may be of any length: what is too long is cut later. Raises RecordInvalid.
    """
    fields = dict(record)
    law_name = _one_line(_required_text(fields.pop("law_name", None), "law_name"))
    contents = clean_text(_required_text(fields.pop("contents", None), "contents"))
    number = _parse_number(fields.pop("article_number", None))
    tags = parse_tags(fields.pop("tags", None))
    check_length("law_name", law_name, MAX_LAW_NAME_CHARS)
    if bounded:
        check_length("contents", contents, MAX_CONTENTS_CHARS)
    check_length("article_number", number, MAX_ARTICLE_NUMBER_CHARS)
    extra = {
        key: value
        for key, value in fields.items()
        if value is not None and value != "" and key not in RESERVED_FIELDS
    }
    check_value(extra)
    return Article(law_name, number, contents, extra, tags)


def clean_text(text: str) -> str:
    """Line ends become LF, invisible characters and the white space at both ends go. Raises RecordInvalid."""
    check_value(text)
    return _INVISIBLE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").strip()


def parse_tags(value: Any) -> tuple[str, ...]:
    """Sorted tags from a list of words, or from one text with commas between them. Raises RecordInvalid."""
    if value is None:
        return ()
    words = _TAG_SEPARATORS.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RecordInvalid("tags 须为字符串列表")
    tags = sorted({word for word in words if word})
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise RecordInvalid(f"标签 {tag[:64]!r} 只能由 1–64 个文字、数字、_ . - 组成")
    return tuple(tags)


def check_value(value: Any, depth: int = 1) -> None:
    """Raises RecordInvalid for text that is not Unicode (lone surrogates) and for nesting below MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise RecordInvalid(f"字段嵌套超过 {MAX_DEPTH} 层")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise RecordInvalid("文本含有孤立的代理字符，不是有效的 Unicode")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_value(key, depth + 1)
            check_value(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            check_value(item, depth + 1)


def _kind_of(value: Any) -> str:
    """A JSON value for a message: a scalar as it stands in the file, anything longer by its kind."""
    if isinstance(value, bool):
        return f" {str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"数字 {str(value)[:_MAX_SHOWN]}"
    return "数组" if isinstance(value, list) else "对象"


def _required_text(value: Any, field: str) -> str:
    if value is None:
        raise RecordInvalid(f"缺少 {field}")
    if not isinstance(value, str):
        raise RecordInvalid(f"{field} 须为字符串，收到{_kind_of(value)}")
    if not clean_text(value):
        raise RecordInvalid(f"{field} 为空")
    return value


def _parse_number(value: Any) -> str:
    if value is None:
        return ""
    # A whole number is unambiguous; 3.10 as a JSON number has already lost its zero.
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise RecordInvalid(f"article_number 须为字符串，收到{_kind_of(value)}")
    return _one_line(value)


def _one_line(text: str) -> str:
    return " ".join(clean_text(text).split())


def check_length(field: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise RecordInvalid(f"{field} 有 {len(text)} 字，超过上限 {limit} 字")

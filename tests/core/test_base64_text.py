from __future__ import annotations

import base64
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.base64_text import Base64Checker, Base64Invalid, Base64Reader, Base64Text


def cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def check(*pieces: bytes) -> Base64Text:
    checker = Base64Checker()
    for piece in pieces:
        checker.feed(piece)
    return checker.finish()


def with_breaks(text: bytes, places: list[int], line_break: bytes) -> bytes:
    for place in sorted((place % (len(text) + 1) for place in places), reverse=True):
        text = text[:place] + line_break + text[place:]
    return text


CUTS = st.lists(st.integers(0, 10_000), max_size=6)


@given(st.binary(min_size=1, max_size=400), CUTS, CUTS, st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_bytes_are_measured_and_kept_without_their_line_breaks_however_they_are_cut(
    data: bytes, cuts: list[int], breaks: list[int], line_break: bytes
) -> None:
    text = base64.b64encode(data)
    found = check(*cut(with_breaks(text, breaks, line_break), cuts))
    assert b"".join(found.parts) == text
    assert found.num_bytes == len(data)


@given(st.binary(min_size=1, max_size=300), CUTS, st.integers(-1, 400), st.integers(0, 400))
def test_any_place_can_be_read_as_if_all_were_decoded(
    data: bytes, cuts: list[int], start: int, size: int
) -> None:
    reader = Base64Reader(check(*cut(base64.b64encode(data), cuts)))
    start = max(0, start)
    assert reader.read(start, size) == data[start : start + size]


@given(st.text("Aa9+/=\n\r-_ .%\0", max_size=24).map(str.encode), CUTS)
def test_it_takes_exactly_what_a_strict_decoder_takes(text: bytes, cuts: list[int]) -> None:
    plain = text.replace(b"\n", b"").replace(b"\r", b"")
    try:
        expected: int | None = len(base64.b64decode(plain, validate=True)) or None
        # The library forgives what stands behind complete padding.
        expected = None if b"=" in plain.rstrip(b"=") or len(plain) % 4 else expected
    except ValueError:
        expected = None
    try:
        found: int | None = check(*cut(text, cuts)).num_bytes
    except Base64Invalid:
        found = None
    assert found == expected


def test_a_piece_without_line_breaks_is_kept_as_the_object_it_is() -> None:
    pieces = [b"QUJD" * 1000, b"REVG" * 1000, b"Zw=="]
    found = check(*pieces)
    assert [id(part) for part in found.parts] == [id(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "没有内容"),
        (b"\r\n\n", "没有内容"),
        (b"A", "共 1 个字符"),
        (b"QUJDRA", "共 6 个字符"),
        (b"QUJDRA=", "共 7 个字符"),
        (b"QQ==QQ==", "填充符"),
        (b"QQ=Q", "填充符"),
        (b"Q===", "不完整或填充符"),
        (b"====", "不完整或填充符"),
        (b"QUJD====", "不完整或填充符"),
        (b"QUJ DRA=", "第 4 个字符 0x20 不在字母表内"),
        (b"QUJD,QUJD", "第 5 个字符 , 不在字母表内"),
        (b"QUJD\0UJD", "第 5 个字符 0x00 不在字母表内"),
        (b"QUJD\xe5\x9b\xbe", "第 5 个字符 0xE5 不在字母表内"),
        (b"QUJ-", "URL 变体"),
        (b"QUJ_", "URL 变体"),
        (b"QUJD%3D", "第 5 个字符 % 不在字母表内"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: bytes, words: str) -> None:
    with pytest.raises(Base64Invalid, match=words):
        check(text)


def test_a_fault_in_a_later_piece_is_placed_in_the_whole_text() -> None:
    with pytest.raises(Base64Invalid, match="第 8001 个字符"):
        check(b"QUJD" * 2000, b"!")

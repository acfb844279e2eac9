from __future__ import annotations

import base64
import gzip
import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.image_headers import Header, HeaderUnusable, read_header
from tests import pictures
from tests.pictures import jpeg, png, segment, tiff_orientation, webp


@dataclass
class Bytes:
    """A source in memory that counts how often it is asked."""

    data: bytes
    num_reads: int = 0

    def read(self, start: int, size: int) -> bytes:
        assert start >= 0
        self.num_reads += 1
        return self.data[start : start + size] if size > 0 else b""


def read(data: bytes) -> Header:
    return read_header(Bytes(data))


def refusal(data: bytes) -> HeaderUnusable:
    with pytest.raises(HeaderUnusable) as caught:
        read(data)
    return caught.value


SIDES = st.integers(1, 16383)


@given(SIDES, SIDES, st.integers(1, 8), st.sampled_from("<>"), st.sampled_from([3, 4]))
def test_size_and_orientation_come_from_the_header_of_each_format(
    width: int, height: int, orientation: int, order: str, kind: int
) -> None:
    exif = tiff_orientation(orientation, order, kind)
    assert read(jpeg(width, height, exif=exif)) == Header("image/jpeg", width, height, orientation)
    assert read(png(width, height, exif=exif)) == Header("image/png", width, height, orientation)
    for body in (exif, b"Exif\0\0" + exif):
        found = read(webp(width, height, kind=b"VP8X", exif=body))
        assert found == Header("image/webp", width, height, orientation)
    assert read(webp(width, height)) == Header("image/webp", width, height, 1)
    assert read(webp(width, height, kind=b"VP8L")) == Header("image/webp", width, height, 1)


@given(
    st.one_of(
        st.binary(max_size=80), st.builds(lambda a, b: a + b, st.just(tiff_orientation(6)[:20]), st.binary())
    )
)
def test_whatever_stands_in_exif_the_picture_is_read(exif: bytes) -> None:
    for picture in (jpeg(exif=exif), png(exif=exif), webp(kind=b"VP8X", exif=exif)):
        found = read(picture)
        assert (found.width, found.height) == (640, 480)
        assert 1 <= found.orientation <= 8


PICTURES = [
    jpeg(exif=tiff_orientation(6)),
    png(exif=tiff_orientation(6)),
    *(webp(kind=kind, exif=tiff_orientation(6)) for kind in (b"VP8 ", b"VP8L", b"VP8X")),
]


@given(st.sampled_from(PICTURES), st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=8))
def test_any_damage_gives_a_header_or_a_refusal_and_costs_a_bounded_number_of_reads(
    picture: bytes, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(picture)
    for place, byte in damage:
        data[place % len(data)] = byte
    source = Bytes(bytes(data))
    try:
        found = read_header(source)
    except HeaderUnusable as error:
        assert str(error)
        assert error.remedy
    else:
        assert found.width > 0
        assert found.height > 0
    assert source.num_reads < 2000


@given(st.sampled_from(PICTURES), st.integers(0, 200))
def test_any_beginning_of_a_picture_gives_a_header_or_a_refusal(picture: bytes, length: int) -> None:
    try:
        assert read(picture[:length]).width == 640
    except HeaderUnusable as error:
        assert str(error)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_told_what_to_do(data: bytes) -> None:
    try:
        read(data)
    except HeaderUnusable as error:
        assert str(error)
        assert error.remedy.endswith("。")


def ftyp(brand: bytes) -> bytes:
    return struct.pack(">I", 24) + b"ftyp" + brand + bytes(4) + brand + b"mif1" + bytes(40)


REFUSED = [
    (ftyp(b"heic"), "HEIC", "iPhone"),
    (ftyp(b"heix"), "HEIC", "转换为 JPEG"),
    (ftyp(b"mif1"), "HEIC", "转换为 JPEG"),
    (ftyp(b"msf1"), "HEIC", "转换为 JPEG"),
    (ftyp(b"hevc"), "HEIC", "转换为 JPEG"),
    (ftyp(b"avif"), "AVIF", "转换为 JPEG"),
    (ftyp(b"crx "), "RAW", "转换为 JPEG"),
    (ftyp(b"isom"), "视频", "截取画面"),
    (ftyp(b"qt  "), "视频", "截取画面"),
    (b"GIF89a\x01\0\x01\0\0\0\0;", "GIF", "转换为 JPEG"),
    (b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0", "BMP", "转换为 JPEG"),
    (b"II*\0\x08\0\0\0", "TIFF", "转换为 JPEG"),
    (b"MM\0*\0\0\0\x08", "TIFF", "转换为 JPEG"),
    (b"%PDF-1.7\n%\xe2\xe3", "PDF", "其中的图片"),
    (b"PK\x03\x04" + bytes(26), "ZIP", "其中的图片"),
    (gzip.compress(b"x"), "gzip", "其中的图片"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL", "转换为 JPEG"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG", "转换为 JPEG"),
    (b"<?xml version='1.0'?>\n<!-- x -->\n<svg/>", "SVG", "转换为 JPEG"),
    (b"<!DOCTYPE html><html><svg/></html>", "网页", "图片文件本身"),
    (b"\n <html><body>404</body></html>", "网页", "图片文件本身"),
    ("图片\n".encode() * 400, "文本", "图片文件本身"),
    (b"BMW is text", "文本", "图片文件本身"),
    (b'{"data": "x"}', "文本", "图片文件本身"),
    (base64.b64encode(jpeg()), "两次", "只编码一次"),
    (b"data:image/png;base64,iVBORw0KGgo=", "两次", "只编码一次"),
    (bytes(64), "不是可识别的图片", "只接受"),
    (b"\x01\x02", "不是可识别的图片", "只接受"),
    (b"\xff\xd8", "JPEG 图片，但文件头", "重新导出"),
    (b"\xff\xd8\xff", "JPEG 图片，但文件头", "重新导出"),
    (b"\xff\xd8\xff\xd9", "JPEG 图片，但文件头", "重新导出"),
    (b"\x89PNG\r\n\x1a\n", "PNG 图片，但文件头", "重新导出"),
    (b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIHDR" + bytes(20), "PNG 图片，但文件头", "重新导出"),
    (b"RIFF\x04\0\0\0WEBP", "WebP 图片，但文件头", "重新导出"),
    (b"RIFF\x04\0\0\0WAVEfmt ", "不是可识别的图片", "只接受"),
    (png(0, 5), "宽 0、高 5", "重新导出"),
    (jpeg(5, 0), "宽 5、高 0", "重新导出"),
]


@pytest.mark.parametrize(("data", "found", "remedy"), REFUSED, ids=range(len(REFUSED)))
def test_what_was_found_is_named_and_what_to_do_is_said(data: bytes, found: str, remedy: str) -> None:
    error = refusal(data)
    assert found in str(error)
    assert remedy in error.remedy


def test_what_real_jpegs_carry_before_their_frame_is_passed_over() -> None:
    before = b"".join(
        (
            segment(0xE2, b"ICC_PROFILE\0\x01\x01" + pictures.GARBAGE * 200),
            b"\xff\xff\xff" + segment(0xED, b"Photoshop 3.0\0")[1:],  # fill bytes
            b"\xff\x01",  # a marker without a length
            b"rubbish",
            segment(0xDB, bytes(65)),
            segment(0xC4, bytes(20)),  # tables, not a frame
            b"".join(segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + bytes(900)) for _ in range(200)),
        )
    )
    assert read(jpeg(4000, 3000, before=before)) == Header("image/jpeg", 4000, 3000, 1)


def test_progressive_frames_count_and_the_first_usable_exif_too() -> None:
    data = jpeg(before=segment(0xE1, b"Exif\0\0odd") + segment(0xE1, b"Exif\0\0" + tiff_orientation(8)))
    assert read(data.replace(b"\xff\xc0", b"\xff\xc2", 1)).orientation == 8


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_none(value: int) -> None:
    assert read(jpeg(exif=tiff_orientation(value))).orientation == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff\xfe\0\x02" * 100_000,
        b"\x89PNG\r\n\x1a\n" + png()[8:33] + pictures.chunk(b"tEXt", b"") * 100_000,
        webp(kind=b"VP8X", exif=b"")[:30] + pictures.riff(b"ANMF", b"") * 100_000,
        b"\xff\xd8" + b"\xff" * 1_000_000,
    ],
    ids=["segments", "chunks", "frames", "fill"],
)
def test_a_file_of_countless_small_parts_is_looked_at_within_bounds(data: bytes) -> None:
    source = Bytes(data)
    try:
        read_header(source)
    except HeaderUnusable as error:
        assert "文件头" in str(error)
    assert source.num_reads < 1200

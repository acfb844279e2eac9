"""Lines of a text file, plain or gzip, in a known encoding and of bounded length.

Rule: an encoding is proven over the whole file before the first line is used. A guess that reads well for a
page and then turns into other characters would put wrong law into the index.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from cg_rag.index.errors import SourceInvalid

MAX_LINE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16

_FOREIGN_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}

# Chinese text of today is almost wholly inside GB2312; Big5 or Shift-JIS bytes read as GB18030 are not.
_MIN_GB2312_SHARE = 0.9


@contextmanager
def open_source(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked when its name ends in .gz. Raises SourceInvalid for a broken archive."""
    try:
        with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SourceInvalid(str(path), "gzip 文件损坏或不完整") from error


def detect_encoding(path: Path) -> str:
    """`utf-8-sig`, `utf-8` or `gb18030`, proven over the whole file. Raises SourceInvalid."""
    with open_source(path) as file:
        head = file.read(4)
    for mark, name in _FOREIGN_MARKS.items():
        if head.startswith(mark):
            raise SourceInvalid(str(path), f"文件是 {name} 编码，请另存为 UTF-8 或 GB18030")
    encoding = "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8"
    failure = _find_decoding_error(path, encoding)
    if failure is None:
        return encoding
    # A mark is a statement: a file that says UTF-8 and is not is damaged, and no other reading of it is
    # right.
    if encoding == "utf-8" and _find_decoding_error(path, "gb18030") is None and _reads_as_chinese(path):
        return "gb18030"
    raise SourceInvalid(
        str(path), f"编码无法识别：既不是 UTF-8（第 {failure} 字节起有误）也不是 GB18030 中文"
    )


def read_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """(line number from 1, bytes with the line end); None in place of a line longer than MAX_LINE_BYTES.

    Lines end at LF alone, in both encodings: no byte of a GB18030 character is 0x0A, and U+2028 is text.
    """
    with open_source(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) <= MAX_LINE_BYTES or line.endswith(b"\n"):
                yield number, line
                continue
            _skip_line(file)
            yield number, None


def _skip_line(file: BinaryIO) -> None:
    while (rest := file.readline(_BLOCK_BYTES)) and not rest.endswith(b"\n"):
        pass


def _find_decoding_error(path: Path, encoding: str) -> int | None:
    """The offset in bytes (roughly, within one block) where decoding fails, None when it does not."""
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    offset = 0
    with open_source(path) as file:
        try:
            while block := file.read(_BLOCK_BYTES):
                decoder.decode(block)
                offset += len(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            return offset + error.start
    return None


def _reads_as_chinese(path: Path) -> bool:
    with open_source(path) as file:
        sample = codecs.getincrementaldecoder("gb18030")("strict").decode(file.read(_BLOCK_BYTES))
    wide = [char for char in sample if not char.isascii()]
    common = sum(1 for char in wide if _in_gb2312(char))
    return common >= _MIN_GB2312_SHARE * len(wide)


def _in_gb2312(char: str) -> bool:
    try:
        char.encode("gb2312")
    except UnicodeEncodeError:
        return False
    return True

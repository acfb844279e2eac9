"""Lines of a text file, plain or gzip, in a known encoding and of bounded length.

Rule: an encoding is proven over the whole file before the first line is used. A guess that reads well for a
page and then turns into other characters would put wrong law into the index.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.archive import bomb_words, max_unpacked
from cg_rag.index.importers.input_file import InputFile

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


class _Unpacked(io.RawIOBase):
    """A gzip file that says no when it grows beyond what a file of its size may become."""

    def __init__(self, file: gzip.GzipFile, source: InputFile) -> None:
        self._file, self._source = file, source
        self._packed = os.stat(source.path).st_size
        self._num_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._num_read += count
        if self._num_read > max_unpacked(self._packed):
            raise SourceInvalid(self._source.place, bomb_words(self._packed, self._num_read))
        return count


@contextmanager
def open_source(source: InputFile) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked when its name ends in .gz.

    Raises SourceInvalid for what is no file, for a broken archive, and while reading for one that unpacks to too much.
    """
    # A source is read more than once, and a pipe (`<(…)`, a FIFO) gives its bytes once: the second reading found
    # nothing, or waited for ever.
    mode = source.path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SourceInvalid(source.place, "是管道或设备，不是文件，请先存成文件")
    try:
        if source.name.lower().endswith(".gz"):
            with gzip.open(source.path, "rb") as packed:
                yield cast(BinaryIO, io.BufferedReader(_Unpacked(packed, source), _BLOCK_BYTES))
        else:
            with source.path.open("rb") as file:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SourceInvalid(source.place, "gzip 文件损坏或不完整") from error


def detect_encoding(source: InputFile, wide: bool = False) -> str:
    """`utf-8-sig`, `utf-8`, `gb18030`, and with `wide` also `utf-16` (by its mark alone), proven over the whole file.

    Raises SourceInvalid.
    """
    with open_source(source) as file:
        head = file.read(4)
    for mark, name in _FOREIGN_MARKS.items():
        if not head.startswith(mark):
            continue
        if name == "UTF-16" and wide and _find_decoding_error(source, "utf-16") is None:
            return "utf-16"
        broken = "，且已损坏" if name == "UTF-16" and wide else ""
        raise SourceInvalid(source.place, f"文件是 {name} 编码{broken}，请另存为 UTF-8 或 GB18030")
    encoding = "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8"
    failure = _find_decoding_error(source, encoding)
    if failure is None:
        return encoding
    # A mark is a statement: a file that says UTF-8 and is not is damaged, and no other reading of it is
    # right.
    if encoding == "utf-8" and _find_decoding_error(source, "gb18030") is None and _reads_as_chinese(source):
        return "gb18030"
    raise SourceInvalid(
        source.place, f"编码无法识别：既不是 UTF-8（第 {failure} 字节起有误）也不是 GB18030 中文"
    )


def read_lines(source: InputFile) -> Iterator[tuple[int, bytes | None]]:
    """(line number from 1, bytes with the line end); None in place of a line longer than MAX_LINE_BYTES.

    Lines end at LF alone, in both encodings: no byte of a GB18030 character is 0x0A, and U+2028 is text.
    """
    with open_source(source) as file:
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


def _find_decoding_error(source: InputFile, encoding: str) -> int | None:
    """The offset in bytes (roughly, within one block) where decoding fails, None when it does not."""
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    offset = 0
    with open_source(source) as file:
        try:
            while block := file.read(_BLOCK_BYTES):
                decoder.decode(block)
                offset += len(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            return offset + error.start
    return None


def _reads_as_chinese(source: InputFile) -> bool:
    with open_source(source) as file:
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


def read_text(source: InputFile, max_bytes: int, wide: bool = False) -> str:
    """The whole text of a file, without its mark. Raises SourceInvalid for what is too long or of no known encoding."""
    with open_source(source) as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise SourceInvalid(source.place, f"文件超过上限 {max_bytes >> 20} MiB，请分成几个文件")
    return raw.decode(detect_encoding(source, wide))

"""Zip archives: their members, one at a time, as files on the disk; and what a zip may not do to us.

Rule: a member's name is only shown, never used as a path, and no size that an archive states is believed: what is
unpacked is counted. So a hostile archive costs bounded time and disk, and is refused with a reason.
"""

from __future__ import annotations

import lzma
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.input_file import ImportLog, InputFile

MAX_DEPTH = 3  # an archive in an archive in an archive
MAX_MEMBERS = 20_000
MAX_MEMBER_BYTES = 256 << 20
MAX_TOTAL_BYTES = 2 << 30
# Texts of laws shrink to a tenth, tables of zeros to a hundredth; deflate ends at 1/1032.
MAX_RATIO = 200
_FREE_BYTES = 8 << 20  # below this size nobody asks for the ratio
_BLOCK_BYTES = 1 << 16

# What the standard library raises for broken, encrypted and unknown archives.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def unpack(file: InputFile, log: ImportLog) -> Iterator[InputFile]:
    """The members in order of their names, each there until the next is asked for.

    Hidden ones are left out as they are in folders; what cannot be unpacked is told to `log`. Raises SourceInvalid.
    """
    with open_zip(file) as archive, tempfile.TemporaryDirectory(prefix="cg-rag-") as folder:
        named = ((member_name(info), info) for info in archive.infolist() if not info.is_dir())
        # Two members may have one name: each is read, in the order of the archive.
        members = sorted(named, key=lambda member: member[0])
        if len(members) > MAX_MEMBERS:
            raise SourceInvalid(file.place, f"压缩包有 {len(members)} 个文件，超过上限 {MAX_MEMBERS} 个")
        room = MAX_TOTAL_BYTES
        for name, info in members:
            if _is_hidden(name):
                continue
            place = f"{file.place}/{name}"
            if fault := _find_fault(name, info):
                log.skip(place, fault)
                continue
            path = Path(folder, "member")
            try:
                room -= _extract(archive, info, path, min(room, MAX_MEMBER_BYTES))
            except (SourceInvalid, *ZIP_ERRORS) as error:
                log.reject(place, error.reason if isinstance(error, SourceInvalid) else f"无法解压：{error}")
                continue
            yield replace(file, path=path, place=place)


@contextmanager
def open_zip(file: InputFile) -> Iterator[zipfile.ZipFile]:
    """Raises SourceInvalid for what is no zip file."""
    try:
        archive = zipfile.ZipFile(file.path)
    except (*ZIP_ERRORS, UnicodeDecodeError) as error:
        raise SourceInvalid(file.place, f"zip 文件损坏或不完整：{error}") from error
    with archive:
        yield archive


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: str, max_bytes: int) -> bytes:
    """The bytes of a member. Raises SourceInvalid for a bomb, and ZIP_ERRORS."""
    _check_ratio(info, place)
    with archive.open(info) as source:
        raw = source.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise SourceInvalid(place, f"{info.filename} 解压后超过上限 {max_bytes} 字节")
    return raw


def member_name(info: zipfile.ZipInfo) -> str:
    """The name in Chinese: without the mark for UTF-8 it is in the system's own code page, GBK in China."""
    if info.flag_bits & 0x800 or info.filename.isascii():
        return info.filename
    try:
        raw = info.filename.encode("cp437")
    except UnicodeEncodeError:
        return info.filename
    for encoding in ("utf-8", "gb18030"):
        try:
            return raw.decode(encoding).replace("\\", "/")
        except UnicodeDecodeError:
            continue
    return info.filename


def _is_hidden(name: str) -> bool:
    # ~$ is the lock that Word leaves beside an open document, __MACOSX what macOS adds to every archive.
    return any(
        part.startswith((".", "~$", "__MACOSX")) and part != ".." for part in PurePosixPath(name).parts
    )


def _find_fault(name: str, info: zipfile.ZipInfo) -> str | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or name[1:2] == ":":
        return "压缩包内的路径指向包外，未读取"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "压缩包内的符号链接，未读取"
    if info.flag_bits & 1:
        return "已加密，请先解密再导入"
    return None


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, max_bytes: int) -> int:
    _check_ratio(info, info.filename)
    size = 0
    with archive.open(info) as source, path.open("wb") as target:
        while block := source.read(_BLOCK_BYTES):
            size += len(block)
            if size > max_bytes:
                raise SourceInvalid(info.filename, f"解压后超过上限 {max_bytes} 字节，未读取")
            target.write(block)
    return size


def max_unpacked(packed_bytes: int) -> int:
    """How many bytes so many packed ones may become."""
    return min(MAX_TOTAL_BYTES, max(_FREE_BYTES, MAX_RATIO * packed_bytes))


def bomb_words(packed_bytes: int, bytes_found: int) -> str:
    return f"{packed_bytes} 字节解压为 {bytes_found} 字节，超过 {MAX_RATIO} 倍，疑似压缩炸弹"


def _check_ratio(info: zipfile.ZipInfo, place: str) -> None:
    if info.file_size > max_unpacked(info.compress_size):
        raise SourceInvalid(place, bomb_words(info.compress_size, info.file_size))

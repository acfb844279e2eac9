"""An index as one file, carried to another machine; and the way back to the index before.

Rule: an archive is one generation, its manifest first, so every later byte is told what it must be. Nothing of it gets
a name that readers know before all of it is on the disk and its digests are right; then the pointer moves, as after a
build. A service that runs meanwhile answers from the old index until it has verified the new one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cg_rag.index.durable import build_lock, discard, disk_errors, replace_file, temporary_path, write_file
from cg_rag.index.embedder import Embedder
from cg_rag.index.errors import IndexDamaged, IndexMissing, SourceInvalid, file_fault
from cg_rag.index.generation import GENERATION, POINTER, publish, read_pointer
from cg_rag.index.held_files import BLOCK_BYTES
from cg_rag.index.manifest import MANIFEST, MAX_JSON_BYTES, FileEntry, parse_manifest
from cg_rag.index.progress import Progress, Silence
from cg_rag.index.store import IndexReader

# Text shrinks to a third; vectors hardly shrink, and higher levels only take longer.
_GZIP_LEVEL = 6
_MEGABYTE = 1_000_000
_NOT_OURS = "不是 cg-rag index pack 生成的索引归档"


@dataclass(frozen=True, slots=True)
class Packed:
    """`sha256` is that of the archive."""

    path: Path
    fingerprint: str
    num_docs: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Switched:
    """The pointer went from `before` (None: there was no index) to `now`; they are equal when nothing had to be done."""

    before: str | None
    now: str
    num_docs: int


def pack_index(index_dir: Path, target: Path, progress: Progress | None = None) -> Packed:
    """Write the current index as a tar.gz; `target` may be a folder, then the name tells the fingerprint.

    The same index gives the same bytes. A build that runs meanwhile does not disturb it. Raises IndexMissing,
    IndexDamaged (a damaged index is not carried on) and BuildFailed when the disk refuses.
    """
    reader = IndexReader.open(index_dir)
    for damage in reader.verify():
        raise IndexDamaged(damage.file, "与清单不符，不能打包", damage.expected, damage.found)
    fingerprint: str = reader.manifest["fingerprint"]
    if target.is_dir():
        target /= f"cg-rag-index-{fingerprint}.tar.gz"
    draft = temporary_path(target.parent)
    try:
        with disk_errors(target.parent, f"无法写入 {target}"):
            _write_archive(reader, draft, fingerprint, _Megabytes(progress or Silence()))
            os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
        reader.close()
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Packed(target, fingerprint, reader.num_docs, target.stat().st_size, digest)


def install_archive(
    archive: Path,
    index_dir: Path,
    embedder: Embedder | None = None,
    progress: Progress | None = None,
) -> Switched:
    """Unpack `archive` beside the current index, check every digest, make it current. The one before is kept.

    With `embedder`, an index that another model built is refused. Raises SourceInvalid (not such an archive, cut,
    changed, of another format or model), IndexBusy, BuildFailed; then everything is as it was.
    """
    with disk_errors(index_dir), build_lock(index_dir):
        scratch = temporary_path(index_dir)
        scratch.mkdir()
        try:
            with _explained(archive):
                folder, files = _unpack(archive, scratch, _Megabytes(progress or Silence()))
                num_docs = _check_usable(folder, embedder)
            before = _current_or_none(index_dir)
            now = publish(index_dir, folder, folder.name, files)
        finally:
            discard(scratch)
    return Switched(before, now, num_docs)


def roll_back(index_dir: Path, to: str = "") -> Switched:
    """Point to the index that was current before, or to the one whose name begins with `to`.

    It is verified first. Raises IndexMissing (no index at all), SourceInvalid (none or several to go to), IndexDamaged,
    IndexBusy, BuildFailed.
    """
    if not index_dir.is_dir():
        raise IndexMissing(str(index_dir))
    with disk_errors(index_dir), build_lock(index_dir):
        before = _current_or_none(index_dir)
        others = sorted(
            path.name
            for path in index_dir.iterdir()
            if GENERATION.fullmatch(path.name) and path.name != before
        )
        if before is None and not others:
            raise IndexMissing(str(index_dir))
        matching = [name for name in others if name.startswith(to)]
        if not others:
            raise SourceInvalid(str(index_dir), "没有保留的上一份索引，不能回退")
        if not matching:
            raise SourceInvalid(
                str(index_dir), f"--to {to} 与保留的索引都不符，可以回退到 {'、'.join(others)}"
            )
        if len(matching) != 1:
            raise SourceInvalid(
                str(index_dir), f"须以 --to 指纹 指明回退到哪一份，现有 {'、'.join(matching)}"
            )
        reader = IndexReader(index_dir / matching[0])
        damages = reader.verify()
        reader.close()
        for damage in damages:
            raise IndexDamaged(damage.file, "与清单不符，不能回退", damage.expected, damage.found)
        replace_file(index_dir / POINTER, f"{matching[0]}\n".encode())
    return Switched(before, matching[0], reader.num_docs)


def _current_or_none(index_dir: Path) -> str | None:
    """The current generation; None also for a broken pointer, which what comes next replaces."""
    try:
        return read_pointer(index_dir)
    except IndexDamaged:
        return None


class _Megabytes:
    """Progress in whole megabytes: a file of 100 MB is not one step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bytes = 0

    def start(self, label: str, total_bytes: int) -> None:
        self._progress.start(f"{label}（MB）", max(1, total_bytes // _MEGABYTE))

    def follow(self, blocks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for block in blocks:
            yield block
            self._bytes += len(block)
            whole, self._bytes = divmod(self._bytes, _MEGABYTE)
            self._progress.advance(whole)

    def finish(self) -> None:
        self._progress.finish()


class _BlockStream(io.RawIOBase):
    """Blocks as a file to read from, which is what tarfile takes."""

    def __init__(self, blocks: Iterator[bytes | memoryview]) -> None:
        self._blocks = blocks
        self._block, self._at = b"", 0

    def read(self, size: int = -1) -> bytes:
        parts = []
        while size > 0:
            if self._at == len(self._block):
                if (block := next(self._blocks, None)) is None:
                    break
                self._block, self._at = bytes(block), 0
            parts.append(self._block[self._at : self._at + size])
            self._at += len(parts[-1])
            size -= len(parts[-1])
        return b"".join(parts)


def _write_archive(reader: IndexReader, draft: Path, fingerprint: str, told: _Megabytes) -> None:
    told.start("打包索引", reader.bytes_on_disk)
    with draft.open("xb") as file:
        with (
            gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for name, size, blocks in reader.stored_files():
                member = tarfile.TarInfo(f"{fingerprint}/{name}")
                member.size = size
                tar.addfile(member, _BlockStream(told.follow(blocks)))
        file.flush()
        os.fsync(file.fileno())
    told.finish()


class _WrongContents(Exception):
    """A readable archive that holds something else; says what, in Chinese."""


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    """What a broken archive makes others raise, as SourceInvalid with its name."""
    try:
        yield
    except IndexDamaged as error:
        raise SourceInvalid(str(archive), str(error)) from error
    except _WrongContents as error:
        raise SourceInvalid(str(archive), f"{_NOT_OURS}，或不完整（{error}）") from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        # What these say is English and names no place.
        raise SourceInvalid(str(archive), f"{_NOT_OURS}，或不完整") from error


def _unpack(archive: Path, scratch: Path, told: _Megabytes) -> tuple[Path, dict[str, FileEntry]]:
    """The folder of the one generation in `archive`, every file as its manifest says."""
    try:
        file = archive.open("rb")
    except OSError as error:
        raise SourceInvalid(str(archive), file_fault(error)) from error
    with file, tarfile.open(fileobj=file, mode="r|gz") as tar:
        folder, expected = _unpack_manifest(tar, tar.next(), scratch)
        told.start("安装索引", sum(entry["bytes"] for entry in expected.values()))
        files: dict[str, FileEntry] = {}
        while (member := tar.next()) is not None:
            name = _checked_name(member, folder.name, expected, files)
            files[name] = write_file(folder / name, told.follow(_blocks_of(tar, member)))
            if files[name].sha256 != expected[name]["sha256"]:
                raise IndexDamaged(name, "内容与清单不符", expected[name]["sha256"], files[name].sha256)
        told.finish()
    for name in expected.keys() - files.keys():
        raise IndexDamaged(name, "归档中没有这个文件")
    return folder, files


def _unpack_manifest(
    tar: tarfile.TarFile, member: tarfile.TarInfo | None, scratch: Path
) -> tuple[Path, dict[str, Any]]:
    fingerprint, _, name = (member.name if member else "").partition("/")
    # The name becomes a path: nothing but a generation's name may.
    if member is None or name != MANIFEST or not member.isreg() or not GENERATION.fullmatch(fingerprint):
        raise _WrongContents("开头不是 manifest.json")
    if member.size > MAX_JSON_BYTES:
        raise IndexDamaged(MANIFEST, "文件过大", f"不超过 {MAX_JSON_BYTES} 字节", f"{member.size} 字节")
    raw = b"".join(_blocks_of(tar, member))
    manifest = parse_manifest(raw, fingerprint)
    folder = scratch / fingerprint
    folder.mkdir()
    write_file(folder / MANIFEST, [raw])
    return folder, manifest["files"]


def _checked_name(
    member: tarfile.TarInfo, folder: str, expected: dict[str, Any], files: dict[str, FileEntry]
) -> str:
    name = member.name.removeprefix(f"{folder}/")
    if not member.isreg() or name not in expected or name in files or "/" in name:
        raise _WrongContents(f"其中不应有 {member.name[:80]}")
    if member.size != expected[name]["bytes"]:
        raise IndexDamaged(name, "大小不符", f"{expected[name]['bytes']} 字节", f"{member.size} 字节")
    return name


def _blocks_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    source: IO[bytes] | None = tar.extractfile(member)
    while source is not None and (block := source.read(BLOCK_BYTES)):
        yield block


def _check_usable(folder: Path, embedder: Embedder | None) -> int:
    """Number of articles; raises IndexDamaged for what this version cannot open, or that another model built."""
    reader = IndexReader(folder)
    built_by = reader.manifest["embedding"]
    reader.close()
    if embedder is not None and built_by is not None and built_by["fingerprint"] != embedder.fingerprint:
        raise IndexDamaged(
            MANIFEST,
            "索引由另一个嵌入模型构建，装上后只能按字面检索（仍要安装请加 --force）",
            f"{embedder.name} {embedder.fingerprint}",
            f"{built_by['model']} {built_by['fingerprint']}",
        )
    return reader.num_docs

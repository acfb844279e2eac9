"""Writing that survives: every file is on the disk before its name is, and its name before the pointer to it.

Rule: nothing that readers see is written in place. An OSError of this module means that the disk refused; the
caller turns it into BuildFailed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cg_rag.index.errors import BuildFailed, IndexBusy
from cg_rag.index.manifest import FileEntry
from cg_rag.index.os_words import reason_of

LOCK = ".lock"
TEMPORARY_PREFIX = ".tmp-"

# Where something is written these say more than elsewhere.
_REASONS = {
    errno.EACCES: "没有写入权限",
    errno.EPERM: "没有写入权限",
    errno.ENOENT: "目录不存在",
}


@contextmanager
def disk_errors(index_dir: Path, failed: str = "") -> Iterator[None]:
    """Turn an OSError into BuildFailed with a sentence that names the directory (or says `failed`) and the cause."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or reason_of(error)
        if failed:
            raise BuildFailed(f"{failed}：{reason}。") from error
        raise BuildFailed(f"无法在 {index_dir} 写入新索引：{reason}。原有索引未受影响。") from error


@contextmanager
def build_lock(index_dir: Path) -> Iterator[None]:
    """Hold the build lock of `index_dir` (made when absent). Raises IndexBusy, never waits."""
    make_directory(index_dir)
    descriptor = os.open(index_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            # The kernel gives the lock back when the process dies, so a killed build never blocks the next.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise IndexBusy(str(index_dir)) from error
        yield
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make `directory` and its parents, each durable."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def temporary_path(directory: Path) -> Path:
    """A free name that `remove_leftovers` recognises should the process be killed."""
    return directory / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"


def write_file(path: Path, blocks: Iterable[bytes | memoryview]) -> FileEntry:
    """Write and fsync a new file; returns its size and digest. `blocks` may be any buffers of bytes."""
    digest = hashlib.sha256()
    size = 0
    with path.open("xb", buffering=1 << 16) as file:
        for block in blocks:
            file.write(block)
            digest.update(block)
            size += len(block)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size, digest.hexdigest())


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file so that a reader finds the old content or the new one, also after a power cut."""
    temporary = temporary_path(path.parent)
    try:
        write_file(temporary, [content])
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(path: Path) -> None:
    """Remove a file or folder; it loses its name first, so nobody sees it half gone.

    A failure leaves a leftover.
    """
    if not path.name.startswith(TEMPORARY_PREFIX):
        grave = temporary_path(path.parent)
        try:
            path.rename(grave)
        except OSError:
            return
        path = grave
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)

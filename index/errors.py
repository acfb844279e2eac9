"""What can go wrong in the retrieval library.

    IndexLibraryError
     +- IndexMissing      no index was ever built in the directory
     +- IndexDamaged      a file is missing, cut, changed, or of another format version
     +- IndexBusy         another process is building in the same directory
     +- ScopeUnknown      a scope that no profile names
     +- SourceInvalid     a source file cannot be imported; says where
     +- BuildFailed       the disk refused to take the new index; the old one stands
     +- EngineFailed      the engine that holds the vectors cannot be reached, or refused
     +- EngineLacksIndex  the engine does not hold this index, or not all of it

Messages are Chinese, because `cg-rag index …` and `cg-rag doctor` print them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from cg_rag.index.os_words import reason_of


class IndexLibraryError(Exception):
    """Base of every error that the library raises on purpose."""


class IndexMissing(IndexLibraryError):
    def __init__(self, directory: str) -> None:
        super().__init__(f"目录 {directory} 中没有可用的索引，请先运行 cg-rag index build。")
        self.directory = directory


class IndexDamaged(IndexLibraryError):
    """`file` is the name inside the index folder; `expected` and `found` are digests, sizes or versions."""

    def __init__(self, file: str, reason: str, expected: str = "", found: str = "") -> None:
        detail = f"（应为 {expected}，实为 {found}）" if expected or found else ""
        super().__init__(f"索引文件 {file} 不可用：{reason}{detail}")
        self.file = file
        self.reason = reason
        self.expected = expected
        self.found = found


class IndexBusy(IndexLibraryError):
    def __init__(self, directory: str) -> None:
        super().__init__(f"另一个进程正在 {directory} 中构建索引，请稍后再试。")
        self.directory = directory


class ScopeUnknown(IndexLibraryError):
    def __init__(self, scope: str, available: Sequence[str]) -> None:
        super().__init__(f"检索范围 {scope} 不存在，可用范围：{'、'.join(available)}。")
        self.scope = scope
        self.available = tuple(available)


class SourceInvalid(IndexLibraryError):
    """`place` is file, or file:line."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}：{reason}")
        self.place = place
        self.reason = reason


def file_fault(error: OSError) -> str:
    """Why a file that a user named cannot be read, in Chinese; the system's own words are English."""
    words = {
        FileNotFoundError: "文件不存在",
        IsADirectoryError: "是目录，不是文件",
        PermissionError: "无权读取",
    }
    return words.get(type(error), f"无法读取：{reason_of(error)}")


class BuildFailed(IndexLibraryError):
    pass


class EngineFailed(IndexLibraryError):
    """`reason` names no address and no key."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"向量引擎 {name} 不可用：{reason}")
        self.name = name
        self.reason = reason


class EngineLacksIndex(IndexLibraryError):
    """`found` rows of `expected` are in `collection`; None where there is no such collection."""

    def __init__(self, collection: str, found: int | None, expected: int) -> None:
        held = "尚未推送" if found is None else f"只有 {found} 条（应为 {expected} 条）"
        super().__init__(f"向量引擎的集合 {collection} {held}，请运行 cg-rag index push")
        self.collection = collection
        self.found = found
        self.expected = expected

"""What can go wrong in the retrieval library.

    IndexLibraryError
     +- IndexMissing      no index was ever built in the directory
     +- IndexDamaged      a file is missing, cut, changed, or of another format version
     +- IndexBusy         another process is building in the same directory
     +- ScopeUnknown      a scope that no profile names
     +- SourceInvalid     a source file cannot be imported; says where
     +- BuildFailed       the disk refused to take the new index; the old one stands

Messages are Chinese, because `cg-rag index …` and `cg-rag doctor` print them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence


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


class BuildFailed(IndexLibraryError):
    pass

"""What can go wrong with a model on disk, beside the errors of the index itself.

IndexLibraryError
 +- ModelMissing      the folder or a file that its settings name is not there
 +- ModelInvalid      settings, digest, graph, tokenizer or runtime do not fit; nothing was computed
 +- ModelFailed       the model was opened, and one call failed; the next may succeed
 +- Cancelled         the caller asked for the computation to stop
"""

from __future__ import annotations

from cg_rag.index.errors import IndexLibraryError


class ModelMissing(IndexLibraryError):
    def __init__(self, path: str) -> None:
        super().__init__(f"模型文件 {path} 不存在或无法读取，请检查 embedding.model_dir 等模型目录设置。")
        self.path = path


class ModelInvalid(IndexLibraryError):
    """`place` is a file, or the name of the runtime."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"模型 {place} 不可用：{reason}")
        self.place = place
        self.reason = reason


class ModelFailed(IndexLibraryError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"模型 {name} 计算失败：{reason}")
        self.name = name
        self.reason = reason


class Cancelled(IndexLibraryError):
    def __init__(self) -> None:
        super().__init__("计算已被取消。")

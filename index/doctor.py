"""What `cg-rag doctor` says of the index: opened and verified byte by byte, scope by scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cg_rag.index.embedder import Embedder
from cg_rag.index.errors import IndexLibraryError
from cg_rag.index.library import EMPTY_SCOPE, IndexLibrary, Snapshot
from cg_rag.index.store import IndexReader

# 0.9945-0.9971 between classes of CPU is usual; below this the two do not find the same articles.
MIN_COSINE = 0.98
NUM_REEMBEDDED = 20
REBUILD = "运行 cg-rag index build 重新构建（原来的来源文件），或恢复索引目录的备份"


@dataclass(frozen=True, slots=True)
class IndexFinding:
    """Shaped like the findings of the other checks: severity, subject, message, remedy."""

    severity: Literal["ok", "warning", "error"]
    subject: str
    message: str
    remedy: str = ""


def check_index(library: IndexLibrary, active_scope: str) -> list[IndexFinding]:
    """Opens `library` and judges it. A fault of the active scope is an error, one of another scope a warning."""
    library.refresh()
    snapshot = library.snapshot
    if snapshot.state == "missing":
        return [IndexFinding("error", "索引", snapshot.faults[0], "运行 cg-rag index build 文件…")]
    findings = []
    if snapshot.reader is not None:
        manifest = snapshot.reader.manifest
        message = (
            f"{manifest['num_docs']} 条条文，指纹 {manifest['fingerprint']}，构建于 {manifest['built_at']}"
        )
        findings.append(IndexFinding("ok", "索引", message))
    findings += _check_vectors(library, snapshot)
    findings += [
        IndexFinding("error", "索引", fault, REBUILD)
        for fault in snapshot.faults
        if EMPTY_SCOPE not in fault and fault != snapshot.vector_fault
    ]
    for name, state in snapshot.scopes.items():
        if not state.fault:
            message = f"{state.scope.num_docs} 条条文，指纹 {state.fingerprint}"
            findings.append(IndexFinding("ok", f"检索范围 {name}", message))
            continue
        severity: Literal["warning", "error"] = "error" if name == active_scope else "warning"
        remedy = "调整 profiles 的 include 或构建相应来源" if state.fault == EMPTY_SCOPE else REBUILD
        findings.append(IndexFinding(severity, f"检索范围 {name}", state.fault, remedy))
    return findings


def _check_vectors(library: IndexLibrary, snapshot: Snapshot) -> list[IndexFinding]:
    """Embed some stored articles again: the int8 model gives other vectors on another class of CPU."""
    reader, embedder = snapshot.reader, library.embedder
    if reader is None or reader.vectors is None:
        return [IndexFinding("ok", "向量", "索引没有向量，只按字面检索")] if reader is not None else []
    if snapshot.vector_fault:
        remedy = (
            REBUILD
            if embedder is not None
            else "检查 embedding.model_dir（或 endpoint），使其与构建时的模型一致"
        )
        return [IndexFinding("error", "向量", snapshot.vector_fault, remedy)]
    if embedder is None:
        return [IndexFinding("ok", "向量", "embedding.provider 为 none，只按字面检索")]
    recorded = reader.manifest["embedding"]
    try:
        cosine = min_cosine(reader, embedder)
    except (IndexLibraryError, OSError, ValueError) as error:
        return [
            IndexFinding(
                "error", "向量", f"嵌入模型无法使用：{error}", "检查 embedding.model_dir 或 endpoint"
            )
        ]
    message = (
        f"{recorded['model']}，{recorded['dim']} 维，重新嵌入 {min(NUM_REEMBEDDED, reader.num_docs)} 条条文，"
        f"余弦相似度最低 {cosine:.4f}（构建于 {recorded['kernel_class']}，本机为 {embedder.kernel_class}）"
    )
    if cosine < MIN_COSINE:
        return [IndexFinding("error", "向量", message, "在本机运行 cg-rag index build --force 重新生成向量")]
    return [IndexFinding("ok", "向量", f"{message}；计算核 {snapshot.kernel}")]


def min_cosine(reader: IndexReader, embedder: Embedder) -> float:
    """The lowest cosine between stored vectors and new ones of the same articles, spread over the index."""
    rows = np.unique(np.linspace(0, reader.num_docs - 1, NUM_REEMBEDDED).astype(np.int64))
    stored = reader.read_full(rows).astype(np.float64)
    fresh = np.stack(list(embedder.embed_articles(reader.read_articles(rows.tolist())))).astype(np.float64)
    lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(fresh, axis=1)
    return float(((stored * fresh).sum(axis=1) / np.maximum(lengths, 1e-12)).min())

"""What `cg-rag doctor` says of the index: opened and verified byte by byte, scope by scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cg_rag.index.corpus import Article
from cg_rag.index.embedder import Embedder
from cg_rag.index.errors import EngineFailed, EngineLacksIndex, IndexLibraryError
from cg_rag.index.library import EMPTY_SCOPE, IndexLibrary, Snapshot
from cg_rag.index.os_words import fault_of
from cg_rag.index.store import IndexReader

# 0.9945-0.9971 between classes of CPU is usual; below this the two do not find the same articles.
MIN_COSINE = 0.98
NUM_REEMBEDDED = 20
PROBE = "脚手架没有验收能不能使用"
PROBE_ARTICLES = (
    Article("样例脚手架规范", "第一条", "脚手架搭设完毕应当组织验收，未经验收或者验收不合格的，不得使用。"),
    Article("样例档案规范", "第二条", "档案室应当通风，每年清点一次。"),
)
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
    findings += _check_reranker(library, snapshot)
    findings += [
        IndexFinding("error", "索引", fault, REBUILD)
        for fault in snapshot.faults
        if EMPTY_SCOPE not in fault and fault not in (snapshot.vector_fault, snapshot.rerank_fault)
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
        remedy = REBUILD
        if snapshot.engine_fault is not None:
            remedy = _engine_remedy(snapshot.engine_fault)
        elif embedder is None:
            remedy = "检查 embedding.model_dir（或 endpoint），使其与构建时的模型一致"
        return [IndexFinding("error", "向量", snapshot.vector_fault, remedy)]
    if embedder is None:
        return [IndexFinding("ok", "向量", "embedding.provider 为 none，只按字面检索")]
    recorded = reader.manifest["embedding"]
    try:
        cosine = min_cosine(reader, embedder)
    except (IndexLibraryError, OSError, ValueError) as error:
        return [
            IndexFinding(
                "error",
                "向量",
                f"嵌入模型无法使用：{fault_of(error)}",
                "检查 embedding.model_dir 或 endpoint",
            )
        ]
    message = (
        f"{recorded['model']}，{recorded['dim']} 维，重新嵌入 {min(NUM_REEMBEDDED, reader.num_docs)} 条条文，"
        f"余弦相似度最低 {cosine:.4f}（构建于 {recorded['kernel_class']}，本机为 {embedder.kernel_class}）"
    )
    if cosine < MIN_COSINE:
        return [IndexFinding("error", "向量", message, "在本机运行 cg-rag index build --force 重新生成向量")]
    return [IndexFinding("ok", "向量", f"{message}；计算核 {snapshot.kernel}")]


def _engine_remedy(fault: EngineFailed | EngineLacksIndex) -> str:
    if isinstance(fault, EngineLacksIndex):
        return "运行 cg-rag index push 推送当前索引"
    return "检查 index.milvus 的设置，以及 Milvus 是否在运行"


def _check_reranker(library: IndexLibrary, snapshot: Snapshot) -> list[IndexFinding]:
    """Ask it about two articles, one of which answers the question."""
    source, reranker = library.reranker_source, library.reranker
    if source is None:
        return [IndexFinding("ok", "重排", "rerank.method 为 fused，不重排")]
    remedy = "检查 rerank.endpoint、model 与 api_key" if source.is_remote else "检查 rerank.model_dir"
    if snapshot.rerank_fault:
        return [IndexFinding("error", "重排", snapshot.rerank_fault, remedy)]
    if reranker is None:
        return [IndexFinding("ok", "重排", "索引没有向量，不重排")] if snapshot.reader is not None else []
    try:
        right, wrong = reranker.score(PROBE, PROBE_ARTICLES)
    except (IndexLibraryError, OSError, ValueError) as error:
        return [IndexFinding("error", "重排", f"重排模型无法使用：{fault_of(error)}", remedy)]
    if right is None or wrong is None or right.value <= wrong.value:
        message = f"{source.name} 没有把答案排在无关的条文之前（问题：{PROBE}）"
        return [IndexFinding("warning", "重排", message, "以 cg-rag eval retrieval 评测后决定是否使用")]
    message = f"{source.name}，试问一题：答案 {right.score:.4f}，排在无关条文 {wrong.score:.4f} 之前（只看先后，不看大小）"
    return [IndexFinding("ok", "重排", message)]


def min_cosine(reader: IndexReader, embedder: Embedder) -> float:
    """The lowest cosine between stored vectors and new ones of the same articles, spread over the index."""
    rows = np.unique(np.linspace(0, reader.num_docs - 1, NUM_REEMBEDDED).astype(np.int64))
    stored = reader.read_full(rows).astype(np.float64)
    fresh = np.stack(list(embedder.embed_articles(reader.read_articles(rows.tolist())))).astype(np.float64)
    lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(fresh, axis=1)
    return float(((stored * fresh).sum(axis=1) / np.maximum(lengths, 1e-12)).min())

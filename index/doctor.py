"""What `cg-rag doctor` says of the index: opened and verified byte by byte, scope by scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cg_rag.index.library import EMPTY_SCOPE, IndexLibrary

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
    findings += [
        IndexFinding("error", "索引", fault, REBUILD) for fault in snapshot.faults if EMPTY_SCOPE not in fault
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

"""`cg-rag doctor`: findings with a severity and a remedy. What looks at the index is in index/doctor.py."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, Protocol

from cg_rag.core.config import ConfigError, Loaded, Settings
from cg_rag.core.criteria import Criteria
from cg_rag.core.os_words import reason_of
from cg_rag.core.vision_settings import half_configured, is_vision_configured, vision_profile

Severity = Literal["ok", "warning", "error"]
_SIGNS = {"ok": "正常", "warning": "警告", "error": "错误"}
# All that the service imports; tests hold it to pyproject.toml.
PACKAGES = (
    "aiohttp",
    "mcp",
    "numpy",
    "onnxruntime",
    "orjson",
    "packaging",
    "prometheus-client",
    "pydantic",
    "PyYAML",
    "tokenizers",
)
MIN_FREE_BYTES = 200 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """`remedy` is "" when there is nothing to do."""

    severity: Severity
    subject: str
    message: str
    remedy: str = ""


class FindingLike(Protocol):
    """A finding of another layer: the retrieval library has its own class, since it imports nothing from here."""

    @property
    def severity(self) -> Severity: ...

    @property
    def subject(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def remedy(self) -> str: ...


class PinMismatch(Protocol):
    @property
    def name(self) -> str: ...


def check_machine() -> list[Finding]:
    """Interpreter, machine, packages."""
    machine = f"Python {platform.python_version()}，{platform.machine()}，{' '.join(platform.libc_ver())}"
    findings = [Finding("ok", "运行环境", f"{machine}，{os.cpu_count()} 个处理器")]
    missing = [name for name in PACKAGES if _find_version(name) is None]
    if missing:
        findings.append(
            Finding(
                "error",
                "依赖",
                f"缺少 {'、'.join(missing)}",
                "在项目目录运行 pip install .（离线时 pip install --no-index --find-links 交付目录 cg-rag）",
            )
        )
    else:
        found = "，".join(f"{name} {_find_version(name)}" for name in PACKAGES)
        findings.append(Finding("ok", "依赖", found))
    return findings


def check_config(load: Callable[[], Loaded]) -> tuple[Loaded | None, list[Finding]]:
    """The configuration, when it can be read, and what is to be said about it and its index directory."""
    try:
        loaded = load()
    except ConfigError as error:
        return None, [Finding("error", "配置", str(error), "按提示修改后运行 cg-rag config check")]
    where = str(loaded.path) if loaded.path else "缺省值"
    findings = [Finding("ok", "配置", where)]
    findings += [Finding("warning", "配置", warning, "改正或删除该环境变量") for warning in loaded.warnings]
    return loaded, [*findings, _check_disk(loaded.settings.index.dir)]


def check_pins(mismatches: Sequence[PinMismatch], strict: bool) -> list[Finding]:
    if not mismatches:
        return [Finding("ok", "提示词", "全部文件与 pins.json 一致")]
    names = "、".join(mismatch.name for mismatch in mismatches)
    severity: Severity = "error" if strict else "warning"
    return [
        Finding(severity, "提示词", f"与 pins.json 不符：{names}", "恢复原文件；确属有意修改则更新 pins.json")
    ]


def check_vision(settings: Settings) -> list[Finding]:
    """What is set for the vision modes and cannot work, or is an experiment."""
    findings = [
        Finding("warning", "视觉", problem, "补齐所缺的键，或全部删去")
        for problem in half_configured(settings)
    ]
    profile = vision_profile(settings)
    if profile.is_experimental:
        findings.append(Finding("warning", "视觉", f"视觉版本 {profile.name} 是实验", "生产请用 e10"))
    if is_vision_configured(settings):
        findings.append(Finding("ok", "视觉", f"模型 {settings.vision.model}，视觉版本 {profile.name}"))
    return findings


def check_mcp(settings: Settings) -> list[Finding]:
    """Whether the endpoint can be made; the service finds out when the first client asks for it."""
    if not settings.mcp.enabled:
        return []
    try:
        importlib.import_module("cg_rag.core.mcp_http")
    except (Exception, SystemExit) as error:  # whatever a broken package does
        message = f"入口所用的依赖包无法导入（{type(error).__name__}：{error}）"
        return [Finding("error", "MCP", message, "重新安装依赖；不用 MCP 时设 mcp.enabled 为 false")]
    return [Finding("ok", "MCP", "入口可用")]


def check_criteria(load: Callable[[], Criteria]) -> Finding:
    """Whether the clause list of major hazards can be read, and how much of it was compared with the official text."""
    subject, remedy = "判定标准", "以官方全文替换：把 criteria.file 指向一份 UTF-8 文本"
    try:
        criteria = load()
    except OSError as error:
        return Finding("error", subject, f"无法读取条款清单：{reason_of(error)}", remedy)
    except ValueError as error:
        return Finding("error", subject, str(error), remedy)
    message = f"《{criteria.name}》{len(criteria.clauses)} 条"
    if not criteria.num_unverified:
        return Finding("ok", subject, message)
    return Finding(
        "warning", subject, f"{message}，为摘要，其中 {criteria.num_unverified} 条未核对原文", remedy
    )


def report(listed: Sequence[FindingLike], as_json: bool) -> int:
    """Print the findings; 1 when one of them is an error, else 0."""
    failed = any(finding.severity == "error" for finding in listed)
    if as_json:
        shown = [
            {key: getattr(finding, key) for key in ("severity", "subject", "message", "remedy")}
            for finding in listed
        ]
        body = {"ok": not failed, "findings": shown}
        print(json.dumps(body, ensure_ascii=False, indent=2))
        return int(failed)
    for finding in listed:
        print(f"[{_SIGNS[finding.severity]}] {finding.subject}：{finding.message}")
        if finding.remedy:
            print(f"       处理：{finding.remedy}")
    print("发现错误，请按上面的办法处理。" if failed else "检查通过。")
    return int(failed)


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_disk(index_dir: Path) -> Finding:
    # Path.exists raises where a folder above may not be looked into.
    existing = next(path for path in (index_dir, *index_dir.parents) if os.path.exists(path))
    free = shutil.disk_usage(existing).free
    message = f"{index_dir} 所在磁盘剩余 {free // (1024 * 1024)} MiB"
    if free < MIN_FREE_BYTES:
        return Finding("warning", "磁盘", message, "清理磁盘：构建索引时新旧两份同时存在")
    if not os.access(existing, os.W_OK):
        return Finding(
            "warning", "磁盘", f"{message}，当前用户不可写", "只提供服务时无妨；构建索引须有写权限"
        )
    return Finding("ok", "磁盘", message)

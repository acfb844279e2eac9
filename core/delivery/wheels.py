"""Resolving and downloading wheels for a target, by pip in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from cg_rag.core.delivery.closure import Package, close
from cg_rag.core.delivery.errors import DeliveryFailed
from cg_rag.core.delivery.target import Target

PINS = Path(__file__).with_name("versions.txt")
"""The versions that were tested together, as a pip constraints file."""
# The first round asks for nothing; each adds what the requirements found so far lack on the target.
_MAX_ROUNDS = 5
_MAX_REASON_CHARS = 300


def resolve(
    own: Package, target: Target, pins: Path | None, extras: Sequence[str] = ()
) -> tuple[Package, ...]:
    """`own` with its `extras`, pip and all that they need on `target`, versions bound by `pins`. Raises
    DeliveryFailed."""
    packages, asked = {own.name: own}, list[str]()
    root = f"{own.name}[{','.join(extras)}]" if extras else own.name
    for _ in range(_MAX_ROUNDS):
        closure = close((root, "pip"), packages, target.marker_environment())
        if not closure.missing:
            return closure.needed
        asked += closure.missing
        packages = {own.name: own, **_ask_pip(asked, target, pins)}
    raise DeliveryFailed(f"{_names(target)} 的依赖没有解析完全，缺少 {'、'.join(closure.missing)}。")


def _ask_pip(requirements: Sequence[str], target: Target, pins: Path | None) -> dict[str, Package]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)]
        words += [*target.pip_options(), *_constraints(pins), *requirements]
        run_pip(words, f"解析 {_names(target)} 的依赖")
        packages = [_package(entry) for entry in json.loads(report.read_bytes())["install"]]
    return {package.name: package for package in packages}


def _package(entry: dict[str, Any]) -> Package:
    """One entry of pip's installation report, format 1 (pip's reference, "Installation Report")."""
    metadata = entry["metadata"]
    return Package(
        canonicalize_name(metadata["name"]),
        metadata["version"],
        tuple(metadata.get("requires_dist", ())),
        unquote(entry["download_info"]["url"]).rpartition("/")[2],
    )


def download(
    packages: Sequence[Package], target: Target, folder: Path, advance: Callable[[int], None]
) -> None:
    """Fetch the wheels of `packages` into `folder`; `advance` is called with 1 as each begins. Raises DeliveryFailed."""

    def follow(line: str) -> None:
        if line.startswith(("Collecting ", "Processing ")):  # from an index, from a folder
            advance(1)

    words = ["download", "--no-deps", "--dest", str(folder), *target.pip_options()]
    words += [f"{package.name}=={package.version}" for package in packages]
    run_pip(words, "下载依赖", follow)


def _constraints(pins: Path | None) -> list[str]:
    return ["--constraint", str(pins)] if pins is not None else []


def _names(target: Target) -> str:
    return f"{target.platform} Python {target.python}"


def run_pip(words: Sequence[str], doing: str, follow: Callable[[str], None] = lambda line: None) -> None:
    """Run pip; `follow` is called with each line that it prints. Raises DeliveryFailed with pip's own reason."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(
            [*command, "--progress-bar=off"] if words[0] != "wheel" else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                follow(line)
        if process.returncode != 0:
            errors.seek(0)
            raise DeliveryFailed(f"{doing}失败：{_reason(errors.read())}")


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} 没有 pip，请换用带 pip 的 Python 运行。"
    told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
    return f"请检查网络或 pip 的配置（pip：{' '.join(told)[:_MAX_REASON_CHARS]}）"

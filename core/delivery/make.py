"""One delivery, from our own wheel to the list of checksums.

Rule: the folder appears under its name when it is whole. What is put together lies beside it until then and is removed
when anything fails.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from packaging.utils import canonicalize_name, parse_wheel_filename

from cg_rag.core.delivery.closure import Package
from cg_rag.core.delivery.errors import DeliveryFailed, DeliveryRefused
from cg_rag.core.delivery.own_wheel import make_own_wheel, requirements_of
from cg_rag.core.delivery.parts import copy_scripts, pack_model, sha256_of, take_python, write_checksums
from cg_rag.core.delivery.target import GLIBC, Target
from cg_rag.core.delivery.wheels import download, resolve
from cg_rag.core.os_words import reason_of

EXTRAS = ("milvus",)
"""Our extras that a running service can use."""


class Progress(Protocol):
    """`start` opens a step of `total` units (None: unknown), `advance` adds to it, `finish` closes it."""

    def start(self, label: str, total: int | None) -> None: ...
    def advance(self, count: int) -> None: ...
    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be delivered. `models` maps `embedding` and `rerank` to folders where the configuration names its own;
    `pack_index` writes the index into a folder and says what it is, None leaves it out; `extras` are some of EXTRAS."""

    target: Target
    pins: Path | None
    config: Path
    models: Mapping[str, Path]
    python_archive: Path | None
    pack_index: Callable[[Path], dict[str, Any]] | None
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """`checksum` is the SHA-256 of SHA256SUMS, which stands for the whole; `contents` is delivery.json."""

    folder: Path
    num_bytes: int
    checksum: str
    contents: dict[str, Any]


def make_delivery(order: Order, folder: Path, progress: Progress) -> Delivery:
    """Write the delivery to `folder`, which is new or empty. Raises DeliveryRefused, DeliveryFailed."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DeliveryRefused(f"{folder} 不是空的文件夹，请另指定，或先删除它。")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder.parent))
        try:
            contents, checksum = _fill(order, draft, progress)
            draft.chmod(0o755)
            # Takes the place of an empty folder in one step.
            os.replace(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise DeliveryFailed(f"无法写入 {folder}：{reason_of(error)}") from error
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Delivery(folder, num_bytes, checksum, contents)


def resolve_only(order: Order, progress: Progress) -> list[Package]:
    """What would be delivered, nothing of it downloaded or written."""
    with tempfile.TemporaryDirectory() as scratch:
        return list(_resolve(order, Path(scratch), progress)[1])


def _fill(order: Order, draft: Path, progress: Progress) -> tuple[dict[str, Any], str]:
    wheels = draft / "wheels"
    wheels.mkdir()
    # First what can be refused, then what takes minutes.
    if order.python_archive is not None:
        take_python(order.python_archive, order.target, draft / "python")
    models = {kind: pack_model(path, draft / "models").stem for kind, path in order.models.items()}
    index = None
    if order.pack_index is not None:
        (draft / "index").mkdir()
        index = order.pack_index(draft / "index")
    shutil.copyfile(order.config, draft / "config.yaml")
    own, packages = _resolve(order, wheels, progress)
    progress.start("下载依赖", len(packages) - 1)
    download([package for package in packages if package != own], order.target, wheels, progress.advance)
    progress.finish()
    listed = _write_requirements(draft, packages)
    contents = {
        "name": "CG_RAG",
        "version": own.version,
        "platform": order.target.platform,
        "python": order.target.python,
        "glibc": ".".join(map(str, GLIBC)),
        "extras": list(order.extras),
        "made_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "wheels": listed,
        "models": models,
        "index": index,
        "python_archive": order.python_archive.name if order.python_archive else None,
    }
    text = json.dumps(contents, ensure_ascii=False, indent=1)
    (draft / "delivery.json").write_text(text + "\n", "utf-8")
    copy_scripts(draft, _filler(contents))
    return contents, write_checksums(draft)


def _resolve(order: Order, folder: Path, progress: Progress) -> tuple[Package, tuple[Package, ...]]:
    progress.start("制作本程序的安装包", None)
    wheel = make_own_wheel(folder)
    progress.finish()
    name, version, _, _ = parse_wheel_filename(wheel.name)
    own = Package(canonicalize_name(name), str(version), requirements_of(wheel), wheel.name)
    progress.start("解析依赖", None)
    packages = resolve(own, order.target, order.pins, order.extras)
    progress.finish()
    return own, packages


def _write_requirements(draft: Path, packages: Sequence[Package]) -> list[dict[str, str]]:
    """requirements.txt with one hash for each wheel that is there; raises DeliveryFailed when they are not those meant."""
    found = {parse_wheel_filename(path.name)[:2]: path for path in (draft / "wheels").glob("*.whl")}
    listed = [
        {"name": str(name), "version": str(version), "file": path.name, "sha256": sha256_of(path)}
        for (name, version), path in sorted(found.items(), key=lambda item: item[0][0])
    ]
    meant = [package.name for package in packages]
    if [entry["name"] for entry in listed] != meant:
        raise DeliveryFailed(
            f"下载到的安装包与解析的不符：{'、'.join(set(meant) ^ {str(k[0]) for k in found})}。"
        )
    lines = [f"{entry['name']}=={entry['version']} --hash=sha256:{entry['sha256']}\n" for entry in listed]
    (draft / "requirements.txt").write_text("".join(lines), "utf-8")
    return listed


def _filler(contents: Mapping[str, Any]) -> Callable[[str], str]:
    target = Target(contents["platform"], contents["python"])
    values = {
        "@VERSION@": contents["version"],
        "@PLATFORM@": target.platform,
        "@MACHINE@": target.machine,
        "@PYTHON@": target.python,
        "@GLIBC_MINOR@": str(GLIBC[1]),
        "@EMBEDDING_MODEL@": contents["models"].get("embedding", ""),
        "@RERANK_MODEL@": contents["models"].get("rerank", ""),
    }

    def fill(text: str) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    return fill


def package_json(package: Package) -> dict[str, Any]:
    return {key: value for key, value in asdict(package).items() if key != "requires"}

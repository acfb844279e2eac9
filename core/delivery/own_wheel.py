"""The wheel of this very program: built in a checkout, put together again from an installation."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from cg_rag.core.delivery.errors import DeliveryFailed
from cg_rag.core.delivery.wheels import run_pip

NAME = "cg-rag"
_ROOT = Path(__file__).resolve().parents[2]
# Written by whoever installs, not part of the wheel.
_OF_THE_INSTALLER = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json")
_OLDEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def make_own_wheel(folder: Path) -> Path:
    """Write our wheel into `folder`, holding the code that runs now. Raises DeliveryFailed."""
    if (_ROOT / "pyproject.toml").is_file():
        words = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(_ROOT)]
        run_pip(words, "构建本程序的安装包")
        return next(folder.glob("cg_rag-*.whl"))
    try:
        installed = distribution(NAME)
    except PackageNotFoundError as error:
        raise DeliveryFailed("本程序不是由安装包安装的，请在源码目录中运行。") from error
    if Path(str(installed.locate_file("cg_rag"))).resolve() != _ROOT:
        raise DeliveryFailed(f"运行的程序在 {_ROOT}，与已安装的 {NAME} 不是同一份。")
    return repack(installed, folder)


def repack(installed: Distribution, folder: Path) -> Path:
    """Write the wheel that `installed` came from into `folder`. A file that is not as it was installed is refused.

    Reads the RECORD of the installation (packaging.python.org, "Recording installed projects"). Raises DeliveryFailed.
    """
    info = next(path.parts[0] for path in installed.files or () if path.parts[0].endswith(".dist-info"))
    target = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    record: list[str] = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in _packed_files(installed):
            content = Path(str(path.locate())).read_bytes()
            digest = _encode(hashlib.sha256(content).digest())
            if path.hash is None or path.hash.mode != "sha256" or path.hash.value != digest:
                raise DeliveryFailed(f"已安装的 {path} 被改动过，请重新安装后再制作。")
            _add(wheel, path.as_posix(), content)
            record.append(f"{path.as_posix()},sha256={digest},{len(content)}")
        name = f"{info}/RECORD"
        _add(wheel, name, "\n".join([*record, f"{name},,", ""]).encode())
    return target


def _packed_files(installed: Distribution) -> Iterator[PackagePath]:
    for path in sorted(installed.files or (), key=str):
        # Scripts lie outside (..); what Python compiled was not in the wheel.
        if path.parts[0] != ".." and path.suffix != ".pyc" and path.name not in _OF_THE_INSTALLER:
            yield path


def _encode(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _add(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _OLDEST_ZIP_TIME)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)


def requirements_of(wheel: Path) -> tuple[str, ...]:
    """The requirements that a wheel's metadata names, markers included."""
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        head = file.read(name).decode("utf-8").partition("\n\n")[0]
    lines = (line.partition(": ") for line in head.splitlines())
    return tuple(value for key, _, value in lines if key == "Requires-Dist")

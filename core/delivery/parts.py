"""What goes into a delivery beside the wheels: models, a Python, the list of checksums.

Rule: what cannot work at the other end is refused here, where the right file is still at hand.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

from cg_rag.core.delivery.errors import DeliveryRefused
from cg_rag.core.delivery.target import Target
from cg_rag.core.os_words import reason_of

CHECKSUMS = "SHA256SUMS"
# e_machine of an ELF header (System V ABI, machine supplements).
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path) -> str:
    """List every file of `folder` as sha256sum does; returns the digest of the list itself, which stands for it all."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / CHECKSUMS).write_text("".join(lines), "utf-8")
    return sha256_of(folder / CHECKSUMS)


def pack_model(model_dir: Path, folder: Path) -> Path:
    """Write the model folder as a tar of one folder of its name. Weights do not shrink, so it is not compressed."""
    if not (model_dir / "cg_rag_model.json").is_file():
        raise DeliveryRefused(f"模型文件夹 {model_dir} 中没有 cg_rag_model.json。")
    folder.mkdir(exist_ok=True)
    target = folder / f"{model_dir.name}.tar"
    with tarfile.open(target, "w", dereference=True) as tar:
        tar.add(model_dir, model_dir.name, filter=_anonymous)
    return target


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who made the delivery and when is no part of it."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def take_python(archive: Path, target: Target, folder: Path) -> Path:
    """Copy an archive of a Python into `folder` when it holds the interpreter of `target`. Raises DeliveryRefused."""
    wanted = f"bin/python{target.python}"
    try:
        with tarfile.open(archive, "r:*") as tar:
            member = next((entry for entry in tar if entry.isreg() and entry.name.endswith(wanted)), None)
            source = tar.extractfile(member) if member is not None else None
            head = source.read(20) if source is not None else b""
    except (OSError, tarfile.TarError, EOFError) as error:
        why = f"：{reason_of(error)}" if isinstance(error, OSError) and error.errno else ""
        raise DeliveryRefused(
            f"{archive} 不是可读的 tar 归档（.tar、.tar.gz、.tar.xz、.tar.bz2）{why}。"
        ) from error
    if not head:
        raise DeliveryRefused(f"{archive} 中没有 {wanted}。")
    if head[:4] != b"\x7fELF" or struct.unpack("<H", head[18:20])[0] != _ELF_MACHINES[target.machine]:
        raise DeliveryRefused(f"{archive} 中的 {wanted} 不是 {target.platform} 的程序。")
    folder.mkdir(exist_ok=True)
    return Path(shutil.copyfile(archive, folder / archive.name))


def copy_scripts(folder: Path, fill: Callable[[str], str]) -> None:
    """The files of the delivery that are the same for everybody; `fill` puts the target's values into their texts."""
    for path in sorted(Path(__file__).with_name("files").iterdir()):
        copy = folder / path.name
        copy.write_text(fill(path.read_text("utf-8")), "utf-8")
        copy.chmod(0o755 if path.suffix == ".sh" else 0o644)

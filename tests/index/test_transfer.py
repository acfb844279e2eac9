"""An index as one file: packed, installed elsewhere, refused when it is not what it says, rolled back."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.durable import build_lock
from cg_rag.index.errors import BuildFailed, IndexBusy, IndexDamaged, IndexMissing, SourceInvalid
from cg_rag.index.store import IndexReader, current_fingerprint, remove_leftovers
from cg_rag.index.transfer import install_archive, pack_index, roll_back
from tests.conftest import ARTICLES, write_jsonl
from tests.toy_embedder import toy_embedder

ROOT = Path(__file__).resolve().parents[2]
Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with vectors. Not to be changed."""
    folder = tmp_path_factory.mktemp("built")
    source = write_jsonl(folder / "laws.jsonl", ARTICLES)
    build_index([SourceSpec(source, "laws", ())], folder / "index", None, embedder=toy_embedder())
    return folder / "index"


@pytest.fixture(scope="module")
def archive(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_index(built, tmp_path_factory.mktemp("archive")).path


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A directory that holds another index."""
    source = write_jsonl(tmp_path / "laws.jsonl", ARTICLES[:2])
    build_index([SourceSpec(source, "laws", ())], tmp_path / "index", None)
    return tmp_path / "index"


def whole(index_dir: Path) -> str:
    """The current fingerprint, after every byte was compared."""
    reader = IndexReader.open(index_dir)
    assert reader.verify() == []
    assert not list(index_dir.glob(".tmp-*"))
    return reader.fingerprint


def test_an_installed_archive_is_the_index_that_was_packed(
    built: Path, archive: Path, tmp_path: Path
) -> None:
    switched = install_archive(archive, tmp_path / "new" / "index", toy_embedder())
    assert (switched.before, switched.now) == (None, current_fingerprint(built))
    assert whole(tmp_path / "new" / "index") == switched.now
    for path in built.glob("*/*"):
        assert (tmp_path / "new" / "index" / switched.now / path.name).read_bytes() == path.read_bytes()


def test_packing_twice_gives_the_same_bytes(built: Path, archive: Path, tmp_path: Path) -> None:
    again = pack_index(built, tmp_path / "again.tar.gz")
    assert again.path.read_bytes() == archive.read_bytes()
    assert archive.name == f"cg-rag-index-{again.fingerprint}.tar.gz"


def test_installing_what_is_current_changes_nothing(archive: Path, tmp_path: Path) -> None:
    first = install_archive(archive, tmp_path / "index")
    second = install_archive(archive, tmp_path / "index")
    assert (second.before, second.now) == (first.now, first.now)
    assert len(list(tmp_path.glob("index/*/"))) == 1


def test_rolling_back_and_forth_keeps_both(older: Path, archive: Path) -> None:
    old = whole(older)
    new = install_archive(archive, older).now
    assert whole(older) == new
    assert roll_back(older).now == old == whole(older)
    assert roll_back(older, new[:4]).now == new == whole(older)


def test_a_third_index_takes_the_place_of_the_first(older: Path, archive: Path, tmp_path: Path) -> None:
    first, second = whole(older), install_archive(archive, older).now
    source = write_jsonl(tmp_path / "third.jsonl", ARTICLES[:3])
    build_index([SourceSpec(source, "laws", ())], older, None)
    assert roll_back(older).now == second
    with pytest.raises(SourceInvalid, match="--to"):
        roll_back(older, first)


def test_rolling_back_names_what_is_missing(tmp_path: Path, older: Path) -> None:
    with pytest.raises(IndexMissing):
        roll_back(tmp_path / "nothing")
    with pytest.raises(SourceInvalid, match="没有保留"):
        roll_back(older)


def test_a_damaged_index_is_neither_packed_nor_rolled_back_to(older: Path, archive: Path) -> None:
    old = whole(older)
    new = install_archive(archive, older).now
    damaged = older / old / "lexical.rows"
    damaged.write_bytes(bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:])
    with pytest.raises(IndexDamaged, match=r"lexical\.rows"):
        roll_back(older)
    assert whole(older) == new
    (older / "current").write_text(f"{old}\n")
    with pytest.raises(IndexDamaged, match=r"lexical\.rows"):
        pack_index(older, older.parent / "x.tar.gz")
    assert not (older.parent / "x.tar.gz").exists()


def test_an_index_of_another_model_is_refused_unless_nobody_asks(older: Path, archive: Path) -> None:
    old = whole(older)
    with pytest.raises(SourceInvalid, match=r"toy .*--force|--force.*toy "):
        install_archive(archive, older, toy_embedder(name="other"))
    assert whole(older) == old
    assert install_archive(archive, older).now == whole(older)


def test_a_build_that_is_running_is_not_disturbed(older: Path, archive: Path) -> None:
    with build_lock(older):
        for change in (lambda: install_archive(archive, older), lambda: roll_back(older)):
            with pytest.raises(IndexBusy):
                change()
        # Packing only reads.
        assert pack_index(older, older.parent).fingerprint == current_fingerprint(older)


def test_a_place_that_cannot_be_written_is_one_sentence(built: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match=r"无法写入 .*目录不存在"):
        pack_index(built, tmp_path / "no" / "such.tar.gz")


# --- archives that are not what they say --------------------------------------------------------------------------


def members_of(archive: Path) -> Members:
    with tarfile.open(archive) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def write_members(path: Path, members: Members) -> None:
    with gzip.open(path, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for member, content in members:
            if member.isreg():
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def renamed(name: str) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        members[3][0].name = name
        return members

    return change


def linked(kind: bytes) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        members[3][0].type = kind
        members[3][0].linkname = "/etc/passwd"
        return members

    return change


def flipped(members: Members) -> Members:
    member, content = members[3]
    return [*members[:3], (member, bytes([content[0] ^ 1]) + content[1:]), *members[4:]]


def longer(members: Members) -> Members:
    return [*members[:3], (members[3][0], members[3][1] + b"x"), *members[4:]]


def other_manifest(members: Members) -> Members:
    """Of a later format: sealed by nobody, as a foreign program would write it."""
    manifest = json.loads(members[0][1]) | {"format_version": 99}
    return [(members[0][0], json.dumps(manifest).encode()), *members[1:]]


def in_a_folder(name: str) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        for member, _ in members:
            member.name = f"{name}/{member.name.partition('/')[2]}"
        return members

    return change


@pytest.mark.parametrize(
    "change",
    [
        renamed("../../evil"),
        renamed("/tmp/evil"),
        renamed("evil"),
        renamed("5e25f42c376ade22/../evil"),
        linked(tarfile.SYMTYPE),
        linked(tarfile.LNKTYPE),
        linked(tarfile.CHRTYPE),
        linked(tarfile.DIRTYPE),
        flipped,
        longer,
        other_manifest,
        in_a_folder(".."),
        in_a_folder("0123456789abcdef"),
        lambda members: members[1:],
        lambda members: members[:1],
        lambda members: members[:-1],
        lambda members: [*members, members[-1]],
        lambda members: [members[1], members[0], *members[2:]],
        lambda members: [],
    ],
)
def test_a_changed_archive_is_refused_by_name_and_leaves_everything_as_it_was(
    archive: Path, older: Path, tmp_path: Path, change: Callable[[Members], Members]
) -> None:
    old = whole(older)
    write_members(tmp_path / "bad.tar.gz", change(members_of(archive)))
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(SourceInvalid, match=r"bad\.tar\.gz"):
        install_archive(tmp_path / "bad.tar.gz", older)
    assert whole(older) == old
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_an_archive_cut_or_damaged_anywhere_is_refused(archive: Path, older: Path, tmp_path: Path) -> None:
    old = whole(older)
    good = archive.read_bytes()
    bad = tmp_path / "bad.tar.gz"
    for position in [0, 1, 2, 9, 30, *range(60, len(good) - 8, len(good) // 12)]:
        for content in (
            good[:position],
            good[:position] + bytes([good[position] ^ 0xFF]) + good[position + 1 :],
        ):
            bad.write_bytes(content)
            # A byte of the gzip header may change without a meaning: then all that was packed is there.
            try:
                assert install_archive(bad, older).now == current_fingerprint(older) != old
            except SourceInvalid as error:
                assert "bad.tar.gz" in str(error)
            else:
                assert 3 <= position < 10
                roll_back(older, old)
            assert whole(older) == old


def test_what_is_no_archive_is_refused(older: Path, tmp_path: Path) -> None:
    (tmp_path / "text.tar.gz").write_text("not an archive")
    for path in (tmp_path / "text.tar.gz", tmp_path / "none.tar.gz", tmp_path):
        with pytest.raises(SourceInvalid):
            install_archive(path, older)


# --- killed, or refused by the disk -------------------------------------------------------------------------------

INSTALLER = """
import os, sys
from pathlib import Path
from cg_rag.index.errors import IndexLibraryError
from cg_rag.index.transfer import install_archive
try:
    install_archive(Path(sys.argv[1]), Path(sys.argv[2]))
except IndexLibraryError as error:
    print(error, file=sys.stderr)
    os._exit(1)
os._exit(0)
"""


def run_traced(archive: Path, index_dir: Path, call: str, injection: str) -> subprocess.CompletedProcess[str]:
    trace = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}"]
    trace += ["-e", f"inject={call}:{injection}"]
    command = [*trace, sys.executable, "-B", "-c", INSTALLER, str(archive), str(index_dir)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(("call", "number"), [("write", 6), ("fsync", 5), ("rename", 1), ("rename", 2)])
def test_an_installation_killed_or_refused_leaves_the_old_index(
    archive: Path, older: Path, call: str, number: int
) -> None:
    old = whole(older)
    spare = shutil.copytree(older, older.with_name("spare"))
    killed = run_traced(archive, older, call, f"signal=KILL:when={number}")
    if killed.returncode == 0:
        pytest.skip("strace may not trace here")
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
    remove_leftovers(older)
    assert whole(older) == old
    refused = run_traced(archive, spare, call, f"error=ENOSPC:when={number}")
    assert (refused.returncode, whole(spare)) == (1, old)
    assert refused.stderr.count("磁盘空间不足") == refused.stderr.count("\n") == 1
    assert install_archive(archive, older).now == whole(older) != old

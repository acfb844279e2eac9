"""An index is opened whole or not at all, damage is named, and an open reader outlives its folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cg_rag.index import store
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.durable import build_lock
from cg_rag.index.errors import IndexDamaged, IndexMissing
from cg_rag.index.manifest import FILES, MANIFEST, RUN_FILES, VECTOR_FILES, encode_laws, encode_manifest
from cg_rag.index.store import POINTER, IndexReader, current_fingerprint, remove_leftovers
from tests.open_files import open_below
from tests.toy_embedder import DIM, toy_embedder

RECORDS = [
    {"law_name": "样例安全法", "article_number": "第一条", "contents": "为了加强样例安全，制定本法。"},
    {"law_name": "样例安全法", "article_number": "第二条", "contents": "样例单位应当进行安全教育。"},
    {"law_name": "样例安全法", "article_number": "第二条之一", "contents": "派遣人员适用前条。"},
    {"law_name": "GB99001-2025样例规范", "article_number": "6.0.5", "contents": "验收应符合下列规定。"},
    {
        "law_name": "GB99001-2025样例规范",
        "article_number": "6.0.5(1)",
        "contents": "搭设完成后应验收。",
        "chapter": "6 验收",
    },
    {"law_name": "样例手册", "contents": "没有条号的文字，见到火情立即报警。"},
]


def build(folder: Path, records: list[dict[str, Any]], index_dir: Path, tags: tuple[str, ...] = ()) -> Path:
    """With vectors, so that whatever holds for an index is tried on all of its files."""
    source = folder / "laws.jsonl"
    source.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    build_index([SourceSpec(source, "laws", tags)], index_dir, None, embedder=toy_embedder())
    return index_dir


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    return build(folder, RECORDS, folder / "index", ("site",))


@pytest.fixture
def index_dir(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(pristine, tmp_path / "index"))


def generation(index_dir: Path) -> Path:
    name = current_fingerprint(index_dir)
    assert name is not None
    return index_dir / name


# --- reading what was built ------------------------------------------------------------------------------------


def test_articles_come_back_as_they_were_given_in_the_order_asked_for(pristine: Path) -> None:
    reader = IndexReader.open(pristine)
    articles = reader.read_articles([4, 0, 5, 0])
    assert [article.article_number for article in articles] == ["6.0.5(1)", "第一条", "", "第一条"]
    assert articles[0].extra == {"chapter": "6 验收"}
    assert articles[0].tags == ("site",)
    assert articles[1].contents == "为了加强样例安全，制定本法。"
    assert reader.num_docs == len(RECORDS)
    assert [(run.law_name, run.start, run.count) for run in reader.runs] == [
        ("样例安全法", 0, 3),
        ("GB99001-2025样例规范", 3, 2),
        ("样例手册", 5, 1),
    ]


@pytest.mark.parametrize("row", [-1, 6, 1 << 40])
def test_a_row_outside_the_index_is_an_index_error(pristine: Path, row: int) -> None:
    with pytest.raises(IndexError):
        IndexReader.open(pristine).read_articles([row])


def test_an_article_is_found_by_its_key_and_a_part_under_its_parent(pristine: Path) -> None:
    reader = IndexReader.open(pristine)
    assert reader.find_rows(0, "2") == [1]
    assert reader.find_rows(0, "2-1") == [2]
    assert reader.find_rows(1, "6.0.5") == [3, 4]
    assert reader.find_rows(1, "2") == []
    assert reader.find_rows(2, "") == []


def test_two_keys_with_the_same_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cg_rag.index.generation.lookup_hash", lambda run_index, key: 7)
    index_dir = build(tmp_path, RECORDS, tmp_path / "index")
    monkeypatch.setattr(store, "lookup_hash", lambda run_index, key: 7)
    reader = IndexReader.open(index_dir)
    assert reader.find_rows(0, "1") == [0]
    assert reader.find_rows(1, "6.0.5(1)") == [4]


def test_the_arrays_of_a_reader_cannot_be_written(pristine: Path) -> None:
    lexical = IndexReader.open(pristine).lexical
    for part in (lexical.keys, lexical.indptr, lexical.rows, lexical.impacts):
        assert not part.flags.writeable
    assert len(lexical.indptr) == len(lexical.keys) + 1


def test_an_untouched_index_verifies_clean_and_adds_up_its_bytes(pristine: Path) -> None:
    reader = IndexReader.open(pristine)
    assert reader.verify() == []
    assert reader.bytes_on_disk == sum(path.stat().st_size for path in generation(pristine).iterdir())
    assert reader.fingerprint == current_fingerprint(pristine)
    assert reader.manifest["built_at"].endswith("Z")


def test_verifying_stops_when_it_is_told_to(index_dir: Path) -> None:
    flip(generation(index_dir) / "articles.jsonl", 5)
    assert IndexReader.open(index_dir).verify(lambda: True) == []


def test_a_reader_holds_few_descriptors_and_gives_them_all_back(pristine: Path) -> None:
    before = open_below(pristine)
    reader = IndexReader.open(pristine)
    assert 1 <= len(open_below(pristine)) - len(before) <= 16
    reader.close()
    del reader
    assert open_below(pristine) == before


# --- damage ----------------------------------------------------------------------------------------------------


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x20
    path.write_bytes(raw)


def named_files(index_dir: Path) -> set[str]:
    """What opening and verifying complain about; empty means that the damage went unseen."""
    try:
        reader = IndexReader.open(index_dir)
    except IndexDamaged as error:
        return {error.file}
    return {damage.file for damage in reader.verify()}


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def save_as_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


MUTATIONS: dict[str, Callable[[Path], Any]] = {
    "first byte": lambda path: flip(path, 0),
    "second byte": lambda path: flip(path, 1),
    "middle byte": lambda path: flip(path, path.stat().st_size // 2),
    "byte at a third": lambda path: flip(path, path.stat().st_size // 3),
    "last but one byte": lambda path: flip(path, -2),
    "last byte": lambda path: flip(path, -1),
    "cut by one": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "zeros in place": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "an array of another program": save_as_npy,
    "missing": Path.unlink,
    "a folder": replace_by_folder,
    "a pipe": replace_by_pipe,
}


@pytest.mark.parametrize("file", [MANIFEST, *FILES, *VECTOR_FILES])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_damage_to_a_file_is_reported_with_the_name_of_the_file(
    index_dir: Path, file: str, mutation: str
) -> None:
    MUTATIONS[mutation](generation(index_dir) / file)
    assert named_files(index_dir) == {file}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lexical.keys", "lookup.keys"),
        ("lexical.rows", "lexical.impacts"),
        ("articles.jsonl", "laws.json"),
        ("articles.offsets", "lexical.indptr"),
        ("scan.i8", "full.i16"),
        ("scan.scales", "full.scales"),
        ("scan.scales", "vectors.mean"),
    ],
)
def test_exchanged_files_are_seen(index_dir: Path, one: str, other: str) -> None:
    folder = generation(index_dir)
    (folder / one).rename(folder / "swap")
    (folder / other).rename(folder / one)
    (folder / "swap").rename(folder / other)
    assert named_files(index_dir) & {one, other}


@pytest.mark.parametrize(
    "file", ["articles.offsets", "lexical.rows", "lookup.rows", "lookup.keys", "vectors.mean"]
)
def test_damage_to_an_array_hits_every_scope(index_dir: Path, file: str) -> None:
    path = generation(index_dir) / file
    flip(path, path.stat().st_size // 2)
    [damage] = IndexReader.open(index_dir).verify()
    assert damage.runs is None
    assert len(damage.expected) == len(damage.found) == 64
    assert damage.expected != damage.found


def test_a_flipped_byte_in_the_texts_hits_only_the_law_it_stands_in(index_dir: Path) -> None:
    path = generation(index_dir) / "articles.jsonl"
    flip(path, path.read_bytes().index("搭设完成".encode()))
    [damage] = IndexReader.open(index_dir).verify()
    assert damage.runs == (1,)


@pytest.mark.parametrize("file", sorted({*RUN_FILES} & {*VECTOR_FILES}))
@pytest.mark.parametrize("run", [0, 1, 2])
@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_byte_in_a_vector_hits_only_the_law_it_belongs_to(
    index_dir: Path, file: str, run: int, place: int
) -> None:
    path = generation(index_dir) / file
    width = path.stat().st_size // len(RECORDS)
    law = IndexReader.open(index_dir).runs[run]
    flip(path, law.start * width if place == 0 else (law.start + law.count) * width - 1)
    [damage] = IndexReader.open(index_dir).verify()
    assert (damage.file, damage.runs) == (file, (run,))
    assert len(damage.expected) == len(damage.found) == 64


def test_damage_to_several_laws_names_each_of_them(index_dir: Path) -> None:
    path = generation(index_dir) / "scan.i8"
    flip(path, 0)
    flip(path, -1)
    flip(generation(index_dir) / "full.i16", 4 * 2 * DIM)
    damages = IndexReader.open(index_dir).verify()
    assert [(damage.file, damage.runs) for damage in damages] == [("scan.i8", (0, 2)), ("full.i16", (1,))]


def test_damage_in_a_large_law_is_found_without_aligned_rows(tmp_path: Path) -> None:
    """Runs begin anywhere, maps are given back to the system by whole pages."""
    many = [
        {"law_name": f"法{law}", "article_number": str(number), "contents": f"第{law}部第{number}条。"}
        for law in (1, 2, 3)
        for number in range(1501)
    ]
    index_dir = build(tmp_path, many, tmp_path / "index")
    flip(generation(index_dir) / "scan.i8", 1501 * DIM + 5000)
    flip(generation(index_dir) / "scan.scales", -3)
    damages = {damage.file: damage.runs for damage in IndexReader.open(index_dir).verify()}
    assert damages == {"scan.i8": (1,), "scan.scales": (2,)}


def test_laws_that_were_exchanged_while_open_locate_nothing(index_dir: Path) -> None:
    reader = IndexReader.open(index_dir)
    flip(generation(index_dir) / "laws.json", 20)
    flip(generation(index_dir) / "scan.i8", 0)
    assert {damage.file: damage.runs for damage in reader.verify()} == {"laws.json": None, "scan.i8": None}


@pytest.mark.parametrize("file", ["vectors.mean", "scan.scales", "full.scales"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_damage_though_the_digests_fit(
    index_dir: Path, file: str, value: float
) -> None:
    path = generation(index_dir) / file
    values = np.fromfile(path, "<f4")
    values[2] = value
    path.write_bytes(values.tobytes())
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    reseal(index_dir, lambda m: m["files"][file].update(sha256=digest))
    [damage] = IndexReader.open(index_dir).verify()
    assert (damage.file, damage.runs) == (file, None if file == "vectors.mean" else (0,))


def test_rows_that_vanished_from_the_disk_are_an_error_and_not_zeros(index_dir: Path) -> None:
    reader = IndexReader.open(index_dir)
    os.truncate(generation(index_dir) / "full.i16", 3 * 2 * DIM + 1)
    assert reader.read_full(np.array([2])).shape == (1, DIM)
    with pytest.raises(IndexDamaged, match=r"full\.i16"):
        reader.read_full(np.array([3]))


def test_damage_while_a_reader_is_open_is_seen_without_a_crash(index_dir: Path) -> None:
    reader = IndexReader.open(index_dir)
    os.truncate(generation(index_dir) / "lexical.rows", 0)
    os.truncate(generation(index_dir) / "articles.jsonl", 10)
    os.truncate(generation(index_dir) / "scan.i8", 0)
    os.truncate(generation(index_dir) / "full.i16", 5 * 2 * DIM)
    damages = {damage.file: damage for damage in reader.verify()}
    assert set(damages) == {"lexical.rows", "articles.jsonl", "scan.i8", "full.i16"}
    assert (damages["scan.i8"].runs, damages["full.i16"].runs) == (None, (2,))
    assert damages["lexical.rows"].found == "0 字节"
    assert damages["articles.jsonl"].runs == (0, 1, 2)


def test_a_broken_record_is_an_error_and_its_neighbours_are_still_read(index_dir: Path) -> None:
    path = generation(index_dir) / "articles.jsonl"
    flip(path, path.read_bytes().index(b"\n") + 1)
    reader = IndexReader.open(index_dir)
    with pytest.raises(IndexDamaged, match=r"articles\.jsonl"):
        reader.read_articles([1])
    assert reader.read_articles([0])[0].article_number == "第一条"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"contents"', b'"kontents"'),
        (b'"article_number":"', b'"article_number":["'),
        ("样例手册".encode(), "样例手冊".encode()),
    ],
)
def test_a_record_without_its_fields_or_of_another_law_is_an_error(
    index_dir: Path, old: bytes, new: bytes
) -> None:
    path = generation(index_dir) / "articles.jsonl"
    raw = path.read_bytes()
    at = raw.rindex(old)
    path.write_bytes((raw[:at] + new + raw[at + len(old) :])[: len(raw)])
    with pytest.raises(IndexDamaged):
        IndexReader.open(index_dir).read_articles([5])


def reseal(index_dir: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A manifest that lies and is consistent with itself: only the checks of its content can tell."""
    folder = generation(index_dir)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    change(manifest)
    raw = encode_manifest(manifest)
    (folder / MANIFEST).write_bytes(raw)
    name = json.loads(raw)["fingerprint"]
    folder.rename(index_dir / name)
    (index_dir / POINTER).write_text(name)


LIES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "another format": (MANIFEST, lambda m: m.update(format_version=99)),
    "the format before vectors": (MANIFEST, lambda m: m.update(format_version=1)),
    "no format": (MANIFEST, lambda m: m.pop("format_version")),
    "another tokeniser": (MANIFEST, lambda m: m.update(tokeniser="other")),
    "no count": (MANIFEST, lambda m: m.pop("num_docs")),
    "true as a count": (MANIFEST, lambda m: m.update(num_docs=True)),
    "negative count": (MANIFEST, lambda m: m.update(num_docs=-1)),
    "one article more": ("scan.scales", lambda m: m.update(num_docs=7)),
    "no file list": (MANIFEST, lambda m: m.update(files={})),
    "files as a list": (MANIFEST, lambda m: m.update(files=[])),
    "signed keys": ("lexical.keys", lambda m: m["files"]["lexical.keys"].update(dtype="<i8")),
    "floats": ("lexical.impacts", lambda m: m["files"]["lexical.impacts"].update(dtype="<f2")),
    "objects": ("lookup.keys", lambda m: m["files"]["lookup.keys"].update(dtype="|O")),
    "big-endian": ("articles.offsets", lambda m: m["files"]["articles.offsets"].update(dtype=">u8")),
    "another shape": ("lookup.rows", lambda m: m["files"]["lookup.rows"].update(shape=[3])),
    "two dimensions": ("lexical.rows", lambda m: m["files"]["lexical.rows"].update(shape=[1, 3])),
    "no digest": (MANIFEST, lambda m: m["files"]["laws.json"].update(sha256="x")),
    "no corpora": (MANIFEST, lambda m: m.update(corpora=[{}])),
    "no word about the model": (MANIFEST, lambda m: m.update(embedding=None)),
    "half a word about the model": (MANIFEST, lambda m: m["embedding"].pop("kernel_class")),
    "a number for the model": (MANIFEST, lambda m: m["embedding"].update(model=3)),
    "another element type": (MANIFEST, lambda m: m.update(dtype="float16")),
    "one dimension less": (MANIFEST, lambda m: m.update(dim=7)),
    "no dimensions": (MANIFEST, lambda m: m.update(dim=0)),
    "true as dimensions": (MANIFEST, lambda m: m.update(dim=True)),
    "one dimension less throughout": (
        "vectors.mean",
        lambda m: (m.update(dim=7), m["embedding"].update(dim=7)),
    ),
    "one part of the vectors missing": (MANIFEST, lambda m: m["files"].pop("full.i16")),
    "vectors promised and absent": (
        MANIFEST,
        lambda m: [m["files"].pop(name) for name in VECTOR_FILES],
    ),
    "float scan": ("scan.i8", lambda m: m["files"]["scan.i8"].update(dtype="<f4")),
    "rows for columns": ("full.i16", lambda m: m["files"]["full.i16"]["shape"].reverse()),
    "a flat scan": ("scan.i8", lambda m: m["files"]["scan.i8"].update(shape=[6 * 8])),
    "scales of another count": ("scan.scales", lambda m: m["files"]["scan.scales"].update(shape=[5])),
    "vectors of another size": ("full.scales", lambda m: m["files"]["full.scales"].update(bytes=20)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_does_not_fit_is_refused(index_dir: Path, lie: str) -> None:
    file, change = LIES[lie]
    reseal(index_dir, change)
    with pytest.raises(IndexDamaged) as caught:
        IndexReader.open(index_dir)
    assert caught.value.file == file


def test_laws_that_end_before_the_last_article_are_refused(tmp_path: Path) -> None:
    (tmp_path / "laws.jsonl").write_text(json.dumps(RECORDS[0]) + "\n", "utf-8")
    build_index([SourceSpec(tmp_path / "laws.jsonl", "laws", ())], tmp_path / "index", None)
    reseal(tmp_path / "index", lambda m: m.update(num_docs=2))
    with pytest.raises(IndexDamaged, match="条文总数"):
        IndexReader.open(tmp_path / "index")


def test_a_manifest_of_another_generation_is_refused(index_dir: Path) -> None:
    folder = generation(index_dir)
    folder.rename(index_dir / "0123456789abcdef")
    (index_dir / POINTER).write_text("0123456789abcdef\n")
    with pytest.raises(IndexDamaged, match="指纹"):
        IndexReader.open(index_dir)


def test_laws_with_a_gap_between_them_are_refused(index_dir: Path) -> None:
    runs = list(IndexReader.open(index_dir).runs)
    raw = encode_laws([runs[0], runs[2]])
    with pytest.raises(IndexDamaged, match="不连续"):
        store.parse_laws(raw, 4)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"../../etc",
        b"/etc",
        b"..",
        b"0123456789ABCDEF",
        b"0123456789abcdef/..",
        b"\xff\xfe",
        b"a" * 99,
        b"0123456789abcdef\n\n",
        b"0123456789abcdef.0",
        b"0123456789abcdef\0",
    ],
)
def test_a_pointer_that_is_no_name_of_a_generation_is_damage(index_dir: Path, content: bytes) -> None:
    (index_dir / POINTER).write_bytes(content)
    with pytest.raises(IndexDamaged, match=POINTER):
        IndexReader.open(index_dir)
    with pytest.raises(IndexDamaged, match=POINTER):
        current_fingerprint(index_dir)


def test_a_pointer_to_a_folder_that_is_gone_is_damage(index_dir: Path) -> None:
    shutil.rmtree(generation(index_dir))
    with pytest.raises(IndexDamaged, match=POINTER):
        IndexReader.open(index_dir)


def test_a_directory_without_an_index_is_missing_and_not_damaged(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(IndexMissing):
            IndexReader.open(path)
        assert current_fingerprint(path) is None


# --- replaced while in use ---------------------------------------------------------------------------------------


def changed(number: int) -> list[dict[str, Any]]:
    return [
        *RECORDS,
        {"law_name": "样例新法", "article_number": f"第{number}条", "contents": f"第{number}版。"},
    ]


def test_an_open_reader_answers_on_after_its_folder_was_deleted(tmp_path: Path) -> None:
    index_dir = build(tmp_path, RECORDS, tmp_path / "index")
    reader = IndexReader.open(index_dir)
    full = reader.read_full(np.arange(6))
    assert reader.vectors is not None
    scan = reader.vectors.scan.copy()
    for number in (1, 2):
        build(tmp_path, changed(number), index_dir)
    assert not (index_dir / reader.fingerprint).exists()
    assert reader.read_articles([4])[0].article_number == "6.0.5(1)"
    assert reader.find_rows(1, "6.0.5") == [3, 4]
    assert np.array_equal(reader.read_full(np.arange(6)), full)
    assert np.array_equal(reader.vectors.scan, scan)
    assert reader.verify() == []
    assert IndexReader.open(index_dir).num_docs == len(RECORDS) + 1


def test_an_index_of_the_format_before_vectors_is_refused_with_what_to_do(index_dir: Path) -> None:
    reseal(index_dir, lambda m: m.update(format_version=1))
    with pytest.raises(IndexDamaged, match="请重新运行 cg-rag index build（应为 2，实为 1）"):
        IndexReader.open(index_dir)


def test_opening_in_the_middle_of_replacements_always_gives_one_whole_generation(tmp_path: Path) -> None:
    index_dir = build(tmp_path, changed(0), tmp_path / "index")
    failures: list[BaseException] = []
    opened: set[str] = set()
    done = threading.Event()

    def look() -> None:
        try:
            while not opened or not done.is_set():
                reader = IndexReader.open(index_dir)
                last = reader.read_articles([reader.num_docs - 1])[0]
                assert last.contents == f"{last.article_number.removesuffix('条')}版。"
                [vector] = toy_embedder().embed_articles([last])
                assert reader.vectors is not None
                stored = reader.read_full(np.array([6]))[0] * reader.vectors.full_scales[6]
                assert stored @ vector > 0.9999
                assert reader.verify() == []
                opened.add(reader.fingerprint)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(1, 25):
        build(tmp_path, changed(number), index_dir)
    done.set()
    thread.join()
    assert failures == []
    assert opened


def test_opening_follows_the_pointer_when_the_folder_vanished_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_dir = build(tmp_path, RECORDS, tmp_path / "index")
    current = current_fingerprint(index_dir)
    answers = iter(["0123456789abcdef", current, current])
    monkeypatch.setattr(store, "read_pointer", lambda _: next(answers))
    assert IndexReader.open(index_dir).fingerprint == current


# --- leftovers -----------------------------------------------------------------------------------------------------


def test_leftovers_of_a_killed_build_are_removed_and_the_index_stays(index_dir: Path) -> None:
    folder = index_dir / ".tmp-1-abc"
    folder.mkdir()
    (folder / "articles.jsonl").write_bytes(b"half")
    (index_dir / ".tmp-2-pointer").write_bytes(b"0123")
    assert remove_leftovers(index_dir) == [".tmp-1-abc", ".tmp-2-pointer"]
    assert remove_leftovers(index_dir) == []
    assert IndexReader.open(index_dir).verify() == []


def test_leftovers_stay_while_a_build_runs(index_dir: Path) -> None:
    (index_dir / ".tmp-1-abc").mkdir()
    with build_lock(index_dir):
        assert remove_leftovers(index_dir) == []
    assert remove_leftovers(index_dir) == [".tmp-1-abc"]


def test_removing_leftovers_makes_no_directory(tmp_path: Path) -> None:
    assert remove_leftovers(tmp_path / "absent") == []
    assert not (tmp_path / "absent").exists()

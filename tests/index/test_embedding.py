"""Every article gets the vector of its own text, each text is embedded once, and a kill costs at most one of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cg_rag.index.build import BuildReport, SourceSpec, build_index
from cg_rag.index.corpus import Article
from cg_rag.index.dense import DenseSearcher
from cg_rag.index.embedder import Embedder, OnnxEmbedder
from cg_rag.index.embedding import describe_embedding
from cg_rag.index.errors import BuildFailed, IndexBusy
from cg_rag.index.journal import journal_path
from cg_rag.index.model_errors import Cancelled, ModelFailed
from cg_rag.index.store import IndexReader, current_fingerprint, remove_leftovers
from cg_rag.index.vectors import BLOCK_ROWS, quantise
from tests.onnx_fixtures import make_bert
from tests.toy_embedder import DIM, ToyModel, toy_embedder, vector_of

ROOT = Path(__file__).resolve().parents[2]


class Site:
    """A source that changes, the index made of it, and a model that remembers what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "laws.jsonl"
        self.index_dir = folder / "index"

    def write(self, *texts: str, law: str = "甲法") -> None:
        records = [
            {"law_name": f"{law}{number % 3}", "article_number": str(number), "contents": text}
            for number, text in enumerate(texts)
        ]
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        self.source.write_text("".join(lines), "utf-8")

    def build(self, embedder: Embedder | None = None, **options: Any) -> BuildReport:
        spec = SourceSpec(self.source, "laws", ())
        return build_index([spec], self.index_dir, None, embedder=embedder, **options)

    def open(self) -> IndexReader:
        reader = IndexReader.open(self.index_dir)
        assert reader.verify() == []
        return reader

    def check(self, embedder: Embedder | None = None) -> IndexReader:
        """Vectors and scan of every row against a slow twin: all texts embedded anew, all arrays in memory."""
        embedder = embedder or toy_embedder()
        reader = self.open()
        rows = np.arange(reader.num_docs)
        vectors = embedder.embed_articles(reader.read_articles(rows.tolist()))
        twin = quantise(vectors, embedder.dim)
        assert reader.vectors is not None
        assert twin.full is not None
        assert np.array_equal(reader.read_full(rows), twin.full)
        for name in ("mean", "scan", "scales", "full_scales"):
            assert np.array_equal(getattr(reader.vectors, name), getattr(twin, name)), name
        assert reader.manifest["embedding"] == describe_embedding(embedder)
        return reader

    def files(self) -> list[str]:
        """What lies in the index directory beside generations."""
        return sorted(path.name for path in self.index_dir.iterdir() if not path.is_dir())


WHOLE = [".lock", "current"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.write(*(f"第{number}款，应当验收。" for number in range(7)))
    return site


def texts(count: int, version: str = "") -> list[str]:
    return [f"第{number}款{version}，应当验收。" for number in range(count)]


# --- what is on the disk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_every_row_holds_the_vector_of_its_own_text(site: Site, batch: int) -> None:
    model = ToyModel()
    report = site.build(toy_embedder(model, batch=batch))
    reader = site.check()
    assert (report.embedded, report.reused_vectors, len(model.texts)) == (7, 0, 7)
    assert (reader.manifest["dim"], reader.manifest["dtype"]) == (DIM, "int8+int16")
    assert site.files() == WHOLE
    full = reader.read_full(np.arange(7)) * reader.vectors.full_scales[:, None]  # type: ignore[union-attr]
    for row, article in zip(full, reader.read_articles(range(7)), strict=True):
        expected = vector_of(f"{article.law_name}{article.article_number} {article.contents}")
        assert float(row @ expected) > 0.9999


def test_vectors_are_written_and_read_in_blocks(site: Site) -> None:
    site.write(*texts(2 * BLOCK_ROWS + 7))
    site.build(toy_embedder(batch=64))
    site.check()


def test_an_onnx_model_makes_the_vectors_of_an_index(site: Site, tmp_path: Path) -> None:
    embedder = OnnxEmbedder(make_bert(tmp_path / "model").folder)
    report = site.build(embedder)
    reader = site.check(embedder)
    assert (report.embedded, reader.manifest["embedding"]["kernel_class"]) == (7, embedder.kernel_class)
    site.write(*texts(3), "新的条文。")
    assert site.build(embedder).embedded == 1
    site.check(embedder)


def test_an_index_without_an_embedder_has_no_trace_of_vectors(site: Site) -> None:
    report = site.build()
    reader = site.open()
    assert reader.vectors is None
    assert (reader.manifest["dim"], reader.manifest["dtype"], reader.manifest["embedding"]) == (0, None, None)
    assert (report.embedded, report.reused_vectors, report.embedding_seconds) == (0, 0, 0.0)
    assert not [name for name in reader.manifest["files"] if name.startswith(("scan", "full", "vectors"))]
    assert site.files() == WHOLE
    with pytest.raises(ValueError, match="没有向量"):
        reader.read_full(np.array([0]))


def test_the_same_articles_and_model_give_the_same_fingerprint_however_they_were_built(site: Site) -> None:
    site.write(*texts(7), "将被删除。")
    site.build(toy_embedder())
    site.write(*texts(7))
    grown = site.build(toy_embedder())
    assert (grown.embedded, grown.reused_vectors) == (0, 7)
    shutil.rmtree(site.index_dir)
    assert site.build(toy_embedder(batch=5)).fingerprint == grown.fingerprint
    assert site.build().fingerprint != grown.fingerprint


# --- what is not embedded again ------------------------------------------------------------------------------------


def test_only_what_changed_is_embedded_and_the_rest_is_kept_bit_for_bit(site: Site) -> None:
    site.build(toy_embedder())
    before = {
        article.contents: row.tobytes()
        for row, article in zip(
            site.open().read_full(np.arange(7)), site.open().read_articles(range(7)), strict=True
        )
    }
    site.write("新的第一款。", *texts(7)[1:], "第八款。")
    model = ToyModel()
    report = site.build(toy_embedder(model))
    assert [text.split()[1] for text in model.texts] == ["新的第一款。", "第八款。"]
    assert (report.embedded, report.reused_vectors, report.changed) == (2, 6, True)
    reader = site.check()
    for row, article in zip(reader.read_full(np.arange(8)), reader.read_articles(range(8)), strict=True):
        assert row.tobytes() == before.get(article.contents, row.tobytes())


def test_rows_that_moved_or_changed_their_corpus_keep_their_vectors(site: Site) -> None:
    site.build(toy_embedder())
    lines = site.source.read_text("utf-8").splitlines(keepends=True)
    site.source.write_text("".join(reversed(lines)), "utf-8")
    model = ToyModel()
    spec = SourceSpec(site.source, "other", ("tag",))
    build_index([spec], site.index_dir, None, embedder=toy_embedder(model))
    assert model.texts == []
    site.check()


def test_a_text_that_stands_more_than_once_is_embedded_once(site: Site) -> None:
    record = {"law_name": "甲法", "article_number": "1", "contents": "同样的条文。"}
    site.source.write_text(f"{json.dumps(record)}\n" * 5 + json.dumps(record | {"chapter": "一"}), "utf-8")
    model = ToyModel()
    report = site.build(toy_embedder(model))
    assert (len(model.texts), report.embedded, report.num_docs) == (1, 1, 6)
    site.check()


def test_nothing_is_embedded_when_nothing_changed(site: Site) -> None:
    site.build(toy_embedder())
    model = ToyModel()
    report = site.build(toy_embedder(model))
    assert (report.changed, report.embedded, report.reused_vectors, model.texts) == (False, 0, 7, [])


@pytest.mark.parametrize("other", ["fingerprint", "kernel class"])
def test_vectors_of_another_model_or_cpu_are_all_made_anew_though_no_source_changed(
    site: Site, other: str
) -> None:
    site.build(toy_embedder())
    embedder = toy_embedder(model := ToyModel(), name="toy" if other == "kernel class" else "new")
    if other == "kernel class":
        embedder.kernel_class = "avx2"
    report = site.build(embedder)
    assert (report.changed, report.embedded, report.reused_vectors, len(model.texts)) == (True, 7, 0, 7)
    assert "toy" in report.notes[0]
    assert embedder.kernel_class in report.notes[0]
    assert "不可混用" in report.notes[0]
    site.check(embedder)


def test_vectors_are_added_to_an_index_and_dropped_from_it_without_reading_a_source_again(site: Site) -> None:
    assert site.build().changed
    added = site.build(toy_embedder())
    assert (added.changed, added.embedded, added.corpora[0].reused) == (True, 7, True)
    site.check()
    dropped = site.build()
    assert (dropped.changed, dropped.corpora[0].reused) == (True, True)
    assert "不再保留" in dropped.notes[0]
    assert site.open().vectors is None


def test_force_takes_no_vector_from_the_old_index(site: Site) -> None:
    name = site.build(toy_embedder()).fingerprint
    report = site.build(toy_embedder(), force=True)
    assert (report.embedded, report.reused_vectors, report.fingerprint) == (7, 0, name)


def test_a_damaged_index_gives_no_vectors(site: Site) -> None:
    name = site.build(toy_embedder()).fingerprint
    path = site.index_dir / name / "full.i16"
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)
    report = site.build(toy_embedder())
    assert (report.embedded, report.fingerprint) == (7, f"{name}.1")
    assert "full.i16" in report.notes[0]
    site.check()


# --- interrupted and resumed ---------------------------------------------------------------------------------------


def fail_at(number: int, error: BaseException) -> Callable[[int], None]:
    def before(done: int) -> None:
        if done == number:
            raise error

    return before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ModelFailed("toy", "x"), ConnectionError("refused")])
@pytest.mark.parametrize("number", range(7))
def test_a_build_that_is_interrupted_embeds_no_text_twice(
    site: Site, number: int, error: BaseException
) -> None:
    site.build()
    old = current_fingerprint(site.index_dir)
    first = ToyModel(before=fail_at(number, error))
    with pytest.raises((KeyboardInterrupt, BuildFailed)):
        site.build(toy_embedder(first))
    assert current_fingerprint(site.index_dir) == old
    assert remove_leftovers(site.index_dir) == []
    second = ToyModel()
    report = site.build(toy_embedder(second))
    assert len(first.texts) == number
    assert len({*first.texts, *second.texts}) == len(first.texts + second.texts) == 7
    assert (report.embedded, report.reused_vectors) == (7 - number, number)
    assert [note for note in report.notes if "接着上次" in note] == (
        [f"接着上次中断的构建，已有 {number} 条向量"] if number else []
    )
    site.check()
    assert site.files() == WHOLE


def test_a_build_that_is_told_to_stop_keeps_what_it_made(site: Site) -> None:
    model = ToyModel()
    with pytest.raises(Cancelled):
        site.build(toy_embedder(model), should_stop=lambda: len(model.texts) == 3)
    assert site.build(toy_embedder()).embedded == 4
    site.check()


def test_a_build_without_vectors_stops_too_when_it_is_told(site: Site) -> None:
    with pytest.raises(Cancelled):
        site.build(should_stop=lambda: True)
    assert site.files() == [".lock"]


def test_an_interrupted_build_goes_on_after_the_sources_were_edited(site: Site) -> None:
    with pytest.raises(KeyboardInterrupt):
        site.build(toy_embedder(ToyModel(before=fail_at(5, KeyboardInterrupt()))))
    site.write("改过的第一款。", *texts(7)[1:])
    report = site.build(toy_embedder())
    assert (report.embedded, report.reused_vectors) == (3, 4)  # rows are in order of law: 0 3 6 1 4, then 2 5
    site.check()


def test_a_lexical_build_in_between_leaves_the_vectors_that_were_made(site: Site) -> None:
    with pytest.raises(KeyboardInterrupt):
        site.build(toy_embedder(ToyModel(before=fail_at(5, KeyboardInterrupt()))))
    site.build()
    assert site.build(toy_embedder()).embedded == 2


def test_a_journal_of_another_model_or_cpu_is_not_used_and_that_of_a_model_stays(site: Site) -> None:
    with pytest.raises(KeyboardInterrupt):
        site.build(toy_embedder(ToyModel(before=fail_at(5, KeyboardInterrupt()))))
    assert site.build(toy_embedder(name="new")).embedded == 7
    assert site.files() == sorted([*WHOLE, journal_path(site.index_dir, toy_embedder().fingerprint).name])
    elsewhere = toy_embedder()
    elsewhere.kernel_class = "avx2"
    assert site.build(elsewhere).embedded == 7
    assert site.files() == WHOLE


def test_a_journal_whose_index_was_published_goes_with_the_next_build(site: Site) -> None:
    """A kill between publishing and cleaning up."""
    path = journal_path(site.index_dir, toy_embedder().fingerprint)
    with pytest.raises(KeyboardInterrupt):
        site.build(toy_embedder(ToyModel(before=fail_at(5, KeyboardInterrupt()))))
    raw = path.read_bytes()
    site.build(toy_embedder())
    path.write_bytes(raw)
    assert not site.build(toy_embedder()).changed
    assert site.files() == WHOLE


KILLED = """
import os, signal, sys
from pathlib import Path
from cg_rag.index.build import SourceSpec, build_index
from tests.toy_embedder import ToyModel, toy_embedder
def before(done):
    if done == int(sys.argv[3]):
        os.kill(os.getpid(), int(sys.argv[4]))
spec = SourceSpec(Path(sys.argv[1]), "laws", ())
build_index([spec], Path(sys.argv[2]), None, embedder=toy_embedder(ToyModel(before=before)))
"""


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_goes_on_where_it_was(site: Site, kill: signal.Signals) -> None:
    arguments = [str(site.source), str(site.index_dir), "4", str(int(kill))]
    outcome = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT, timeout=60)
    assert outcome.returncode == -kill
    report = site.build(toy_embedder())
    assert (report.embedded, report.reused_vectors) == (3, 4)
    site.check()


SMALL_FILES = """
import resource, sys
from pathlib import Path
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.errors import BuildFailed
from cg_rag.index.store import IndexReader
from tests.toy_embedder import ToyModel, toy_embedder
source, index_dir = Path(sys.argv[1]), Path(sys.argv[2])
name = IndexReader.open(index_dir).fingerprint
model = ToyModel(dim=256)
failed = []
for limit in range(0, 80000, 397):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        build_index([SourceSpec(source, "laws", ())], index_dir, None, embedder=toy_embedder(model))
    except BuildFailed as error:
        assert "文件大小超出限制" in str(error), error
        failed.append(len(model.texts))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    reader = IndexReader.open(index_dir)
    assert reader.verify() == []
    if reader.fingerprint != name:
        break
    assert not list(index_dir.glob(".tmp-*")), limit
else:
    raise SystemExit("never enough room")
# Each time, only the one text whose record did not fit was embedded for nothing.
assert len(set(model.texts)) == 60 and len(set(failed)) > 20, (len(model.texts), failed)
assert len(model.texts) - 60 <= len(failed), (len(model.texts), failed)
assert sorted(path.name for path in index_dir.iterdir() if not path.is_dir()) == [".lock", "current"]
"""


def test_a_disk_that_is_full_at_any_size_of_file_leaves_the_old_index_and_the_vectors(site: Site) -> None:
    site.build()
    site.write(*texts(60))
    arguments = [str(site.source), str(site.index_dir)]
    # -B: a byte code file that the limit cuts off would be there for whoever imports the module next.
    command = [sys.executable, "-B", "-c", SMALL_FILES, *arguments]
    outcome = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    site.check(toy_embedder(ToyModel(dim=256)))


def test_journals_of_builds_that_never_end_do_not_fill_the_disk(site: Site) -> None:
    path = journal_path(site.index_dir, toy_embedder().fingerprint)
    sizes = []
    for number in range(12):
        site.write(*texts(20, f"（{number}）"))
        with pytest.raises(KeyboardInterrupt):
            site.build(toy_embedder(ToyModel(before=fail_at(19, KeyboardInterrupt()))))
        sizes.append(path.stat().st_size)
    assert max(sizes) < 3 * sizes[0]


def test_the_lock_is_held_while_vectors_are_made(site: Site) -> None:
    def before(done: int) -> None:
        with pytest.raises(IndexBusy):
            site.build()
        assert remove_leftovers(site.index_dir) == []

    site.build(toy_embedder(ToyModel(before=before)))
    site.check()


# --- embedders that do not keep their word -------------------------------------------------------------------------------


class Liar:
    """Gives what it was told to give, whatever the article."""

    name, dim, fingerprint, kernel_class = "liar", DIM, "0" * 16, "vnni"

    def __init__(self, answers: Callable[[Iterable[Article]], Iterator[Any]]) -> None:
        self._answers = answers

    def embed_query(self, text: str, cancel: object = None) -> Any:
        raise AssertionError("a build embeds no questions")

    def article_text(self, article: Article) -> str:
        return article.contents

    def embed_articles(self, articles: Iterable[Article], *_: object) -> Iterator[Any]:
        return self._answers(articles)


def spoil(bad: Any) -> Callable[[Iterable[Article]], Iterator[Any]]:
    """Good vectors but for that of article 3."""

    def answers(articles: Iterable[Article]) -> Iterator[Any]:
        for article in articles:
            yield bad if article.article_number == "3" else vector_of(article.contents)

    return answers


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (np.zeros(DIM, np.float32), "零向量"),
        (np.full(DIM, np.nan, np.float32), "有限"),
        (np.full(DIM, np.inf, np.float32), "有限"),
        (np.full(DIM, 1e6, np.float32), "1024"),
        (np.ones(DIM + 1, np.float32), "形状"),
        (np.ones((1, DIM), np.float32), "形状"),
        (np.float32(1), "形状"),
        ("text", "text"),
    ],
)
def test_a_vector_that_is_none_fails_the_build_and_names_the_article(
    site: Site, bad: Any, reason: str
) -> None:
    site.build()
    name = current_fingerprint(site.index_dir)
    with pytest.raises(BuildFailed, match=f"《甲法0》3.*{reason}.*原有索引未受影响"):
        site.build(Liar(spoil(bad)))
    assert current_fingerprint(site.index_dir) == name
    report = site.build(Liar(spoil(vector_of("x"))))
    assert report.embedded == 6  # rows are in order of law: article 0 came before article 3


def take_all(articles: Iterable[Article]) -> list[Any]:
    return [vector_of(article.contents) for article in articles]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (lambda articles: iter(take_all(articles)[:-1]), "《甲法2》5生成向量.*少于"),
        (lambda articles: iter(take_all(articles)[:-2]), "《甲法2》2起的 2 条条文.*少于"),
        (lambda articles: iter(()), "少于"),
        (lambda articles: iter([*take_all(articles), vector_of("x")]), "多于"),
    ],
)
def test_too_few_vectors_or_too_many_fail_the_build(
    site: Site, answers: Callable[[Iterable[Article]], Iterator[Any]], message: str
) -> None:
    with pytest.raises(BuildFailed, match=message):
        site.build(Liar(answers))
    assert current_fingerprint(site.index_dir) is None


def test_a_batch_that_fails_is_named_by_its_first_article_and_the_endpoint_by_its_own_words(
    site: Site,
) -> None:
    model = ToyModel(before=fail_at(3, ConnectionError("connection refused")))
    with pytest.raises(BuildFailed, match=r"《甲法1》1起的 3 条条文.*connection refused") as caught:
        site.build(toy_embedder(model, batch=3))
    assert "磁盘" not in str(caught.value)


def test_errors_that_nobody_expected_are_not_hidden_and_what_was_made_is_kept(site: Site) -> None:
    with pytest.raises(ZeroDivisionError):
        site.build(toy_embedder(ToyModel(before=fail_at(3, ZeroDivisionError()))))
    assert site.build(toy_embedder()).embedded == 4


# --- reading ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("large"))
    site.write(*texts(300))
    site.build(toy_embedder(batch=64))
    return site


def test_rows_are_read_in_any_order_and_more_than_once(large: Site) -> None:
    reader = large.open()
    every = reader.read_full(np.arange(300))
    generator = np.random.default_rng(1)
    for count in (0, 1, 2, 7, 300, 1000):
        rows = generator.integers(0, 300, count)
        assert np.array_equal(reader.read_full(rows), every[rows])
        ascending = np.unique(rows)
        assert np.array_equal(reader.read_full(ascending), every[ascending])
    assert reader.read_full(np.array([], np.int64)).shape == (0, DIM)


def test_a_search_in_an_open_index_finds_what_numpy_finds(large: Site) -> None:
    reader = large.open()
    assert reader.vectors is not None
    searcher = DenseSearcher(reader.vectors, reader.read_full)
    every = reader.read_full(np.arange(300)) * reader.vectors.full_scales[:, None].astype(np.float64)
    for text in ("脚手架", "应当验收"):
        query = vector_of(text)
        rows, scores = searcher.search(query, [(10, 120), (200, 300)], 12)
        cosines = every @ query
        cosines[:10] = cosines[120:200] = -2
        assert rows.tolist() == np.argsort(-cosines, kind="stable")[:12].tolist()
        assert np.allclose(scores, cosines[rows], atol=1e-6)


@pytest.mark.parametrize("rows", [[-1], [300], [0, 1 << 40], [5, -3, 2]])
def test_a_row_outside_the_index_is_an_index_error(large: Site, rows: list[int]) -> None:
    with pytest.raises(IndexError):
        large.open().read_full(np.array(rows))


def test_many_threads_read_rows_from_one_reader(large: Site) -> None:
    reader = large.open()
    every = reader.read_full(np.arange(300))
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        generator = np.random.default_rng(seed)
        try:
            for _ in range(200):
                rows = generator.integers(0, 300, 50)
                assert np.array_equal(reader.read_full(rows), every[rows])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_int16_rows_stay_on_the_disk_and_only_what_is_scanned_counts_as_memory(large: Site) -> None:
    reader = large.open()
    path = large.index_dir / reader.fingerprint
    sizes = {name: (path / name).stat().st_size for name in os.listdir(path)}
    assert sizes["full.i16"] == 300 * DIM * 2
    assert sizes["scan.i8"] == 300 * DIM
    assert reader.bytes_resident == sum(sizes.values()) - sizes["full.i16"] - sizes["articles.jsonl"]
    mapped = Path("/proc/self/maps").read_text()
    assert f"{reader.fingerprint}/scan.i8" in mapped
    assert f"{reader.fingerprint}/full.i16" not in mapped
    assert reader.vectors is not None
    assert reader.vectors.full is None
    for array in (reader.vectors.mean, reader.vectors.scan, reader.vectors.scales):
        assert not array.flags.writeable


# --- progress --------------------------------------------------------------------------------------------------------------


class Notes:
    def __init__(self) -> None:
        self.steps: list[list[Any]] = []

    def start(self, label: str, total: int | None) -> None:
        self.steps.append([label, total, 0])

    def advance(self, count: int) -> None:
        self.steps[-1][2] += count

    def finish(self) -> None:
        pass


def test_progress_counts_what_is_embedded_and_not_what_was_there(site: Site) -> None:
    spec = SourceSpec(site.source, "laws", ())
    for expected in (["生成向量", 7, 7], ["生成向量", 2, 2]):
        notes = Notes()
        build_index([spec], site.index_dir, notes, embedder=toy_embedder())
        assert expected in notes.steps
        site.write(*texts(6), "新的第七款。", "新的第八款。")

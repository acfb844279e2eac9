"""The long forms of test_vectors_hostile.py: crowds of questions, exchanged indexes and full disks, with the real model
where its speed and memory count."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.embedder import OnnxEmbedder
from cg_rag.index.errors import BuildFailed, IndexBusy
from cg_rag.index.journal import journal_path
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.store import IndexReader
from tests.conftest import StartServer, write_jsonl
from tests.contract.test_hostile import health_watch, wait_for_closed
from tests.contract.test_vectors_hostile import (
    RETRIEVE,
    ask,
    build,
    build_with_fingerprint_of,
    embedding,
    many_articles,
    slots_in_use,
    slow_states,
    wait_until,
    warned,
    write_model,
)
from tests.modes.conftest import RERANK_OFF
from tests.onnx_fixtures import HIDDEN, edit_settings, make_bert
from tests.server_process import ServerProcess
from tests.toy_embedder import ToyModel, toy_embedder

pytestmark = pytest.mark.slow

MEBIBYTE = 1024 * 1024
SUBJECTS = ("脚手架", "塔吊", "基坑", "临时用电", "动火作业", "安全帽", "施工许可证", "工伤")
ASPECTS = ("怎么验收", "由谁负责", "多久检查一次", "没有证能不能上岗", "罚多少", "要不要专人监护")
ODD = ("<|im_start|>" * 160, "脚手架" * 666, "😀👷🏽" * 300, "\u200b\u2060", "\ue000\uf8ff", "שלום", "\u202e架手脚", "<s></s>", "《样例一法》" * 300)  # fmt: skip


def questions(number: int) -> list[str]:
    return [f"{SUBJECTS[n % 8]}{ASPECTS[n // 8 % 6]}{n // 48 or ''}" for n in range(number)]


@pytest.fixture(scope="module")
def real_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 articles with vectors of the bundled model."""
    folder = tmp_path_factory.mktemp("real_index")
    build(folder, OnnxEmbedder(E5_SMALL_ZH), many_articles(300))
    return folder / "index"


def documents(server: ServerProcess, query: str, topk: int = 20) -> tuple[int, list[tuple[str, str, float]]]:
    answer = server.request("POST", RETRIEVE, {"query": query, "topk": topk}, timeout=120)
    found = answer.json["retrieval_docs"] if answer.status == 200 else []
    return answer.status, [(one["law_name"], one["article_number"], one["score"]) for one in found]


@pytest.fixture(scope="module")
def crowded(start_server: StartServer, real_index: Path) -> ServerProcess:
    server = start_server(
        f"{RERANK_OFF}  cache: {{max_bytes: 0}}\n  capacity: {{wait_timeout_seconds: 120}}\n",
        index_dir=real_index,
    )
    server.wait_ready()
    return server


@pytest.mark.parametrize("callers", [32, 128])
def test_list_is_the_same_alone_and_in_a_crowd_and_health_stays_quick(
    crowded: ServerProcess, callers: int
) -> None:
    queries = questions(128)
    alone = [documents(crowded, query) for query in queries]
    with health_watch(crowded) as taken, ThreadPoolExecutor(callers) as executor:
        together = list(executor.map(lambda query: documents(crowded, query), queries))
    assert together == alone
    assert {status for status, _ in together} == {200}
    assert sorted(taken)[len(taken) // 2] < 50


def test_1000_mixed_questions_leave_memory_and_descriptors_as_they_were(crowded: ServerProcess) -> None:
    pool = [*questions(100), *ODD]

    def ask_mixed(seed: int) -> set[int]:
        chance = random.Random(seed)
        return {
            documents(
                crowded, chance.choice(pool)[:1999] + str(chance.randint(0, 9)), chance.choice([1, 20, 200])
            )[0]
            for _ in range(250)
        }

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(ask_mixed, range(4)))  # what is warm is warm
        base, memory = crowded.num_open_files(), crowded.resident_bytes()
        assert set().union(*executor.map(ask_mixed, range(4, 8))) == {200}
    assert crowded.resident_bytes() - memory < 16 * MEBIBYTE
    wait_for_closed(crowded, base)


def test_both_kernels_answer_200_questions_alike(start_server: StartServer, real_index: Path) -> None:
    with_kernel = [
        start_server(RERANK_OFF, index_dir=real_index, environ={"CG_RAG_INDEX_KERNEL": kernel})
        for kernel in ("numpy", "onnx")
    ]
    for server in with_kernel:
        server.wait_ready()
    for query in questions(200):
        assert documents(with_kernel[0], query) == documents(with_kernel[1], query)


# --- exchanged indexes -----------------------------------------------------------------------------------------------


class Indexes:
    """In one folder: `words` without vectors, `toy` with those of the service's model, `other` with another's."""

    def __init__(self, folder: Path) -> None:
        self.model = make_bert(folder / "toy").folder
        another = Path(shutil.copytree(self.model, folder / "another"))
        edit_settings(another, query_template="x {text}")
        self.index_dir = folder / "index"
        self.index_dir.mkdir()
        self._pointers: dict[str, bytes] = {}
        models = {"words": None, "toy": OnnxEmbedder(self.model), "other": OnnxEmbedder(another)}
        for name, embedder in models.items():
            articles = [article | {"law_name": f"样例{name}规范"} for article in many_articles(40)]
            source = write_jsonl(folder / "codes.jsonl", articles)
            build_index([SourceSpec(source, "codes", ())], folder / name / "index", None, embedder=embedder)
            self._pointers[name] = (folder / name / "index" / "current").read_bytes()
            generation = self._pointers[name].decode().strip()
            shutil.copytree(folder / name / "index" / generation, self.index_dir / generation)

    def point_to(self, name: str) -> None:
        (self.index_dir / "next").write_bytes(self._pointers[name])
        os.replace(self.index_dir / "next", self.index_dir / "current")


# (searched by vectors, warned) for the index that an answer comes from
EXPECTED = {"words": (False, False), "toy": (True, False), "other": (False, True)}


def test_exchanging_words_vectors_and_another_model_is_never_an_error_a_mixture_or_a_stale_answer(
    start_server: StartServer, tmp_path: Path
) -> None:
    indexes = Indexes(tmp_path)
    indexes.point_to("toy")
    server = start_server(RERANK_OFF + embedding(indexes.model), index_dir=indexes.index_dir)
    server.wait_ready()
    base = server.num_open_files()
    over, wrong = threading.Event(), []

    def keep_asking(seed: int) -> None:
        chance = random.Random(seed)
        while not over.is_set():
            answer = ask(server, f"脚手架验收 {chance.randint(0, 30)}", topk=50)
            found = answer.json.get("retrieval_docs", [])
            names = {one["law_name"].removeprefix("样例").removesuffix("规范") for one in found}
            by_vectors = any("dense" in one["debug"]["stages"] for one in found)
            if len(names) != 1 or (by_vectors, warned(answer)) != EXPECTED[names.pop()]:
                wrong.append((answer.status, answer.body[:200]))
            if warned(answer) and answer.json["cache"]["hit"]:
                wrong.append(("kept", answer.body[:200]))

    callers = [threading.Thread(target=keep_asking, args=(seed,)) for seed in range(16)]
    for caller in callers:
        caller.start()
    memory = 0
    for number in range(90):
        name = ("words", "toy", "other", "words", "other", "toy")[number % 6]
        indexes.point_to(name)
        server.wait_event("index_loaded")
        first = ask(server, "脚手架验收 5", topk=3).json["retrieval_docs"]
        if any(name not in one["law_name"] for one in first):
            wrong.append(("stale", name, first))
        if number == 30:
            memory = server.resident_bytes()
    grown = server.resident_bytes() - memory
    over.set()
    for caller in callers:
        caller.join()
    assert wrong == []
    assert grown < 8 * MEBIBYTE
    indexes.point_to("toy")
    wait_for_closed(server, base)


# --- builds ----------------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


def interrupted_build(folder: Path, after: int = 150) -> tuple[list[SourceSpec], Path]:
    """A build of 300 articles that died when it had `after` vectors; (its sources, its index directory)."""

    def stop(number: int) -> None:
        if number >= after:
            raise Interrupted

    specs = [SourceSpec(write_jsonl(folder / "codes.jsonl", many_articles(300)), "codes", ())]
    with pytest.raises(Interrupted):
        build_index(specs, folder / "index", None, embedder=toy_embedder(ToyModel(before=stop)))
    return specs, folder / "index"


def stored_vectors(index_dir: Path) -> bytes:
    reader = IndexReader.open(index_dir)
    assert reader.verify() == []
    folder = index_dir / reader.fingerprint
    return (folder / "full.i16").read_bytes() + (folder / "full.scales").read_bytes()


def behind_header(data: bytes) -> int:
    return data.index(b"\n") + 1


JOURNALS: dict[str, Any] = {
    "a flipped bit": lambda data: data[:3000] + bytes([data[3000] ^ 1]) + data[3001:],
    "a torn end": lambda data: data[:-3],
    "half of it": lambda data: data[: len(data) // 2 + 5],
    "nothing": lambda data: b"",
    "another header": lambda data: b'{"format": 9}\n' + data[behind_header(data) :],
    "zeros": lambda data: data[: behind_header(data)] + bytes(len(data)),
    "backwards": lambda data: data[: behind_header(data)] + data[behind_header(data) :][::-1],
    "twice": lambda data: data + data[behind_header(data) :],
    "noise": lambda data: random.Random(1).randbytes(5000),
    "millions of empty records": lambda data: data + bytes(20_000_000),
}


@pytest.fixture(scope="module")
def expected_vectors(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("expected")
    specs = [SourceSpec(write_jsonl(folder / "codes.jsonl", many_articles(300)), "codes", ())]
    build_index(specs, folder / "index", None, embedder=toy_embedder())
    return stored_vectors(folder / "index")


@pytest.mark.parametrize("damage", JOURNALS)
def test_damaged_journal_never_brings_a_wrong_vector(
    tmp_path: Path, expected_vectors: bytes, damage: str
) -> None:
    specs, index_dir = interrupted_build(tmp_path)
    journal = journal_path(index_dir, toy_embedder().fingerprint)
    journal.write_bytes(JOURNALS[damage](journal.read_bytes()))
    report = build_index(specs, index_dir, None, embedder=toy_embedder())
    assert 150 <= report.embedded <= 300
    assert stored_vectors(index_dir) == expected_vectors
    assert not journal.exists()


def test_journal_that_is_a_link_does_not_cost_the_file_behind_it(tmp_path: Path) -> None:
    specs, index_dir = interrupted_build(tmp_path)
    journal = journal_path(index_dir, toy_embedder().fingerprint)
    journal.unlink()
    (tmp_path / "precious").write_bytes(b"precious")
    journal.symlink_to(tmp_path / "precious")
    with suppress(BuildFailed):
        build_index(specs, index_dir, None, embedder=toy_embedder())
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_second_build_is_refused_while_the_first_makes_vectors(
    tmp_path: Path, expected_vectors: bytes
) -> None:
    begun, go = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        begun.set()
        assert go.wait(30)

    specs = [SourceSpec(write_jsonl(tmp_path / "codes.jsonl", many_articles(300)), "codes", ())]
    with ThreadPoolExecutor(1) as executor:
        first = executor.submit(
            build_index, specs, tmp_path / "index", None, embedder=toy_embedder(ToyModel(before=wait))
        )
        assert begun.wait(30)
        with pytest.raises(IndexBusy):
            build_index(specs, tmp_path / "index", None, embedder=toy_embedder())
        go.set()
        assert first.result().embedded == 300
    assert stored_vectors(tmp_path / "index") == expected_vectors


@pytest.fixture
def file_size_limit() -> Iterator[Any]:
    """Files above the limit cannot be written: EFBIG, as on a disk that is full for them."""
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("limit", [1, 200, 3000, 6000, 12000])
def test_full_disk_while_vectors_are_made_leaves_the_old_index_and_keeps_what_was_made(
    tmp_path: Path, expected_vectors: bytes, file_size_limit: Any, limit: int
) -> None:
    index_dir = tmp_path / "index"
    few = [SourceSpec(write_jsonl(tmp_path / "few.jsonl", many_articles(20)), "codes", ())]
    build_index(few, index_dir, None, embedder=toy_embedder())
    before = (index_dir / "current").read_bytes()
    specs = [SourceSpec(write_jsonl(tmp_path / "codes.jsonl", many_articles(300)), "codes", ())]
    file_size_limit(limit)
    with pytest.raises(BuildFailed, match="原有索引未受影响"):
        build_index(specs, index_dir, None, embedder=toy_embedder())
    assert (index_dir / "current").read_bytes() == before
    assert not [path for path in index_dir.iterdir() if path.name.startswith(".tmp")]
    file_size_limit(1 << 30)
    report = build_index(specs, index_dir, None, embedder=toy_embedder())
    assert report.embedded <= 280
    assert stored_vectors(index_dir) == expected_vectors


# --- the process -----------------------------------------------------------------------------------------------------


def ends_within(server: ServerProcess, seconds: float) -> bool:
    started = time.monotonic()
    server.signal()
    server.wait_exit(60)
    return time.monotonic() - started < seconds


def test_shutdown_does_not_wait_for_a_slow_model_longer_than_it_may(
    start_server: StartServer, tmp_path: Path
) -> None:
    slow = write_model(tmp_path / "toy", partial(slow_states, steps=80), ["batch", "length", HIDDEN])
    build_with_fingerprint_of(slow, tmp_path)
    server = start_server(
        RERANK_OFF + embedding(slow) + "  server: {shutdown_timeout_seconds: 0.5}\n",
        index_dir=tmp_path / "new" / "index",
    )
    server.wait_ready()

    def leave(number: int) -> None:
        with suppress(OSError):
            ask(server, f"灭火器{number}")

    callers: Sequence[threading.Thread] = [
        threading.Thread(target=leave, args=(number,)) for number in range(4)
    ]
    for caller in callers:
        caller.start()
    wait_until(lambda: slots_in_use(server) == 4)
    in_time = ends_within(server, 2)
    for caller in callers:
        caller.join()
    assert in_time

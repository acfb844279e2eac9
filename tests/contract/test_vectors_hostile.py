"""Vectors, models and embeddings endpoints that are broken, slow or meant to harm: an answer by words with a warning, a
sentence, or an error of the contract; never a wrong answer, a traceback, a hang or a dead process. The long forms are in
test_vectors_soak.py."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from cg_rag.core.config import load
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.corpus import Article, Selector
from cg_rag.index.embedder import CallableEmbedder, Embedder, OnnxEmbedder
from cg_rag.index.errors import IndexLibraryError
from cg_rag.index.external_data import list_external_files
from cg_rag.index.library import IndexLibrary, Profile, RankingOptions
from cg_rag.index.model_errors import ModelFailed, ModelInvalid
from cg_rag.index.models.onnx_writer import ElementType, OnnxWriter
from cg_rag.index.tokenizer import ModelTokenizer
from cg_rag.modes.services import make_embedder
from tests.conftest import ARTICLES, StartServer, write_jsonl
from tests.fake_upstream import Hang, Received, Reply, Script, Wait, error, raw, upstream_in_thread
from tests.onnx_fixtures import HIDDEN, VOCABULARY, edit_settings, make_bert, write_folder
from tests.patience import assert_within
from tests.server_process import Answer, ServerProcess
from tests.toy_embedder import ToyModel, toy_embedder

RETRIEVE = "/retrieve-rerank"
VECTOR_FILES = ("scan.i8", "scan.scales", "full.i16", "full.scales", "vectors.mean")
BY_WORDS = "只按字面检索"


def build(folder: Path, embedder: Embedder | None, articles: Sequence[dict[str, Any]] = ARTICLES) -> None:
    """Corpora `codes` and `laws` in `folder`/index."""
    codes = write_jsonl(folder / "codes.jsonl", list(articles[:2]))
    laws = write_jsonl(folder / "laws.jsonl", list(articles[2:]))
    specs = [SourceSpec(codes, "codes", ()), SourceSpec(laws, "laws", ())]
    build_index(specs, folder / "index", None, embedder=embedder)


def generation(index_dir: Path) -> Path:
    return index_dir / (index_dir / "current").read_text().strip()


def ask(server: ServerProcess, query: str = "脚手架验收", **more: Any) -> Answer:
    return server.post(RETRIEVE, {"query": query, "include_debug": True, **more})


def warned(answer: Answer) -> bool:
    return any(BY_WORDS in warning for warning in answer.json["warnings"])


def wait_until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        threading.Event().wait(0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder. Not to be changed: copy it first."""
    return make_bert(tmp_path_factory.mktemp("model") / "toy").folder


@pytest.fixture(scope="module")
def vector_index(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """An index with vectors of `model`. Not to be changed: copy it first."""
    folder = tmp_path_factory.mktemp("vector_index")
    build(folder, OnnxEmbedder(model))
    return folder / "index"


@pytest.fixture
def index_copy(vector_index: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(vector_index, tmp_path / "index"))


@pytest.fixture
def model_copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "toy"))


def embedding(model: Path, **retrieval: Any) -> str:
    """Settings below cg_rag: a model folder, and keys of `retrieval`."""
    return f"  embedding: {{model_dir: {json.dumps(str(model))}}}\n  retrieval: {json.dumps(retrieval)}\n"


# --- files of vectors ------------------------------------------------------------------------------------------------

Mutation = Callable[[bytes], bytes]


def flip(place: float) -> Mutation:
    def mutate(data: bytes) -> bytes:
        at = int(place * (len(data) - 1))
        return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]

    return mutate


MUTATIONS: dict[str, Mutation] = {
    "first byte": flip(0.0),
    "byte in the middle": flip(0.5),
    "last byte": flip(1.0),
    "cut by one": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "one more": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "NaN": lambda data: np.full(len(data) // 4, np.nan, "<f4").tobytes() + data[len(data) // 4 * 4 :],
}


def library_of(index_dir: Path, embedder: Embedder | None, **options: Any) -> IndexLibrary:
    profiles = {
        "full": Profile("", (Selector(),)),
        "codes": Profile("", (Selector(corpus="codes"),)),
        "laws": Profile("", (Selector(corpus="laws"),)),
        "words": Profile("", (Selector(),), by_words_only=True),
    }
    return IndexLibrary(index_dir, profiles, RankingOptions(**options), lambda: embedder)


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", VECTOR_FILES)
def test_damaged_file_of_vectors_takes_the_scopes_that_it_hits_and_is_named_with_both_digests(
    index_copy: Path, name: str, mutation: str
) -> None:
    place = generation(index_copy) / name
    place.write_bytes(MUTATIONS[mutation](place.read_bytes()))
    library = library_of(index_copy, toy_embedder())
    refresh = library.refresh()
    assert refresh is not None
    fault = next(fault for fault in refresh.outcome.faults if name in fault)
    assert "应为" in fault
    assert "实为" in fault
    hit = {scope for scope, state in refresh.outcome.scopes.items() if state.fault}
    assert "full" in hit
    if mutation in ("first byte", "last byte") and name != "vectors.mean":
        assert hit & {"codes", "laws"} == {"codes" if mutation == "first byte" else "laws"}


@pytest.mark.parametrize(("left", "right"), [("scan.scales", "full.scales")])
def test_exchanged_files_of_one_size_are_noticed(index_copy: Path, left: str, right: str) -> None:
    folder = generation(index_copy)
    one, other = (folder / left).read_bytes(), (folder / right).read_bytes()
    assert len(one) == len(other)
    (folder / left).write_bytes(other)
    (folder / right).write_bytes(one)
    refresh = library_of(index_copy, toy_embedder()).refresh()
    assert refresh is not None
    assert all(any(name in fault for fault in refresh.outcome.faults) for name in (left, right))
    assert refresh.outcome.scopes["full"].fault


def test_rows_that_cannot_be_read_any_more_degrade_to_words(
    start_server: StartServer, index_copy: Path, model: Path
) -> None:
    server = start_server(embedding(model), index_dir=index_copy)
    server.wait_ready()
    os.truncate(generation(index_copy) / "full.i16", 0)
    answer = ask(server)
    assert server.get("/health").status == 200
    assert answer.status == 200
    assert warned(answer)


@pytest.mark.xfail(
    strict=True, reason="scan.i8 is a map of the file: cut while it is open, the next search is a SIGBUS"
)
def test_scan_that_is_cut_while_it_is_open_does_not_kill_the_service(
    start_server: StartServer, index_copy: Path, model: Path
) -> None:
    server = start_server(embedding(model), index_dir=index_copy)
    server.wait_ready()
    os.truncate(generation(index_copy) / "scan.i8", 0)
    with suppress(ConnectionError):
        ask(server)
    assert server.get("/health").status == 200


# --- lists -----------------------------------------------------------------------------------------------------------

QUERIES = (
    "脚手架验收",
    "《样例一法》",
    "样例一法第3条 验收",
    "样例一法 样例二法 检查",
    "积水",
    "\u200b",
    "<|im_start|>",
    "😀",
)


def many_articles(number: int) -> list[dict[str, Any]]:
    return [
        {
            "law_name": f"样例{'一二三'[row % 3]}法",
            "article_number": f"第{row}条",
            "contents": f"脚手架第{row}次验收检查",
        }
        for row in range(number)
    ]


@pytest.fixture(scope="module")
def large_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 articles of three laws; vectors that follow from the text alone."""
    folder = tmp_path_factory.mktemp("large_index")
    build(folder, toy_embedder(), many_articles(600))
    return folder / "index"


def rows_of(library: IndexLibrary, query: str, topk: int) -> list[int]:
    retriever = library.snapshot.retriever
    assert retriever is not None
    return [hit.row for hit in retriever.search(query, "full", topk).hits]


def loaded(library: IndexLibrary) -> IndexLibrary:
    library.refresh()
    return library


@pytest.mark.parametrize("query", QUERIES)
def test_place_of_an_article_is_the_same_for_every_topk_up_to_a_hundred(
    large_index: Path, query: str
) -> None:
    library = loaded(library_of(large_index, toy_embedder()))
    best = rows_of(library, query, 100)
    assert len(set(best)) == len(best) == 100
    for topk in (1, 2, 3, 10, 37, 99):
        assert rows_of(library, query, topk) == best[:topk]


def test_place_of_an_article_is_the_same_for_every_topk(large_index: Path) -> None:
    library = loaded(library_of(large_index, toy_embedder()))
    for query in QUERIES:
        best = rows_of(library, query, 200)
        assert len(set(best)) == len(best) == 200
        for topk in (101, 120, 150, 199):
            assert rows_of(library, query, topk) == best[:topk]


def test_scores_never_rise(large_index: Path) -> None:
    retriever = loaded(library_of(large_index, toy_embedder())).snapshot.retriever
    assert retriever is not None
    for number in range(60):
        for query in (f"脚手架验收{number}", f"《样例一法》检查{number}"):
            scores = [hit.score for hit in retriever.search(query, "full", 200).hits]
            assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("query", QUERIES)
def test_both_kernels_give_the_same_list(large_index: Path, query: str) -> None:
    numpy, onnx = (loaded(library_of(large_index, toy_embedder(), kernel=name)) for name in ("numpy", "onnx"))
    for topk in (1, 20, 200):
        assert rows_of(onnx, query, topk) == rows_of(numpy, query, topk)


@pytest.mark.parametrize(("weight", "method"), [(0.0, "lexical"), (1.0, "dense")])
def test_whole_weight_of_one_stage_is_the_order_of_that_stage(
    large_index: Path, weight: float, method: Any
) -> None:
    retriever = loaded(library_of(large_index, toy_embedder(), dense_weight=weight)).snapshot.retriever
    assert retriever is not None
    for query in ("脚手架验收", "积水检查"):
        mixed = retriever.search(query, "full", 50).hits
        alone = retriever.search(query, "full", 50, method).hits
        assert [hit.row for hit in mixed] == [hit.row for hit in alone]


@pytest.mark.parametrize(("min_score", "number"), [(-1.0, 50), (1.01, 0)])
def test_min_score_cuts_all_or_nothing_at_its_ends(large_index: Path, min_score: float, number: int) -> None:
    assert (
        len(rows_of(loaded(library_of(large_index, toy_embedder(), min_score=min_score)), "验收", 50))
        == number
    )


# --- folders of models -----------------------------------------------------------------------------------------------


def write_model(
    folder: Path, states: Callable[[OnnxWriter], None], shape: Sequence[int | str], **settings: Any
) -> Path:
    """A graph of our own: `states` makes last_hidden_state from input_ids."""
    folder.mkdir()
    writer = OnnxWriter()
    writer.add_input("input_ids", ElementType.INT64, ["batch", "length"])
    states(writer)
    writer.add_output("last_hidden_state", ElementType.FLOAT, shape)
    writer.save(folder / "model.onnx")
    write_folder(folder, {"pooling": "mean", **settings})
    return folder


def looked_up(writer: OnnxWriter, value: float, name: str = "last_hidden_state") -> str:
    table = np.full((len(VOCABULARY), HIDDEN), value, np.float32)
    return writer.add_named_node(name, "Gather", [writer.add_constant("table", table), "input_ids"])


def states_of(value: float) -> Callable[[OnnxWriter], None]:
    def states(writer: OnnxWriter) -> None:
        looked_up(writer, value)

    return states


def first_state_only(writer: OnnxWriter) -> None:
    looked_up(writer, 1.0, "all")
    zero, one = (writer.add_constant(f"c{n}", np.array([n], np.int64)) for n in (0, 1))
    writer.add_named_node("last_hidden_state", "Slice", ["all", zero, one, one])


def set_tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text, "utf-8")
    record_digests(folder)


def record_digests(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "cg_rag_model.json"]
    digests = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    edit_settings(folder, sha256=digests)


SETTINGS: dict[str, dict[str, Any]] = {
    "unknown key": {"poolin": "mean"},
    "no file": {"file": ...},
    "no digest": {"sha256": {}},
    "digests that are no texts": {"sha256": {"model.onnx": 1}},
    "file in another folder": {"file": "../toy/model.onnx"},
    "absolute file": {"file": "/etc/hostname"},
    "file of no name": {"file": ""},
    "NUL": {"file": "a\0b"},
    "absent file": {"file": "other.onnx"},
    "folder as file": {"file": "."},
    "pooling": {"pooling": "max"},
    "pooling none of states": {"pooling": "none"},
    "width": {"dim": HIDDEN + 1},
    "dim of nothing": {"dim": 0},
    "true": {"dim": True},
    "cut above the width": {"mrl_dim": HIDDEN + 1},
    "huge batch": {"batch": 10**9},
    "template": {"query_template": "{text} {secret}"},
    "template with a format": {"query_template": "{text:>99999999}"},
    "template with an attribute": {"query_template": "{text.__class__}"},
    "template without a text": {"passage_template": "x"},
    "kind": {"kind": "reranker"},
    "eos": {"eos": "<none>"},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_model_folder_with_nonsense_in_its_settings_is_refused_with_a_sentence(
    model_copy: Path, case: str
) -> None:
    edit_settings(model_copy, **SETTINGS[case])
    with pytest.raises(IndexLibraryError):
        OnnxEmbedder(model_copy)


def test_settings_with_half_a_character_are_refused_with_a_sentence(model_copy: Path) -> None:
    place = model_copy / "cg_rag_model.json"
    place.write_text(place.read_text("utf-8").replace('"toy"', '"\\ud800"'), "utf-8")
    with pytest.raises(IndexLibraryError):
        OnnxEmbedder(model_copy)


def test_model_file_that_links_to_itself_is_refused_with_a_sentence(model_copy: Path) -> None:
    (model_copy / "model.onnx").unlink()
    (model_copy / "model.onnx").symlink_to("model.onnx")
    with pytest.raises(IndexLibraryError):
        OnnxEmbedder(model_copy)


def test_model_that_cannot_be_opened_for_whatever_reason_leaves_search_by_words(index_copy: Path) -> None:
    def fail() -> Embedder:
        raise RuntimeError("whatever")

    library = IndexLibrary(index_copy, {"full": Profile("", (Selector(),))}, None, fail)
    library.refresh()
    assert library.snapshot.scopes["full"].fault == ""


def external_model(folder: Path, location: str, tag: int) -> None:
    """A graph whose table lies in `location`; `tag` is the tag of the field that says so."""
    from cg_rag.index.models import onnx_writer

    folder.mkdir()
    writer = OnnxWriter("model.onnx.data")
    writer.add_input("input_ids", ElementType.INT64, ["batch", "length"])
    table = np.ones((len(VOCABULARY), HIDDEN), np.float32)
    head = b"".join(onnx_writer._number(1, size) for size in table.shape)
    head += onnx_writer._number(2, ElementType.FLOAT) + onnx_writer._bytes(8, "table")
    for key, value in {"location": location, "offset": "0", "length": str(table.nbytes)}.items():
        entry = onnx_writer._bytes(1, key) + onnx_writer._bytes(2, value)
        head += onnx_writer._varint(tag) + onnx_writer._varint(len(entry)) + entry
    writer._constants = [head + onnx_writer._number(14, 1)]
    writer.add_named_node("last_hidden_state", "Gather", ["table", "input_ids"])
    writer.add_output("last_hidden_state", ElementType.FLOAT, ["batch", "length", HIDDEN])
    (folder / "model.onnx").write_bytes(writer.encode())
    write_folder(folder, {"pooling": "mean"})


ENTRY_TAG = 13 << 3 | 2  # TensorProto.external_data


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "a/../../secret", "link", "absent", ""])
def test_weights_outside_of_the_model_folder_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(4 * len(VOCABULARY) * HIDDEN))
    external_model(tmp_path / "toy", location, ENTRY_TAG)
    (tmp_path / "toy" / "link").symlink_to("../secret")
    with pytest.raises(IndexLibraryError):
        OnnxEmbedder(tmp_path / "toy")


def test_weights_that_hide_behind_a_tag_of_more_than_32_bits_are_found(tmp_path: Path) -> None:
    external_model(tmp_path / "toy", "weights", ENTRY_TAG | 1 << 32)
    weights = tmp_path / "toy" / "weights"
    weights.write_bytes(np.ones((len(VOCABULARY), HIDDEN), np.float32).tobytes())
    with suppress(IndexLibraryError):  # refusing such a file is as good
        files = list_external_files(tmp_path / "toy" / "model.onnx")
        assert files == [weights]


BROKEN_TOKENIZERS = {
    "no JSON": "{{{",
    "no tokenizer": "{}",
    "a list": "[]",
    "empty": "",
    "no vocabulary": json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel"}}),
}


@pytest.mark.parametrize("case", BROKEN_TOKENIZERS)
def test_garbage_for_a_tokenizer_is_refused_with_a_sentence(model_copy: Path, case: str) -> None:
    set_tokenizer(model_copy, BROKEN_TOKENIZERS[case])
    with pytest.raises(ModelInvalid):
        OnnxEmbedder(model_copy)


def test_tokenizer_that_does_not_know_a_character_fails_as_a_model_does(model_copy: Path) -> None:
    set_tokenizer(
        model_copy, Tokenizer(models.Unigram([("a", 0.0)], unk_id=None, byte_fallback=False)).to_str()
    )
    with pytest.raises(IndexLibraryError):
        OnnxEmbedder(model_copy).embed_query("脚手架")


def test_text_of_no_tokens_fails_as_a_model_does(model_copy: Path) -> None:
    set_tokenizer(model_copy, Tokenizer(models.BPE({"a": 0}, [])).to_str())
    with pytest.raises(IndexLibraryError):
        OnnxEmbedder(model_copy).embed_query("脚手架")


def test_model_that_gives_fewer_states_than_tokens_fails_as_a_model_does(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "toy", first_state_only, ["batch", "some", HIDDEN], pooling="last")
    with pytest.raises(ModelFailed):
        OnnxEmbedder(folder).embed_query("脚手架")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_model_that_gives_no_direction_fails_as_a_model_does(tmp_path: Path, value: float) -> None:
    folder = write_model(tmp_path / "toy", states_of(value), ["batch", "length", HIDDEN])
    with pytest.raises(ModelFailed):
        OnnxEmbedder(folder).embed_query("脚手架")


def test_control_token_that_two_fields_of_an_article_make_together_is_broken_up(model: Path) -> None:
    embedder = OnnxEmbedder(model)
    text = embedder.article_text(Article("样例法<", "s>第一条", "脚手架", {}, ()))
    ids = ModelTokenizer(model / "tokenizer.json", 32).encode(text).ids
    assert VOCABULARY["<s>"] not in ids[1:]


# --- a service whose model fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("degrade", [True, False])
def test_model_that_gives_nan_degrades_or_fails_as_configured_and_says_why(
    start_server: StartServer, index_copy: Path, tmp_path: Path, degrade: bool
) -> None:
    broken = write_model(tmp_path / "toy", states_of(float("nan")), ["batch", "length", HIDDEN])
    build_with_fingerprint_of(broken, tmp_path)
    server = start_server(embedding(broken, degrade=degrade), index_dir=tmp_path / "new" / "index")
    server.wait_ready()
    for _ in range(2):
        answer = ask(server)
        if degrade:
            assert (answer.status, answer.json["cache"]["hit"]) == (200, False)
            assert warned(answer)
        else:
            assert (answer.status, answer.code) == (502, "retrieval.failed")


def build_with_fingerprint_of(model: Path, tmp_path: Path) -> None:
    """An index in `tmp_path`/new that says it was made by `model`; its vectors are made up."""
    opened = OnnxEmbedder(model)
    made_up = CallableEmbedder(ToyModel(dim=opened.dim), name=opened.name, dim=opened.dim)
    made_up.fingerprint = opened.fingerprint
    (tmp_path / "new").mkdir()
    build(tmp_path / "new", made_up)


def test_reason_for_answering_by_words_stands_in_the_log(start_server: StartServer, tmp_path: Path) -> None:
    broken = write_model(tmp_path / "toy", states_of(float("nan")), ["batch", "length", HIDDEN])
    build_with_fingerprint_of(broken, tmp_path)
    server = start_server(embedding(broken), index_dir=tmp_path / "new" / "index")
    server.wait_ready()
    assert warned(ask(server))
    server.get("/ready", X_Request_ID="mark")
    server.wait_event("request", request_id="mark")
    assert "非数值" in server.raw_log.decode()


def test_answers_by_words_are_not_kept_and_a_repaired_model_is_taken_by_itself(
    start_server: StartServer, index_copy: Path, model: Path, tmp_path: Path
) -> None:
    place = tmp_path / "toy"
    server = start_server(embedding(place), index_dir=index_copy)
    server.wait_event("index_fault")
    assert warned(ask(server))
    assert not ask(server).json["cache"]["hit"]
    assert server.get("/health").json["index"]["state"] == "degraded"
    shutil.copytree(model, place)
    server.wait_event("index_loaded", state="ready")
    answer = ask(server)
    assert not warned(answer)
    assert "dense" in answer.json["retrieval_docs"][0]["debug"]["stages"]
    assert ask(server).json["cache"]["hit"]


def test_model_exchanged_in_its_folder_together_with_the_index_is_taken_by_itself(
    start_server: StartServer, index_copy: Path, model_copy: Path
) -> None:
    server = start_server(embedding(model_copy), index_dir=index_copy)
    server.wait_ready()
    edit_settings(model_copy, query_template="x: {text}")
    build(index_copy.parent, OnnxEmbedder(model_copy))
    server.wait_event("index_loaded")
    wait_until(lambda: server.get("/health").json["index"]["state"] == "ready")


def test_scope_that_is_searched_by_words_works_without_the_model_also_when_nothing_degrades(
    vector_index: Path,
) -> None:
    library = library_of(vector_index, toy_embedder(name="another"), degrade=False)
    library.refresh()
    assert library.snapshot.scopes["full"].fault
    assert library.snapshot.scopes["words"].fault == ""


def test_callers_are_not_told_where_the_model_lies(
    start_server: StartServer, vector_index: Path, tmp_path: Path
) -> None:
    server = start_server(embedding(tmp_path / "private", degrade=False), index_dir=vector_index)
    server.wait_event("index_fault")
    answer = ask(server)
    assert (answer.status, answer.code) == (503, "index.not_ready")
    assert str(tmp_path) not in answer.body.decode()


# --- a model that takes its time -------------------------------------------------------------------------------------


def slow_states(writer: OnnxWriter, steps: int = 12) -> None:
    """Steps of a twentieth of a second each, whatever is asked."""
    size, zero = 1200, writer.add_constant("nothing", np.zeros(1, np.float32))
    ids = writer.add_node("Cast", ["input_ids"], to=int(ElementType.FLOAT))
    none = writer.add_node("Mul", [writer.add_node("ReduceMax", [ids], keepdims=0), zero])
    square = writer.add_node("Add", [writer.add_constant("ones", np.ones((size, size), np.float32)), none])
    for _ in range(steps):
        square = writer.add_node("Tanh", [writer.add_node("MatMul", [square, square])])
    none = writer.add_node("Mul", [writer.add_node("ReduceMax", [square], keepdims=0), zero])
    writer.add_named_node("last_hidden_state", "Add", [looked_up(writer, 1.0, "states"), none])


@pytest.fixture(scope="module")
def slow_server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """Two questions at once, and nobody waits for a place."""
    folder = tmp_path_factory.mktemp("slow")
    slow = write_model(folder / "toy", slow_states, ["batch", "length", HIDDEN])
    build_with_fingerprint_of(slow, folder)
    capacity = "  capacity: {retrieval: {max: 2}, wait_timeout_seconds: 0.05}\n"
    server = start_server(embedding(slow) + capacity, index_dir=folder / "new" / "index")
    server.wait_ready()
    return server


def slots_in_use(server: ServerProcess) -> int:
    return int(server.get("/health").json["capacity"]["retrieval"]["in_use"])


def ask_and_leave(
    server: ServerProcess, query: str, when: Callable[[], bool], patience_seconds: float = 30.0
) -> None:
    """Leaves when `when` says so."""
    body = json.dumps({"query": query}).encode()
    head = b"POST /cg-rag/retrieve-rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with server.connect() as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(when, patience_seconds)


def test_slow_model_fills_its_places_and_no_more_and_health_stays_quick(slow_server: ServerProcess) -> None:
    tries = itertools.count()

    def fill() -> float:
        """What /health takes meanwhile, in the middle; infinite when one of the two questions had ended before the third
        came."""
        number = next(tries)
        wait_until(lambda: slots_in_use(slow_server) == 0)
        with ThreadPoolExecutor(2) as callers:
            under_way = [
                callers.submit(ask, slow_server, f"{query}{number}") for query in ("灭火器", "动火证")
            ]

            def has_ended() -> bool:
                return any(future.done() for future in under_way)

            wait_until(lambda: has_ended() or slots_in_use(slow_server) == 2)
            refused = ask(slow_server, f"排水沟{number}")
            taken = []
            while not has_ended():
                started = time.perf_counter()
                assert slow_server.get("/health").status == 200
                taken.append(time.perf_counter() - started)
            assert [future.result().status for future in under_way] == [200, 200]
        if refused.status == 200 or not taken:
            return math.inf
        assert (refused.status, refused.code) == (429, "capacity.exceeded")
        return sorted(taken)[len(taken) // 2]

    assert_within(0.05, fill, tries=10)


def test_caller_that_leaves_stops_the_model_and_frees_the_place(slow_server: ServerProcess) -> None:
    wait_until(lambda: slots_in_use(slow_server) == 0)
    started = time.monotonic()
    ask(slow_server, "登高作业")
    alone = time.monotonic() - started
    tries = itertools.count()

    def leave() -> float:
        # All of it counts: what is looked at late, and left late, has less left to stop.
        query, started = f"起重吊装{next(tries)}", time.monotonic()
        try:
            ask_and_leave(slow_server, query, lambda: slots_in_use(slow_server) > 0, 3 * alone)
        except AssertionError:
            return math.inf  # it had ended before anybody looked
        wait_until(lambda: slots_in_use(slow_server) == 0)
        return time.monotonic() - started

    assert_within(alone / 2, leave, tries=10)


# --- an embeddings endpoint ------------------------------------------------------------------------------------------


def vectors(*rows: Any, **more: Any) -> Reply:
    data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
    return raw(json.dumps({"data": data, **more}).encode())


def drip(_: Received) -> Reply:
    return Reply([step for _ in range(200) for step in (b" ", Wait(0.05))])


FAILURES: dict[str, Script] = {
    "hangs": Reply([], before=[Hang()]),
    "drips": drip,
    "no JSON": raw(b"<html>502</html>"),
    "not UTF-8": raw(b'{"data": "\xff"}'),
    "another dimension": vectors([1.0] * 9),
    "two vectors for a text": vectors([1.0] * 8, [1.0] * 8),
    "no vector": vectors(),
    "empty vector": vectors([]),
    "zeros": vectors([0.0] * 8),
    "null": vectors([None] * 8),
    "texts": vectors(["1"] * 8),
    "not a number": raw(b'{"data":[{"index":0,"embedding":[NaN,1,1,1,1,1,1,1]}]}'),
    "beyond float32": vectors([1e300] * 8),
    "nested": raw(b"[" * 100_000),
    "an error in a 200": raw(b'{"error":{"message":"secret-prompt"}}'),
    "429": error(429, retry_after="3600"),
    "500": error(500),
    "401": error(401, "wrong key canary-key"),
    "cut": Reply([b'{"data":['], length=500),
    "too long": Reply([b" " * 65536] * 40),
}


def http_settings(url: str, timeout: float, degrade: bool = True, capacity: int = 16) -> str:
    settings = {"provider": "http", "endpoint": url, "model": "toy", "dim": 8, "timeout_seconds": timeout, "api_key": "canary-key"}  # fmt: skip
    return (
        f"  embedding: {json.dumps(settings)}\n  retrieval: {{degrade: {json.dumps(degrade)}}}\n"
        f"  capacity: {{retrieval: {{max: {capacity}}}}}\n"
    )


@pytest.fixture(scope="module")
def toy_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index as the endpoint's model `toy` would make it."""
    folder = tmp_path_factory.mktemp("toy_index")
    build(folder, toy_embedder())
    return folder / "index"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Any]:
    with upstream_in_thread() as upstream:
        yield upstream
        for embedder in OPENED:
            embedder.close()


OPENED: list[Embedder] = []
ENDPOINT_SECONDS = 1.0


def embedder_at(url: str, folder: Path) -> Embedder:
    """The embedder that a service with these settings has."""
    config = folder / "config.yaml"
    config.write_text("cg_rag:\n" + http_settings(url, ENDPOINT_SECONDS), "utf-8")
    embedder = make_embedder(load(config, {}).settings)
    assert embedder is not None
    OPENED.append(embedder)
    return embedder


def in_order(request: Received) -> Reply:
    return vectors(*[[1.0] * 8 for _ in request.json["input"]])


@pytest.mark.parametrize("failure", FAILURES)
def test_failing_endpoint_fails_as_a_model_does_in_time_and_tells_no_secret(
    endpoint: Any, tmp_path: Path, failure: str
) -> None:
    embedder = embedder_at(endpoint.url, tmp_path)

    def fail() -> float:
        endpoint.enqueue(*[FAILURES[failure]] * 4)
        started = time.monotonic()
        with pytest.raises(ModelFailed) as failed:
            embedder.embed_query("灭火器")
        taken = time.monotonic() - started
        endpoint.forget()
        assert not re.search(f"canary-key|secret-prompt|{endpoint.port}", str(failed.value))
        # More than one: a try that was given up may reach the endpoint only now.
        endpoint.enqueue(*[in_order] * 20)
        works_at_once = answers_in_time(embedder)
        endpoint.forget()
        return taken if works_at_once else math.inf

    assert_within(5, fail)  # tries included: the limit is for all of them


def answers_in_time(embedder: Embedder) -> bool:
    """Whether the first question to a working endpoint has a vector; where it has none, the machine or the client took all
    of the time, and it works by and by."""
    for attempt in range(5):
        started = time.monotonic()
        with suppress(ModelFailed):
            assert embedder.embed_query("灭火器").shape == (8,)
            return attempt == 0
        assert time.monotonic() - started >= ENDPOINT_SECONDS
    raise AssertionError("it never works again")


@pytest.mark.parametrize("degrade", [True, False])
def test_service_whose_endpoint_fails_degrades_or_fails_as_configured_and_uses_what_works_again(
    start_server: StartServer, endpoint: Any, toy_index: Path, degrade: bool
) -> None:
    server = start_server(http_settings(endpoint.url, 0.4, degrade), index_dir=toy_index)
    server.wait_ready()
    endpoint.enqueue(*[Reply([], before=[Hang()])] * 4)
    answer = ask(server, "灭火器")
    endpoint.forget()
    if degrade:
        assert answer.status == 200
        assert warned(answer)
    else:
        assert (answer.status, answer.code) == (502, "retrieval.failed")
    endpoint.enqueue(*[in_order] * 5000)

    def works() -> bool:
        answer = ask(server, "灭火器")
        return answer.status == 200 and not warned(answer) and not answer.json["cache"]["hit"]

    wait_until(works)
    endpoint.forget()
    assert "canary-key" not in server.raw_log.decode()


def test_caller_that_leaves_does_not_switch_the_endpoint_off_for_others(
    start_server: StartServer, endpoint: Any, toy_index: Path
) -> None:
    server = start_server(http_settings(endpoint.url, 5), index_dir=toy_index)
    server.wait_ready()
    endpoint.enqueue(Reply([], before=[Hang()]))
    ask_and_leave(server, "灭火器", lambda: endpoint.num_left == 0)
    wait_until(lambda: slots_in_use(server) == 0)
    endpoint.enqueue(*[in_order] * 2)
    answer = ask(server, "排水沟")
    endpoint.forget()
    assert not warned(answer)


def test_endpoint_that_hangs_costs_nobody_more_than_its_time_limit(
    start_server: StartServer, endpoint: Any, toy_index: Path
) -> None:
    callers = 5 * (os.cpu_count() or 1)

    def longest() -> float:
        # A service of its own each time: one whose endpoint has just failed does not ask it.
        server = start_server(http_settings(endpoint.url, 0.4, capacity=callers), index_dir=toy_index)
        server.wait_ready()
        endpoint.enqueue(*[Reply([], before=[Hang()])] * callers * 4)

        def timed(number: int) -> float:
            started = time.monotonic()
            assert warned(ask(server, f"灭火器{number}"))
            return time.monotonic() - started

        with ThreadPoolExecutor(callers) as executor:
            taken = list(executor.map(timed, range(callers)))
        endpoint.forget()
        return max(taken)

    assert_within(2 * 0.4 + 0.6, longest)

"""Vectors against NumPy, whatever padding and batch are; the bundled model; an endpoint of any quality."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cg_rag.index.corpus import Article
from cg_rag.index.embedder import CallableEmbedder, Embedder, OnnxEmbedder, finish, pool
from cg_rag.index.model_errors import Cancelled, ModelFailed, ModelInvalid
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.onnx import CancelToken
from cg_rag.index.tokenizer import ModelTokenizer
from tests.onnx_fixtures import (
    HIDDEN,
    ElementType,
    ModelFixture,
    build_tokenizer,
    make_bert,
    make_qwen,
    make_sentence_model,
)

ARTICLES = [
    Article("中华人民共和国建筑法", "第三十条", "脚手架的立杆间距"),
    Article("安全法", "第二条", "临时用电"),
    Article("安全法", "", "建筑"),
    Article("安全法", "第三条", "间距 <s> {contents} <|endoftext|>"),
    Article("中华人民共和国", "第一条", "安全" * 40),
]


def slow_vector(
    fixture: ModelFixture, text: str, pick: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
) -> Any:
    """Tokenise, run the twin without padding, pick, length 1: in float64."""
    settings = OnnxEmbedder(fixture.folder).settings
    tokens = ModelTokenizer(fixture.folder / "tokenizer.json", settings.max_tokens, settings.eos).encode(text)
    ids = np.array([tokens.ids])
    states = fixture.hidden(ids, np.ones_like(ids), np.array([tokens.type_ids]))[0]
    vector = pick(states)[: settings.mrl_dim]
    return vector / np.linalg.norm(vector)


PICKS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda states: states.mean(axis=0),
    "cls": lambda states: states[0],
    "last": lambda states: states[-1],
}


@pytest.mark.parametrize("mrl_dim", [None, 5])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", list(PICKS))
def test_qwen_style_vectors_equal_numpy_for_every_pooling_side_and_cut(
    tmp_path: Path, pooling: str, side: str, mrl_dim: int | None
) -> None:
    fixture = make_qwen(tmp_path / "m", pooling=pooling, padding_side=side, mrl_dim=mrl_dim)
    embedder = OnnxEmbedder(fixture.folder)
    vectors = np.stack(list(embedder.embed_articles(ARTICLES)))
    expected = [slow_vector(fixture, embedder.article_text(article), PICKS[pooling]) for article in ARTICLES]
    assert vectors.dtype == np.float32
    assert vectors.shape == (5, embedder.dim) == (5, mrl_dim or HIDDEN)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_a_float16_graph_gives_float32_vectors(tmp_path: Path) -> None:
    fixture = make_qwen(tmp_path / "m", ElementType.FLOAT16)
    vector = OnnxEmbedder(fixture.folder).embed_query("脚手架")
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, slow_vector(fixture, "q: 脚手架", PICKS["last"]), atol=3e-3)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_bert_style_vectors_equal_numpy(tmp_path: Path, pooling: str, external: bool) -> None:
    fixture = make_bert(tmp_path / "m", pooling, external, batch=3)
    embedder = OnnxEmbedder(fixture.folder)
    expected = [slow_vector(fixture, embedder.article_text(article), PICKS[pooling]) for article in ARTICLES]
    np.testing.assert_allclose(np.stack(list(embedder.embed_articles(ARTICLES))), expected, atol=1e-6)
    np.testing.assert_allclose(
        embedder.embed_query("脚手架"), slow_vector(fixture, "q: 脚手架", PICKS[pooling]), atol=1e-6
    )


@pytest.mark.parametrize("pooling", ["none", "cls"])
def test_a_sentence_output_is_never_pooled_again(tmp_path: Path, pooling: str) -> None:
    fixture = make_sentence_model(tmp_path / "m", pooling=pooling)
    expected = slow_vector(fixture, "q: 脚手架", lambda states: states.sum(axis=0))
    np.testing.assert_allclose(OnnxEmbedder(fixture.folder).embed_query("脚手架"), expected, atol=1e-6)


def test_without_normalize_the_length_is_the_graphs_own(tmp_path: Path) -> None:
    fixture = make_sentence_model(tmp_path / "m", normalize=False)
    unit = slow_vector(fixture, "q: 脚", lambda states: states.sum(axis=0))
    vector = OnnxEmbedder(fixture.folder).embed_query("脚")
    assert abs(np.linalg.norm(vector) - 1) > 0.1
    np.testing.assert_allclose(vector / np.linalg.norm(vector), unit, atol=1e-6)


def test_article_text_follows_the_template(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(make_bert(tmp_path / "m").folder)
    texts = [embedder.article_text(article) for article in ARTICLES]
    assert texts[:3] == ["d: 建筑法第三十条 脚手架的立杆间距", "d: 安全法第二条 临时用电", "d: 安全法 建筑"]
    assert texts[3] == "d: 安全法第三条 间距 < s> {contents} < |endoftext|>"
    assert texts[4].startswith("d: 中华人民共和国第一条 ")


def test_a_batch_never_exceeds_the_bound_on_tokens(tmp_path: Path) -> None:
    fixture = make_bert(tmp_path / "m", batch=64)
    embedder = OnnxEmbedder(fixture.folder)
    whole = np.stack(list(embedder.embed_articles(ARTICLES)))
    embedder._session.max_cells = 40  # one text of 32 tokens at a time
    np.testing.assert_allclose(np.stack(list(embedder.embed_articles(ARTICLES))), whole, atol=1e-6)


def test_progress_counts_articles_and_stopping_comes_between_batches(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(make_bert(tmp_path / "m", batch=2).folder)
    done: list[int] = []
    assert len(list(embedder.embed_articles(ARTICLES, done.append))) == 5
    assert done == [2, 4, 5]
    done.clear()
    rows = embedder.embed_articles(ARTICLES, done.append, should_stop=lambda: done == [2])
    assert len([next(rows), next(rows)]) == 2
    with pytest.raises(Cancelled):
        next(rows)
    assert done == [2]


def test_articles_are_taken_one_batch_at_a_time(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(make_bert(tmp_path / "m", batch=2).folder)
    taken: list[int] = []

    def source() -> Iterator[Article]:
        for number, article in enumerate(ARTICLES):
            taken.append(number)
            yield article

    next(embedder.embed_articles(source()))
    assert taken == [0, 1]


def test_a_cancelled_query_raises(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(make_bert(tmp_path / "m").folder)
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        embedder.embed_query("脚手架", token)


def test_the_fingerprint_follows_the_folder_and_not_its_place(tmp_path: Path) -> None:
    first = OnnxEmbedder(make_bert(tmp_path / "a", name="same").folder)
    second = OnnxEmbedder(make_bert(tmp_path / "b", name="same").folder)
    other = OnnxEmbedder(make_bert(tmp_path / "c", name="same", max_tokens=16).folder)
    assert first.fingerprint == second.fingerprint != other.fingerprint
    assert len(first.fingerprint) == 16


def test_a_graph_whose_values_are_not_finite_fails_with_the_models_name() -> None:
    for vectors in ([[np.nan, 1]], [[np.inf, 1]], [[0, 0]]):
        with pytest.raises(ModelFailed, match="模型 m 计算失败"):
            finish(np.array(vectors, np.float32), 1, 2, True, "m")
    with pytest.raises(ModelFailed, match=r"\(1, 2\)"):
        finish(np.zeros((1, 3), np.float32), 1, 2, True, "m")


def test_pooling_reads_no_padding() -> None:
    hidden = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert pool(hidden, mask, "cls").tolist() == [[6, 7, 8], [12, 13, 14]]
    assert pool(hidden, mask, "last").tolist() == [[9, 10, 11], [18, 19, 20]]
    assert pool(hidden, mask, "mean").tolist() == [[7.5, 8.5, 9.5], [15, 16, 17]]


# --- the bundled model ---


@pytest.fixture(scope="module")
def e5() -> OnnxEmbedder:
    return OnnxEmbedder(E5_SMALL_ZH)


def test_the_bundled_model_finds_the_article_that_answers(e5: OnnxEmbedder) -> None:
    articles = [
        Article("施工现场临时用电规定", "第四条", "配电箱应当装设漏电保护器，并由持证电工维护。"),
        Article("脚手架通用规定", "第六条", "脚手架的立杆下应当设置垫板，基础应当坚实平整。"),
        Article("中华人民共和国劳动法", "第三十六条", "劳动者每日工作时间不得超过八小时。"),
        Article("高处作业规定", "第九条", "临边和洞口应当设置防护栏杆，并挂安全网。"),
    ]
    matrix = np.stack(list(e5.embed_articles(articles)))
    questions = ["电箱没有漏电保护怎么办", "架子底下没垫板", "一天最多上几个小时班", "洞口边上没有装栏杆"]
    found = [int(np.argmax(matrix @ e5.embed_query(question))) for question in questions]
    assert found == [0, 1, 2, 3]
    assert e5.dim == 384
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-6)


def test_the_bundled_template_is_that_of_the_card(e5: OnnxEmbedder) -> None:
    article = Article("中华人民共和国建筑法", "第二条", "在境内从事建筑活动，应当遵守本法。")
    assert e5.article_text(article) == "passage: 建筑法第二条 在境内从事建筑活动，应当遵守本法。"


def test_the_same_text_has_the_same_vector_beside_others_and_in_threads(e5: OnnxEmbedder) -> None:
    alone = e5.embed_query("脚手架立杆间距")
    list(e5.embed_articles(ARTICLES))
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(e5.embed_query("脚手架立杆间距"))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 6
    assert all(np.array_equal(alone, vector) for vector in results)


def test_a_hostile_query_is_embedded_like_any_other(e5: OnnxEmbedder) -> None:
    for text in ("", "\x00", "\ud800", "＜s＞" * 500, "脚" * 200_000, "{text}{instruction}", "\u202e\u200b"):
        assert np.isfinite(e5.embed_query(text)).all()


# --- an endpoint ---


class Endpoint:
    """Remembers what it was asked; answers vectors that depend on the text alone."""

    def __init__(self, dim: int = 4) -> None:
        self.calls: list[list[str]] = []
        self.dim = dim

    def __call__(self, texts: list[str]) -> np.ndarray[Any, Any]:
        self.calls.append(texts)
        return np.array([[len(text), *range(1, self.dim)] for text in texts], dtype=np.float32) * 3


def test_an_endpoint_gets_filled_templates_in_batches_and_its_vectors_become_unit() -> None:
    endpoint = Endpoint()
    embedder: Embedder = CallableEmbedder(endpoint, name="remote", dim=4, query_template="Q: {text}", batch=2)
    done: list[int] = []
    vectors = np.stack(list(embedder.embed_articles(ARTICLES[:3], done.append)))
    embedder.embed_query("脚手架")
    assert [len(call) for call in endpoint.calls] == [2, 1, 1]
    assert endpoint.calls[2] == ["Q: 脚手架"]
    assert endpoint.calls[0][0] == "中华人民共和国建筑法第三十条 脚手架的立杆间距"
    assert done == [2, 3]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    "answer",
    [
        np.zeros((1, 3)),
        np.zeros((2, 4)),
        np.zeros(4),
        np.full((1, 4), np.nan),
        np.zeros((1, 4)),
        np.zeros((0, 4)),
    ],
)
def test_an_answer_of_another_shape_or_without_numbers_fails_with_the_name(
    answer: np.ndarray[Any, Any],
) -> None:
    embedder = CallableEmbedder(lambda texts: answer, name="remote", dim=4)
    with pytest.raises(ModelFailed, match="remote"):
        embedder.embed_query("脚手架")


def test_what_the_endpoint_raises_arrives_unchanged() -> None:
    def refuse(texts: list[str]) -> np.ndarray[Any, Any]:
        raise ConnectionRefusedError("down")

    with pytest.raises(ConnectionRefusedError):
        CallableEmbedder(refuse, name="remote", dim=4).embed_query("脚手架")


def test_an_endpoint_query_that_is_cancelled_meanwhile_is_not_returned() -> None:
    token, endpoint = CancelToken(), Endpoint()

    def cancelling(texts: list[str]) -> np.ndarray[Any, Any]:
        token.cancel()
        return endpoint(texts)

    embedder = CallableEmbedder(cancelling, name="remote", dim=4)
    with pytest.raises(Cancelled):
        embedder.embed_query("脚手架", token)
    with pytest.raises(Cancelled):
        embedder.embed_query("脚手架", token)
    assert len(endpoint.calls) == 1


def test_endpoint_fingerprints_differ_by_every_setting() -> None:
    def fingerprint(**settings: Any) -> str:
        return CallableEmbedder(Endpoint(), **{"name": "remote", "dim": 4, **settings}).fingerprint

    changed = [
        {"name": "b"},
        {"dim": 5},
        {"query_template": "Q{text}"},
        {"instruction": "i"},
        {"max_chars": 9},
    ]
    prints = [fingerprint(), *(fingerprint(**change) for change in changed)]
    assert len(set(prints)) == len(prints)
    assert fingerprint() == prints[0]


def test_an_endpoint_template_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="只能使用"):
        CallableEmbedder(Endpoint(), name="remote", dim=4, query_template="{words}")


def test_a_tokenizer_without_the_end_token_is_refused_when_opening(tmp_path: Path) -> None:
    folder = make_qwen(tmp_path / "m", eos="<|nothing|>").folder
    with pytest.raises(ModelInvalid, match="结束符"):
        OnnxEmbedder(folder)
    assert "<|nothing|>" not in build_tokenizer().get_vocab()

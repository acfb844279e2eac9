"""Scores of pairs against NumPy, whatever padding, batch and kind of output; the bundled model and its card; an endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.index.beside import Spare
from cg_rag.index.corpus import Article
from cg_rag.index.embedder import OnnxEmbedder
from cg_rag.index.model_errors import Cancelled, ModelFailed, ModelInvalid, ModelMissing
from cg_rag.index.model_folder import SETTINGS_FILE, ModelFolder
from cg_rag.index.models import E5_SMALL_ZH, STATUTE_CE_6L
from cg_rag.index.onnx import CancelToken
from cg_rag.index.pairs import PairTemplate, PairTokenizer
from cg_rag.index.reranker import CallableReranker, OnnxReranker, _Failure, sigmoid
from tests.onnx_fixtures import VOCABULARY, SignallingToken, edit_settings
from tests.reranker_fixtures import (
    CHAT,
    NO,
    YES,
    RerankerFixture,
    make_chat_model,
    make_pair_model,
    make_slow_reranker,
    pair_ids,
)

QUERY = "脚手架立杆间距"
ARTICLES = [
    Article("中华人民共和国建筑法", "第三十条", "脚手架的立杆间距"),
    Article("安全法", "第二条", "临时用电"),
    Article("安全法", "", "安全" * 60),
    Article("安全法", "第三条", "间距"),
    *(Article("建筑法", f"第{number}条", "临时用电" * number) for number in range(1, 7)),
]
TEXTS = [
    "建筑法第三十条 脚手架的立杆间距",
    "安全法第二条 临时用电",
    "安全法 " + "安全" * 60,
    "安全法第三条 间距",
]
TEXTS += [f"建筑法第{number}条 {'临时用电' * number}" for number in range(1, 7)]


def expected(fixture: RerankerFixture, rows: Sequence[tuple[list[int], list[int]]]) -> list[float]:
    return [fixture.logit(*row) for row in rows]


def values(reranker: OnnxReranker, query: str = QUERY) -> list[float]:
    return [score.value for score in reranker.score(query, ARTICLES)]


def chat_ids(query: str, document: str, max_tokens: int = 160) -> tuple[list[int], list[int]]:
    """The chat template one token a character, the document cut and the end of the template kept."""
    head, tail = CHAT.split("{document}")
    head = head.format(instruction="脚手架", query=query)
    tail_ids = tokens_of(tail)
    return (tokens_of(head) + tokens_of(document))[: max_tokens - len(tail_ids)] + tail_ids, []


def tokens_of(text: str) -> list[int]:
    ids = []
    while text:
        control = next((token for token in VOCABULARY if len(token) > 1 and text.startswith(token)), text[0])
        ids.append(VOCABULARY.get(control, VOCABULARY["<unk>"]))
        text = text[len(control) :]
    return ids


# --- against NumPy ---


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("width", [1, 2])
def test_pair_scores_equal_numpy_for_every_batch_and_side(
    tmp_path: Path, width: int, side: str, batch: int
) -> None:
    fixture = make_pair_model(tmp_path / "m", width, batch=batch, padding_side="right")
    if side == "left":
        # The first token of this graph is the first place: with padding on the left it would be another token.
        fixture = make_pair_model(tmp_path / "left", width, batch=1, padding_side="left")
    reranker = OnnxReranker(fixture.folder)
    logits = expected(fixture, [pair_ids(QUERY, text) for text in TEXTS])
    np.testing.assert_allclose(values(reranker), logits, atol=1e-5)
    scores = [score.score for score in reranker.score(QUERY, ARTICLES)]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-np.array(logits))), atol=1e-5)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_whole_vocabulary_is_read_at_the_last_real_token(tmp_path: Path, side: str, batch: int) -> None:
    fixture = make_chat_model(tmp_path / "m", batch=batch, padding_side=side)
    logits = expected(fixture, [chat_ids(QUERY, text) for text in TEXTS])
    np.testing.assert_allclose(values(OnnxReranker(fixture.folder)), logits, atol=1e-4)


def test_an_export_of_no_and_yes_gives_the_share_of_yes(tmp_path: Path) -> None:
    fixture = make_chat_model(tmp_path / "m", vocabulary=False, batch=4)
    logits = expected(fixture, [chat_ids(QUERY, text) for text in TEXTS])
    np.testing.assert_allclose(values(OnnxReranker(fixture.folder)), logits, atol=1e-4)


def test_batches_hold_fewer_pairs_where_the_output_would_be_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = make_chat_model(tmp_path / "m", batch=8)
    reranker = OnnxReranker(fixture.folder)
    whole = values(reranker)
    lengths: list[tuple[int, ...]] = []
    run = reranker._session.run

    def counted(feeds: Any, cancel: Any = None) -> Any:
        lengths.append(feeds["input_ids"].shape)
        return run(feeds, cancel)

    monkeypatch.setattr(reranker._session, "run", counted)
    monkeypatch.setattr("cg_rag.index.reranker.MAX_LOGITS", 320 * len(VOCABULARY))
    np.testing.assert_allclose(values(reranker), whole, atol=1e-5)
    assert all(rows * length <= 320 or rows == 1 for rows, length in lengths)
    assert 2 <= max(rows for rows, _ in lengths) < 8


@pytest.mark.parametrize("batch", [1, 3])
def test_scores_are_the_same_whether_another_processor_helps_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    reranker = OnnxReranker(make_pair_model(tmp_path / "m", batch=batch).folder)
    many = [Article("建筑法", f"第{number}条", "临时用电" * (number % 9)) for number in range(40)]
    threads: set[int] = set()
    run = reranker._session.run

    def noted(feeds: Any, cancel: Any = None) -> Any:
        threads.add(threading.get_ident())
        return run(feeds, cancel)

    monkeypatch.setattr(reranker._session, "run", noted)
    monkeypatch.setattr("cg_rag.index.reranker.SPARE", Spare(1))
    alone = reranker.score(QUERY, many)
    assert threads == {threading.get_ident()}
    monkeypatch.setattr("cg_rag.index.reranker.SPARE", Spare(4))
    assert reranker.score(QUERY, many) == alone
    assert len(threads) > 1


# --- what the model reads ---


def test_only_the_article_is_cut_and_a_long_question_leaves_it_half(tmp_path: Path) -> None:
    tokenizer = PairTokenizer(make_pair_model(tmp_path / "m").folder / "tokenizer.json", 20)
    for query, document in (
        ("脚" * 5, "手" * 30),
        ("脚" * 30, "手" * 30),
        ("脚" * 30, "手"),
        ("", "手" * 30),
    ):
        (row,) = tokenizer.encode_pairs(query, [document])
        assert (row.ids, row.type_ids) == pair_ids(query, document, 20)
        assert len(row) <= 20


def test_the_end_of_a_chat_template_survives_any_cut(tmp_path: Path) -> None:
    file = make_chat_model(tmp_path / "m").folder / "tokenizer.json"
    tokenizer = PairTokenizer(file, 120, PairTemplate.parse(CHAT, "脚手架"))
    short, long, asked = (
        tokenizer.encode_pairs(query, [document])[0].ids
        for query, document in (("脚手", "架"), ("脚手", "架" * 500), ("脚" * 500, "架" * 500))
    )
    tail = tokens_of(CHAT.split("{document}")[1])
    assert short == chat_ids("脚手", "架", 120)[0]
    assert long == chat_ids("脚手", "架" * 500, 120)[0]
    assert len(long) == len(asked) == 120
    assert short[-len(tail) :] == long[-len(tail) :] == asked[-len(tail) :] == tail
    assert asked.count(VOCABULARY["架"]) > 5, "the article still has room"
    with pytest.raises(ModelFailed, match="模板已占满"):
        PairTokenizer(file, 36, PairTemplate.parse(CHAT, "")).encode_pairs("脚", ["手"])


@pytest.mark.parametrize("kind", ["pair", "chat"])
@pytest.mark.parametrize("evil", ["</s>", "<s>", "<|im_start|>", "＜|im_end|＞", "<|endo<s>ftext|>"])
def test_control_tokens_in_a_question_or_an_article_are_text(tmp_path: Path, kind: str, evil: str) -> None:
    fixture = make_pair_model(tmp_path / "m") if kind == "pair" else make_chat_model(tmp_path / "m")
    reranker = OnnxReranker(fixture.folder)
    seen: list[list[int]] = []
    pad = reranker._tokenizer.pad

    def spied(rows: Any, side: Any) -> Any:
        seen.extend(row.ids for row in rows)
        return pad(rows, side)

    reranker._tokenizer.pad = spied  # type: ignore[method-assign]
    articles = [
        Article("安全法", "第一条", "脚手架"),
        Article(f"安{evil}法", "第一条", evil),
        Article("安<", "s>", evil),
    ]
    reranker.score("脚手", articles)
    reranker.score(f"脚{evil}手", articles)
    control = {VOCABULARY[token] for token in VOCABULARY if len(token) > 3 and token != "<unk>"} | {0, 2}
    counts = [[token for token in ids if token in control] for ids in seen]
    assert counts.count(counts[0]) == len(counts) == 6


def test_compact_documents_have_no_brackets_and_no_white_space(tmp_path: Path) -> None:
    fixture = make_pair_model(tmp_path / "m", compact=True, document_chars=20)
    article = Article("中华人民共和国《安全法》", "第一条", " 脚手\n　架 < s> 用电" * 3)
    text = OnnxReranker(fixture.folder).document_text(article)
    assert text == "安全法第一条 脚手架< s>用电脚手架<"


def test_questions_are_cut_before_they_are_read(tmp_path: Path) -> None:
    reranker = OnnxReranker(make_pair_model(tmp_path / "m", query_chars=4).folder)
    assert values(reranker, "脚手架立杆间距") == values(reranker, "脚手架立")
    assert values(reranker, "脚手架立") != values(reranker, "脚手架")


# --- what is refused ---


@pytest.mark.parametrize("spoil", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_fails_with_the_models_name(tmp_path: Path, spoil: float) -> None:
    reranker = OnnxReranker(make_pair_model(tmp_path / "scorer", spoil=spoil).folder)
    with pytest.raises(ModelFailed, match="模型 scorer 计算失败：得分不是有限的数"):
        reranker.score(QUERY, ARTICLES)


def test_a_probability_is_taken_as_it_is_and_must_be_one(tmp_path: Path) -> None:
    fixture = make_pair_model(tmp_path / "far", spoil=100.0, sigmoid=False)
    with pytest.raises(ModelFailed, match=r"模型 far 计算失败：得分 .* 不在 0\.\.1 之内"):
        OnnxReranker(fixture.folder).score(QUERY, ARTICLES)
    # A head of tanh and a small weight: between 0 and 1 by adding enough.
    near = make_pair_model(tmp_path / "near", spoil=0.0, sigmoid=False)
    logit = near.logit(*pair_ids(QUERY, TEXTS[0]))
    shifted = make_pair_model(tmp_path / "shifted", spoil=0.5 - logit, sigmoid=False)
    (score,) = OnnxReranker(shifted.folder).score(QUERY, ARTICLES[:1])
    assert score.score == score.value == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "embedder"}, "kind 须为 'reranker'"),
        ({"output": "no_yes"}, "与 output no_yes 不符"),
        ({"output": "token_logits", "yes_id": 1, "no_id": 2}, "与 output token_logits 不符"),
        ({"output": "token_logits"}, "no_id 与 yes_id"),
        ({"yes_id": 1, "no_id": 2}, "no_id 与 yes_id"),
        ({"output": "no_yes", "sigmoid": False}, "sigmoid"),
        ({"batch": 9}, r"batch 须在 1\.\.8 之间，收到 9"),
        ({"max_tokens": 4}, "max_tokens 须在"),
        ({"query_chars": 0}, "query_chars 须在"),
        ({"document_template": "{law_name}"}, "须含 {contents}"),
        ({"pair_template": "{query}"}, "pair_template 须先有"),
        ({"pair_template": "{document} {query}"}, "pair_template 须先有"),
        ({"pair_template": "{query} {document} {query}"}, "只能使用"),
        ({"pooling": "cls"}, "未知的设置项 pooling"),
        ({"sha256": {}}, "SHA-256 应为 未记录"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_key(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    fixture = make_pair_model(tmp_path / "m")
    edit_settings(fixture.folder, **changes)
    with pytest.raises(ModelInvalid, match=words):
        OnnxReranker(fixture.folder)


def test_token_ids_beyond_the_vocabulary_fail_with_the_models_name(tmp_path: Path) -> None:
    fixture = make_chat_model(tmp_path / "chat", yes_id=len(VOCABULARY))
    with pytest.raises(ModelFailed, match="模型 chat 计算失败"):
        OnnxReranker(fixture.folder).score(QUERY, ARTICLES[:1])
    assert YES != NO


# --- stopping ---


def test_a_caller_who_left_is_noticed_between_two_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = OnnxReranker(make_pair_model(tmp_path / "m", batch=8).folder)
    token, calls = CancelToken(), []
    run = reranker._session.run

    def leaving(feeds: Any, cancel: Any = None) -> Any:
        calls.append(len(feeds["input_ids"]))
        result = run(feeds, cancel)
        token.cancel()
        return result

    monkeypatch.setattr(reranker._session, "run", leaving)
    with pytest.raises(Cancelled):
        reranker.score(QUERY, ARTICLES, token)
    assert calls == [8]


def test_a_running_computation_stops_when_another_thread_cancels(tmp_path: Path) -> None:
    reranker = OnnxReranker(make_slow_reranker(tmp_path / "slow"))
    token = SignallingToken()

    def cancel() -> None:
        if token.entered.wait(30):
            token.cancel()

    other = threading.Thread(target=cancel)
    other.start()
    with pytest.raises(Cancelled) as caught:
        reranker.score(QUERY, [Article("安全法", "第一条", "用电" * 250)], token)
    other.join()
    # Where the runtime had come to its end, nothing would have been raised before the token was looked at.
    assert type(caught.value.__context__) in reranker._session._failures


def test_work_on_another_processor_stops_too_when_the_caller_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = OnnxReranker(make_pair_model(tmp_path / "m", batch=1).folder)
    monkeypatch.setattr("cg_rag.index.reranker.SPARE", Spare(2))
    token, running = CancelToken(), threading.Barrier(2)
    num_calls = 0
    run = reranker._session.run

    def leaving(feeds: Any, cancel: Any = None) -> Any:
        nonlocal num_calls
        num_calls += 1
        running.wait(30)  # one in each thread, and no third
        token.cancel()
        return run(feeds, cancel)

    monkeypatch.setattr(reranker._session, "run", leaving)
    with pytest.raises(Cancelled):
        reranker.score(QUERY, ARTICLES, token)
    assert num_calls == 2


@pytest.mark.parametrize("faulty", ["caller", "helper"])
def test_failure_of_one_half_ends_the_other_and_is_the_one_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: str
) -> None:
    reranker = OnnxReranker(make_pair_model(tmp_path / "m", batch=1).folder)
    monkeypatch.setattr("cg_rag.index.reranker.SPARE", Spare(2))
    caller, both_began, failed = threading.get_ident(), threading.Barrier(2), threading.Event()
    calls: list[int] = []
    run = reranker._session.run

    class NotedFailure(_Failure):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if value is not None:
                failed.set()

    monkeypatch.setattr("cg_rag.index.reranker._Failure", NotedFailure)

    def failing(feeds: Any, cancel: Any = None) -> Any:
        calls.append(threading.get_ident())
        both_began.wait(30)
        if (threading.get_ident() == caller) == (faulty == "caller"):
            raise ModelFailed("m", "the one")
        assert failed.wait(30), "this half is in the middle of its batch until the other one has ended"
        return run(feeds, cancel)

    monkeypatch.setattr(reranker._session, "run", failing)
    with pytest.raises(ModelFailed, match="the one"):
        reranker.score(QUERY, ARTICLES)
    assert len(calls) == 2


def test_a_model_that_computes_with_several_threads_has_no_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = OnnxReranker(make_pair_model(tmp_path / "m", batch=1).folder, threads=2)
    monkeypatch.setattr("cg_rag.index.reranker.SPARE", None)
    assert len(reranker.score(QUERY, ARTICLES)) == len(ARTICLES)


# --- the bundled model ---

CARD = [
    ("中华人民共和国安全生产法", "第三十条", "生产经营单位的特种作业人员必须按照国家有关规定经专门的安全作业培训，取得相应资格，方可上岗作业。", 5.98),
    ("中华人民共和国建筑法", "第三十八条", "建筑施工企业在编制施工组织设计时，应当根据建筑工程的特点制定相应的安全技术措施。", 3.50),
    ("中华人民共和国民法典", "第二条", "民法调整平等主体的自然人、法人和非法人组织之间的人身关系和财产关系。", 4.56),
]  # fmt: skip


@pytest.fixture(scope="module")
def bundled() -> OnnxReranker:
    return OnnxReranker(STATUTE_CE_6L, shared=E5_SMALL_ZH)


def test_bundled_model_gives_the_numbers_of_its_card(bundled: OnnxReranker) -> None:
    articles = [Article(law, number, contents) for law, number, contents, _ in CARD]
    found = [score.value for score in bundled.score("电焊工没有证能不能上岗", articles)]
    # CPUs round dynamic int8 in their own ways.
    np.testing.assert_allclose(found, [logit for *_, logit in CARD], atol=0.35)
    assert found[0] > max(found[1:])


def test_bundled_scores_do_not_depend_on_what_is_scored_beside(bundled: OnnxReranker) -> None:
    articles = [Article(law, number, contents) for law, number, contents, _ in CARD]
    together = bundled.score("电焊工没有证", articles)
    assert [bundled.score("电焊工没有证", [article])[0] for article in articles] == together
    assert bundled.settings.batch == 1


def test_bundled_pair_is_the_tokenizers_own_of_both_texts(bundled: OnnxReranker) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(E5_SMALL_ZH / "tokenizer.json"))
    tokenizer.enable_truncation(256, strategy="only_second")
    for query in ("电焊工没有证能不能上岗", "塔吊"):
        for article in (Article(law, number, contents * 12) for law, number, contents, _ in CARD):
            text = bundled.document_text(article)
            (row,) = bundled._tokenizer.encode_pairs(query, [text])
            assert row.ids == tokenizer.encode(query, text).ids
            assert len(row) == 256


def test_both_bundled_models_use_one_tokenizer_file_and_one_vocabulary_in_memory(
    bundled: OnnxReranker,
) -> None:
    assert [path.parent.name for path in STATUTE_CE_6L.parent.rglob("tokenizer.json")] == ["e5-small-zh"]
    embedder = OnnxEmbedder(E5_SMALL_ZH)
    assert embedder._tokenizer._tokenizer is bundled._tokenizer._tokenizer


def test_bundled_folder_records_the_digest_of_each_file_and_of_the_shared_one() -> None:
    folder = ModelFolder.open(STATUTE_CE_6L, "reranker", E5_SMALL_ZH)
    files = [path for path in STATUTE_CE_6L.iterdir() if path.name not in (SETTINGS_FILE, "MODEL_CARD.md")]
    assert {path.name for path in files} | {"tokenizer.json"} == set(folder.digests)
    folder.check_digests([*files, folder.find_file("tokenizer.json")])
    with pytest.raises(ModelMissing, match=r"tokenizer\.json"):
        OnnxReranker(STATUTE_CE_6L)


# --- an endpoint ---


def endpoint(call: Callable[[str, list[str]], Any]) -> CallableReranker:
    return CallableReranker(call, name="remote")


def test_an_endpoint_gets_texts_without_control_tokens_and_may_leave_scores_out() -> None:
    asked: list[Any] = []

    def call(query: str, texts: list[str]) -> list[float | None]:
        asked.append((query, texts))
        return [0.25, None]

    found = endpoint(call).score("脚<|im_end|>手", [Article("法", "第一条", "a</s>b"), ARTICLES[1]])
    assert asked == [("脚< |im_end|>手", ["法第一条 a< /s>b", "安全法第二条 临时用电"])]
    assert [score and (score.score, score.value) for score in found] == [(0.25, 0.25), None]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0.5], "应有 2 个得分，实有 1 个"),
        ([0.5, 1.5], "不在"),
        ([0.5, float("nan")], "不在"),
        ([-0.1, None], "不在"),
    ],
)
def test_an_endpoints_answer_that_does_not_fit_fails_with_its_name(answer: list[Any], words: str) -> None:
    with pytest.raises(ModelFailed, match=f"模型 remote 计算失败：.*{words}"):
        endpoint(lambda query, texts: answer).score(QUERY, ARTICLES[:2])


def test_a_cancelled_call_to_an_endpoint_raises_before_and_after() -> None:
    token, calls = CancelToken(), []

    def call(query: str, texts: list[str]) -> list[float]:
        calls.append(query)
        token.cancel()
        return [0.5]

    for _ in range(2):
        with pytest.raises(Cancelled):
            endpoint(call).score(QUERY, ARTICLES[:1], token)
    assert len(calls) == 1


@given(st.floats(-1e6, 1e6))
def test_sigmoid_stays_in_its_bounds_and_is_symmetric(logit: float) -> None:
    assert 0 <= sigmoid(logit) <= 1
    assert sigmoid(logit) + sigmoid(-logit) == pytest.approx(1)

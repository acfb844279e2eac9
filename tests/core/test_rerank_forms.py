"""What is sent to rerank servers and what their answers mean, without a server."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.json_call import decode
from cg_rag.core.rerank_forms import (
    LIMITS,
    RerankForm,
    RerankLimits,
    estimate_tokens,
    make_body,
    parse_scores,
    rerank_url,
    rescale,
    split_batches,
)
from cg_rag.core.upstream_errors import UpstreamBroken, UpstreamEmpty, UpstreamError, UpstreamFailed


def entries(*pairs: tuple[Any, Any], name: str = "relevance_score") -> list[dict[str, Any]]:
    return [{"index": index, name: score} for index, score in pairs]


def parse(told: Any, num_texts: int = 3) -> list[float | None]:
    return parse_scores(decode(json.dumps(told).encode()), num_texts)


@pytest.mark.parametrize(
    ("endpoint", "form", "url"),
    [
        ("http://host/v1", "flat", "http://host/v1/rerank"),
        ("http://host/v1/", "flat", "http://host/v1/rerank"),
        ("http://host/v1/rerank", "flat", "http://host/v1/rerank"),
        ("http://host/v2/rerank/", "flat", "http://host/v2/rerank"),
        ("http://host/compatible-api/v1/reranks", "flat", "http://host/compatible-api/v1/reranks"),
        ("http://host/my-rerank", "flat", "http://host/my-rerank/rerank"),
        ("http://host/api/v1", "dashscope", "http://host/api/v1/services/rerank/text-rerank/text-rerank"),
        (
            "http://host/api/v1/services/rerank/text-rerank/text-rerank",
            "dashscope",
            "http://host/api/v1/services/rerank/text-rerank/text-rerank",
        ),
        ("http://host/proxy/rerank", "dashscope", "http://host/proxy/rerank"),
        ("http://host:8080", "tei", "http://host:8080/rerank"),
    ],
)
def test_an_endpoint_that_names_the_call_is_used_as_it_is(endpoint: str, form: RerankForm, url: str) -> None:
    assert rerank_url(endpoint, form) == url


def test_each_form_holds_only_what_every_server_of_it_takes() -> None:
    assert make_body("flat", "m", "q", ["a", "b"]) == {
        "model": "m",
        "query": "q",
        "documents": ["a", "b"],
        "top_n": 2,
    }
    assert make_body("dashscope", "m", "q", ["a", "b"]) == {
        "model": "m",
        "input": {"query": "q", "documents": ["a", "b"]},
        "parameters": {"top_n": 2, "return_documents": False},
    }
    assert make_body("tei", "m", "q", ["a", "b"]) == {"query": "q", "texts": ["a", "b"], "truncate": True}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda found: {"results": found, "id": "x", "usage": {"total_tokens": 3}},
        lambda found: {"output": {"results": found}, "code": "", "message": "", "request_id": "x"},
        lambda found: {"object": "list", "data": found, "error": None},
        lambda found: {"results": None, "data": found},
        lambda found: found,
    ],
    ids=["results", "output.results", "data", "null results", "array"],
)
@pytest.mark.parametrize("name", ["relevance_score", "score", "logit"])
def test_every_shape_of_an_answer_is_read_by_its_indices(wrap: Any, name: str) -> None:
    told = wrap(entries((2, 0.5), (0, 1), (1, 0.25), name=name))
    assert parse(told) == [1.0, 0.25, 0.5]


def test_texts_that_come_back_and_fields_that_nobody_knows_are_not_needed() -> None:
    told = {"results": [{"index": 0, "relevance_score": 0.5, "document": {"text": "…"}, "new": [1]}]}
    assert parse(told, 1) == [0.5]


def test_a_text_without_score_has_none() -> None:
    assert parse(entries((2, 0.5), (0, 0.25))) == [0.25, None, 0.5]


@pytest.mark.parametrize(
    "told",
    [
        entries((0, 0.5), (0, 0.5)),
        entries((3, 0.5)),
        entries((-1, 0.5)),
        entries((-3, 0.5)),
        entries(("0", 0.5)),
        entries((0.0, 0.5)),
        entries((True, 0.5)),
        entries((None, 0.5)),
        entries((0, "0.5")),
        entries((0, True)),
        entries((0, None)),
        entries((0, [0.5])),
        [{"index": 0}],
        [{"relevance_score": 0.5}],
        [0.5, 0.25, 0.1],
        [None],
        # One bad entry spoils all of them: which text it was meant for is not known.
        [*entries((0, 0.5)), "x"],
        {"results": {"0": 0.5}},
        {"output": []},
        {"output": {"results": None}},
        {},
        {"code": "", "message": ""},
        "text",
        None,
        7,
    ],
    ids=str,
)
def test_an_answer_that_does_not_add_up_is_malformed(told: Any) -> None:
    with pytest.raises(UpstreamBroken) as caught:
        parse(told)
    assert (caught.value.reason, caught.value.may_retry) == ("malformed", False)


@pytest.mark.parametrize(
    "answer", [b"", b"{", b"<html>", b"\xff", b'[{"index":0,"score":NaN}]', b'[{"index":0,"score":1e999}]']
)
def test_what_is_no_json_or_no_finite_number_is_malformed(answer: bytes) -> None:
    with pytest.raises(UpstreamBroken) as caught:
        parse_scores(decode(answer), 3)
    assert caught.value.reason == "malformed"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("told", [[], {"results": []}, {"output": {"results": []}}, {"data": []}])
def test_an_answer_without_entries_is_empty(told: Any) -> None:
    with pytest.raises(UpstreamEmpty):
        parse(told)


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({"error": {"message": "busy", "code": "overloaded"}}, "overloaded"),
        ({"error": "Model is overloaded", "error_type": "Overloaded"}, ""),
        ({"code": "Throttling.RateQuota", "message": "later", "request_id": "x"}, "Throttling.RateQuota"),
        # An error beside a list: the list is not to be trusted.
        ({"error": {"code": "partial"}, "results": entries((0, 0.5))}, "partial"),
    ],
)
def test_an_error_object_under_200_is_the_failure_that_it_names(told: Any, code: str) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        parse(told)
    assert caught.value.code == code


# Rescaling.


def test_scores_within_0_and_1_stay_as_they_are() -> None:
    assert rescale([0.0, None, 1.0, 0.3]) == [0.0, None, 1.0, 0.3]
    assert rescale([None, None]) == [None, None]
    assert rescale([]) == []


def test_one_score_outside_makes_all_of_them_logits() -> None:
    scores = rescale([0.5, -3.0, None, 4.0])
    assert scores == [
        pytest.approx(1 / (1 + math.exp(-value))) if value is not None else None
        for value in (0.5, -3.0, None, 4.0)
    ]


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.none() | finite | st.floats(-20, 20), max_size=20))
def test_rescaling_keeps_the_order_and_ends_in_0_and_1(scores: list[float | None]) -> None:
    scaled = rescale(scores)
    pairs = [(a, b) for a, b in zip(scores, scaled, strict=True) if a is not None and b is not None]
    assert all((a is None) == (b is None) for a, b in zip(scores, scaled, strict=True))
    assert all(0.0 <= b <= 1.0 for _, b in pairs)
    ordered = [b for _, b in sorted(pairs)]
    assert ordered == sorted(ordered)
    assert rescale(scaled) == scaled


# Batches.


def test_batches_are_bounded_by_count() -> None:
    limits = RerankLimits(32, 10**9, 10**9)
    batches = split_batches("q", ["a"] * 70, limits)
    assert [len(batch) for batch in batches] == [32, 32, 6]


def test_batches_are_bounded_by_tokens_with_the_question_counted_for_each_text() -> None:
    # 10 of the question and 5 of a text: two texts are 30.
    batches = split_batches("问" * 10, ["条" * 5] * 5, RerankLimits(100, 30, 10**9))
    assert [list(batch) for batch in batches] == [[0, 1], [2, 3], [4]]


def test_a_text_over_a_limit_goes_alone() -> None:
    batches = split_batches("问", ["条", "条" * 50, "条"], RerankLimits(100, 30, 10**9))
    assert [list(batch) for batch in batches] == [[0], [1], [2]]


def test_without_texts_there_is_no_batch() -> None:
    assert split_batches("问", [], LIMITS["tei"]) == []


def test_tokens_are_not_underestimated_for_law_texts() -> None:
    assert estimate_tokens("脚手架应验收。") == 7
    assert estimate_tokens("6.0.5(1)") == 8
    assert estimate_tokens("abcde ") == 3
    assert estimate_tokens("\U00020000") == 3
    assert estimate_tokens("") == 0


texts = st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=40), max_size=30)
forms = st.sampled_from(["flat", "dashscope", "tei"])


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=20),
    texts,
    st.integers(1, 8),
    st.integers(1, 200),
    st.integers(4200, 6000),
    forms,
)
def test_batches_hold_every_text_once_in_order_and_keep_the_limits(
    query: str, given_texts: list[str], max_texts: int, max_tokens: int, max_bytes: int, form: RerankForm
) -> None:
    batches = split_batches(query, given_texts, RerankLimits(max_texts, max_tokens, max_bytes))
    assert [index for batch in batches for index in batch] == list(range(len(given_texts)))
    for batch in batches:
        inside = [given_texts[index] for index in batch]
        assert 1 <= len(inside) <= max_texts
        if len(inside) > 1:
            assert sum(estimate_tokens(query) + estimate_tokens(text) for text in inside) <= max_tokens
            # Control characters take six bytes each, and no law is made of them.
            if not any(ord(character) < 32 for character in query + "".join(inside)):
                assert len(orjson.dumps(make_body(form, "m", query, inside))) <= max_bytes


# Any answer.

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "results",
                    "output",
                    "data",
                    "index",
                    "relevance_score",
                    "score",
                    "logit",
                    "error",
                    "code",
                    "message",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=500)
@given(st.one_of(json_values.map(orjson.dumps), st.binary(max_size=40)), st.integers(1, 4))
def test_any_answer_is_scores_or_an_upstream_error(answer: bytes, num_texts: int) -> None:
    try:
        scores = parse_scores(decode(answer), num_texts)
    except UpstreamError:
        return
    assert len(scores) == num_texts
    assert any(score is not None for score in scores)
    assert all(score is None or (type(score) is float and math.isfinite(score)) for score in scores)


@given(st.dictionaries(st.integers(0, 9), st.floats(-1e6, 1e6), min_size=1, max_size=10), st.randoms(), forms)
def test_every_score_reaches_the_text_that_its_index_names(
    scores: dict[int, float], dice: Any, form: RerankForm
) -> None:
    found = entries(*scores.items(), name="score" if form == "tei" else "relevance_score")
    dice.shuffle(found)
    told: Any = (
        found if form == "tei" else {"results": found} if form == "flat" else {"output": {"results": found}}
    )
    assert parse(told, 10) == [scores.get(index) for index in range(10)]

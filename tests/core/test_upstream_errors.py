"""What an upstream says of its failure, read for what may be told and what may be decided."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.upstream_errors import UpstreamError, status_error, stream_error

PROMPT = "脚手架何时验收"


def told(body: Any, status: int = 422) -> UpstreamError:
    return status_error(status, json.dumps(body, ensure_ascii=False).encode(), None)


def test_a_validation_error_is_read_without_the_request_that_it_quotes() -> None:
    entry = {
        "type": "extra_forbidden",
        "loc": ["body", "response_format", 0],
        "msg": "Extra",
        "input": PROMPT,
    }
    error = told({"detail": [entry]})
    assert error.detail.split() == ["Extra", "body", "response_format"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (
            {"error": {"code": "model_not_found", "type": "invalid_request_error", "message": PROMPT}},
            "model_not_found",
        ),
        ({"error": {"code": None, "type": "invalid_request_error"}}, "invalid_request_error"),
        ({"error": {"code": 404, "type": "NotFoundError"}}, "NotFoundError"),
        ({"code": "Arrearage", "message": "x"}, "Arrearage"),
        ({"error": {"code": PROMPT, "type": "a b"}}, ""),
        ({"error": {"code": "sk-0123", "type": "x" * 49}}, ""),
        ({"error": "no such model"}, ""),
        ({"object": "error", "type": "BadRequestError", "message": "x", "code": 400}, "BadRequestError"),
        ([], ""),
        ("text", ""),
    ],
)
def test_a_name_is_taken_over_only_when_it_is_one(body: Any, code: str) -> None:
    error = told(body, 400)
    assert error.code == code
    assert str(error) == "refused, status 400, 0 attempts"
    assert PROMPT not in str(error) + repr(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "code", "type", "detail", "loc", "msg", "message", "status"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=200)
@given(JSON | st.binary(max_size=50), st.integers(100, 199) | st.integers(300, 999))
def test_any_body_with_any_status_is_one_of_the_errors(body: Any, status: int) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = status_error(status, data, None)
    assert error.status == status
    assert len(error.detail) <= 4096
    if not isinstance(body, bytes):
        assert isinstance(stream_error(body), UpstreamError)

from __future__ import annotations

import json
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.errors import CgError
from cg_rag.core.json_text import MAX_DEPTH, MAX_STRING_BYTES, MAX_VALUES, BodyLexer, LongString

LIMIT = 48  # a small lift threshold, so that small examples reach every branch

TEXT = st.text(max_size=60)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=5)
CUTS = st.lists(st.integers(1, 70), max_size=30)


def lex(body: bytes, cuts: list[int] | None = None, limit: int = MAX_STRING_BYTES) -> dict[str, Any]:
    lexer = BodyLexer(max_string_bytes=limit)
    for size in cuts or []:
        lexer.feed(body[:size])
        body = body[size:]
    lexer.feed(body)
    return lexer.finish().value


def refusal(body: bytes, cuts: list[int] | None = None, limit: int = MAX_STRING_BYTES) -> str:
    with pytest.raises(CgError) as caught:
        lex(body, cuts, limit)
    assert caught.value.code == "invalid_request"
    return caught.value.message


def unlifted(value: Any) -> Any:
    if isinstance(value, LongString):
        assert value.num_bytes == sum(map(len, value.slices))
        return value.text()
    if isinstance(value, list):
        return [unlifted(item) for item in value]
    if isinstance(value, dict):
        return {key: unlifted(item) for key, item in value.items()}
    if isinstance(value, str):
        assert len(value.encode()) <= LIMIT, "a long string was not lifted"
    return value


def with_all_escaped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).replace("/", "\\/").encode()


@settings(max_examples=150)
@given(OBJECTS, CUTS, st.sampled_from([orjson.dumps, with_all_escaped]))
def test_any_object_cut_anywhere_reads_as_orjson_reads_it(
    value: dict[str, Any], cuts: list[int], dump: Any
) -> None:
    body = dump(value)
    assert unlifted(lex(body, cuts, LIMIT)) == orjson.loads(body)


@settings(max_examples=150)
@given(OBJECTS, CUTS, st.data())
def test_damaged_json_is_refused_exactly_when_orjson_refuses_it(
    value: dict[str, Any], cuts: list[int], data: st.DataObject
) -> None:
    body = bytearray(with_all_escaped(value) + orjson.dumps(value))[: data.draw(st.integers(0, 400))]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b'"', b"\\", b"\\u", b"\\ud83d", b"{", b"]", b",", b"\x01", b"\xff", b"\xe4", b"9", b""]
            )
        )
    assert_same_verdict(bytes(body), cuts)


@settings(max_examples=150)
@given(st.binary(max_size=200), CUTS)
def test_arbitrary_bytes_are_refused_or_read_as_orjson_reads_them(body: bytes, cuts: list[int]) -> None:
    assert_same_verdict(b'{"a":"' + body, cuts)
    assert_same_verdict(b'{"a":"' + body + b'"}', cuts)
    assert_same_verdict(body, cuts)


def assert_same_verdict(body: bytes, cuts: list[int]) -> None:
    try:
        expected = orjson.loads(body)
    except orjson.JSONDecodeError:
        expected = None
    try:
        found = unlifted(lex(body, cuts, LIMIT))
    except CgError as error:
        refused: CgError | None = error
    else:
        refused = None
        assert found == expected
    if refused is not None:
        assert refused.code == "invalid_request"
        ours = ("键名超过", "整数超出 64 位", "嵌套超过")
        assert not isinstance(expected, dict) or any(reason in refused.message for reason in ours)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "为空"),
        (b" \n ", "为空"),
        (b"[]", "须为 JSON 对象"),
        (b'"a"', "须为 JSON 对象"),
        (b"null", "须为 JSON 对象"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'\xff\xfe{\x00"\x00', "BOM"),
        (b"{", "不完整"),
        (b'{"a":"b', "字符串没有结束"),
        (b'{"a":"b\\', "字符串没有结束"),
        (b"{} x", "第 4 个字节附近，JSON 之后还有多余内容"),
        (b'{"a":1,}', "第 7 个字节附近，多了一个逗号"),
        (b"{'a':1}", "语法有误"),
        (b'{"a":NaN}', "语法有误"),
        (b'{"a":Infinity}', "语法有误"),
        (b'{"a":-Infinity}', "语法有误"),
        (b'{"a":1e999}', "数字超出范围"),
        (b'{"a":[-1e999]}', "数字超出范围"),
        (b'{"a":18446744073709551616}', "64 位"),
        (b'{"a":-9223372036854775809}', "64 位"),
        (b'{"a":[1' + b"0" * 400 + b"]}", "64 位"),
        (b'{"a":1' + b"0" * 5000 + b"}", "64 位"),
        (b'{"a":01}', "字节附近"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b'{"a":"\x1f"}', "控制字符"),
        (b'{"a":"\\x"}', "转义"),
        (b'{"a":"\xff"}', "UTF-8：第 7 个字节"),
        (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
        (b'{"a":/**/1}', "语法有误"),
    ],
)
def test_what_is_not_one_json_object_is_refused_with_a_reason(body: bytes, told: str) -> None:
    assert told in refusal(body)
    assert told in refusal(body, [1] * len(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":18446744073709551615}',
        b'{"a":-9223372036854775808}',
        b'{"a":1e19}',
        b'{"a":"99999999999999999999"}',
        b'{"a":[0.' + b"1" * 5000 + b",-1." + b"0" * 50 + b"e5]}",
        b'{"a":' + b"1" * 40 + b"e5}",
    ],
)
def test_numbers_within_64_bit_and_digits_in_strings_pass(body: bytes) -> None:
    assert lex(body, [1] * len(body)) == orjson.loads(body)


def test_the_last_of_two_equal_keys_wins_as_with_orjson() -> None:
    assert lex(b'{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_of_exactly_the_limit_passes_and_one_more_does_not(brackets: tuple[bytes, bytes]) -> None:
    opening, closing = brackets

    def nested(depth: int) -> bytes:
        return b'{"a":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"

    assert lex(nested(MAX_DEPTH))
    assert "32 层" in refusal(nested(MAX_DEPTH + 1))
    assert "32 层" in refusal(nested(MAX_DEPTH + 1), [1] * 400)


def test_brackets_inside_strings_and_beside_each_other_are_no_depth() -> None:
    body = orjson.dumps({"a": "[" * 500, "b": [[]] * 500, "c": '\\"[[{'})
    assert lex(body, [3] * 100) == orjson.loads(body)


def test_deep_nesting_is_refused_while_it_is_fed_not_at_the_end() -> None:
    lexer = BodyLexer()
    lexer.feed(b'{"a":')
    with pytest.raises(CgError, match="32 层"):
        lexer.feed(b"[" * 40)


def test_a_bomb_of_tiny_values_is_refused_after_its_first_pieces() -> None:
    lexer = BodyLexer()
    piece = b"[]," * 20_000
    with pytest.raises(CgError, match=f"{MAX_VALUES} 个值"):
        lexer.feed(b'{"images":[' + piece * 140)
    assert len(lexer._rest) < 4 * len(piece)


@pytest.mark.parametrize(
    "filler", [b" ", b'"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",', b"0." + b"1" * 900 + b","]
)
def test_everything_but_the_long_strings_is_held_to_its_own_limit(filler: bytes) -> None:
    lexer = BodyLexer(max_rest_bytes=10_000)
    with pytest.raises(CgError, match="10000 字节"):
        lexer.feed(b'{"a":[' + filler * 20_000)


def picture_body(size: int) -> bytes:
    return b'{"question":"\\"x","images":[{"data":"' + b"QUJD" * (size // 4) + b'"}],"n":1}'


def test_a_picture_is_lifted_and_its_neighbours_stay() -> None:
    value = lex(picture_body(MAX_STRING_BYTES + 4), [100_000])
    picture = value["images"][0]["data"]
    assert isinstance(picture, LongString)
    assert picture.text() == "QUJD" * (MAX_STRING_BYTES // 4 + 1)
    assert (value["question"], value["n"]) == ('"x', 1)


def test_a_string_of_exactly_the_limit_is_not_lifted() -> None:
    assert isinstance(lex(picture_body(MAX_STRING_BYTES))["images"][0]["data"], str)


def test_two_pictures_keep_their_places() -> None:
    texts = ["A" * 70_000, "B" * 80_000]
    value = lex(orjson.dumps({"images": texts, "last": texts[0]}))
    assert [item.text() for item in value["images"]] == texts
    assert value["last"].text() == texts[0]


def test_all_escapes_inside_a_lifted_string_are_undone() -> None:
    escaped = rb"\/\n\r\t\"\\\b\f\u0041\u4e2d\ud83d\ude00"
    for cut in range(1, len(escaped) + 8):
        value = lex(b'{"a":"' + escaped * 20 + b'"}', [cut, 7, 5, 3], limit=16)
        assert value["a"].text() == '/\n\r\t"\\\b\fA中😀' * 20


def test_small_slices_are_joined_to_larger_ones() -> None:
    picture = lex(picture_body(200_000), [100] * 2_000)["images"][0]["data"]
    assert len(picture.slices) <= 4


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"\x01", "控制字符"),
        (b"\n", "控制字符"),
        (b"\\x", "转义"),
        (b"\\u12G4", "字节附近"),
        (b"\xff", "字节附近"),
        (b"\xe4\xb8", "字节附近"),
        (b"\\ud800", "surrogate"),
        (b"\\ud800A", "字节附近"),
        (b"\\udc00", "surrogate"),
    ],
)
def test_a_fault_inside_a_lifted_string_is_refused_like_one_in_a_short_string(bad: bytes, told: str) -> None:
    body = b'{"a":"' + b"A" * 100 + bad + b"B" * 100 + b'"}'
    assert told in refusal(body, [1] * len(body), limit=16)
    assert told in refusal(body, limit=16)


def test_a_key_above_the_limit_is_refused() -> None:
    assert "键名超过 65536 字节" in refusal(b'{"' + b"k" * 70_000 + b'":1}')


def test_a_fault_after_a_picture_is_placed_where_the_caller_sees_it() -> None:
    body = b'{"a":"' + b"\\/" * 50_000 + b'","b":x}'
    assert f"第 {body.index(b'x') + 1} 个字节" in refusal(body)


@pytest.mark.parametrize("guess", ["\u00000", "\u00001", ":0", "0", "a" * 32 + ":0"])
def test_no_short_string_is_taken_for_the_place_of_a_lifted_one(guess: str) -> None:
    body = orjson.dumps({"guess": guess, guess: 1, "picture": "A" * 70_000, "after": [guess]})
    value = lex(body)
    assert value["guess"] == guess
    assert value["after"] == [guess]
    assert value[guess] == 1
    assert isinstance(value["picture"], LongString)


def test_the_mark_of_a_lifted_place_is_another_one_for_each_request() -> None:
    assert BodyLexer()._token != BodyLexer()._token


def test_finish_touches_nothing_of_what_was_lifted() -> None:
    lexer = BodyLexer()
    lexer.feed(picture_body(4 << 20))
    assert len(lexer._rest) < 200
    assert not lexer._pending
    slices = next(iter(lexer._lifted.values())).slices
    assert lexer.finish().value["images"][0]["data"].slices is slices


def test_the_size_of_what_was_fed_is_told() -> None:
    lexer = BodyLexer()
    lexer.feed(b'{"a":')
    lexer.feed(b"1}")
    assert lexer.finish().num_bytes == 7


def test_bodies_leave_no_names_in_the_cache_of_attributes() -> None:
    # `finditer` leaves one per call: 450 of these 3000, and each keeps a MiB of a burst's memory from being freed.
    def read() -> None:
        lexer = BodyLexer()
        lexer.feed(b'{"a":12}')
        lexer.finish()

    read()
    before = sys.getallocatedblocks()
    for _ in range(3000):
        read()
    assert sys.getallocatedblocks() - before < 50

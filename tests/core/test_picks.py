"""What models answer when they are asked for indices, whole and in pieces."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.picks import PickReader
from tests.growth import assert_linear

NUM_CANDIDATES = 5


def read(text: str, max_items: int = 5, truncated: bool = False) -> list[int]:
    reader = PickReader(NUM_CANDIDATES, max_items)
    found = reader.feed(text) + reader.finish(truncated)
    assert found == list(reader.picks)
    return found


@pytest.mark.parametrize(
    ("text", "picks"),
    [
        ('{"indices":[1]}', [1]),
        ('{"indices":[3,1,2]}', [3, 1, 2]),
        ('{"indices":[0,-1,99,"3",2.0,2,2,true]}', [3, 2]),
        ('```json\n{"indices": [2, 4]}\n```', [2, 4]),
        ('```\n{"indices":["`2`", 4]}\n```', [4]),
        ('根据条文，选出：{"indices":[4]}。以上是全部。', [4]),
        ('{"indices":[1,2,]}', [1, 2]),
        ('{"indices":[5]} {"indices":[1]}', [5]),
        ('{"indices":[99]} {"indices":[1]}', [1]),
        ('形如 {"indices":[编号,…]}：{"indices":[2]}', [2]),
        ("{'indices': [1, '2']}", [1, 2]),
        ('{"answer":"{\\"indices\\":[1,\\"2\\"]}"}', [1, 2]),
        ("indices：[３，１]", [3, 1]),
        ('{"reason":"第 3 条","indices":[1]}', [1]),
        ('{"indices":[1', [1]),
        ('{"indices":[1,2', [1, 2]),
        ('{"indices":[null,false,1e0,1]}', [1]),
        ('{"indices":[1-3,2]}', [2]),
        ('{"indices":[{"index":4,"score":2},{"index":9}]}', [4]),
        ('{"indices":[9999999999999999999999999999999999,18446744073709551617,1]}', [1]),
        ('{"indices":[001,+2]}', [1, 2]),
    ],
)
def test_what_models_say_becomes_valid_picks_in_their_order(text: str, picks: list[int]) -> None:
    assert read(text) == picks


@pytest.mark.parametrize(
    ("text", "picks"),
    [
        ('{"indices":2}', [2]),
        ('{"indices":"2"}', [2]),
        ('{"indices":"3, 1"}', [3, 1]),
        ('{"indices":"3、1；2"}', [3, 1, 2]),
        ('{"indices":["3,1"]}', [3, 1]),
        ('{"indices":{"index":1},"index":[2]}', []),
        ("[1,3]", [1, 3]),
        ("[]", []),
        ("```json\n[3, 1, 3]\n```", [3, 1]),
        ('[{"index":2},{"index":"4"}]', [2, 4]),
        ('{"index":[1]}', [1]),
        ('{"index":2,"reason":"第3条"}', [2]),
        ('{"indexes":[2]}', [2]),
        ('{"编号":[5,2.0]}', [5, 2]),
        ('答案：{"indices":2}。', [2]),
        ("4", [4]),
        ('"4,5"', [4, 5]),
    ],
)
def test_other_spellings_of_a_selection_are_read_where_nothing_else_can_be_meant(
    text: str, picks: list[int]
) -> None:
    assert read(text) == picks
    assert read(text, truncated=True) == []
    assert read(text, max_items=1) == picks[:1]


@pytest.mark.parametrize("text", ["[]", '{"index":[]}', "```json\n[]\n```"])
def test_an_empty_list_in_another_spelling_is_an_answer_too(text: str) -> None:
    reader = PickReader(NUM_CANDIDATES, 5)
    reader.feed(text)
    reader.finish()
    assert (reader.picks, reader.fault) == ((), None)


def test_no_more_than_asked_for_are_taken_and_the_first_ones_stay() -> None:
    assert read('{"indices":[4,3,2,1]}', max_items=2) == [4, 3]


def test_a_pick_is_known_as_soon_as_its_number_is_complete() -> None:
    reader = PickReader(12, 5)
    assert reader.feed('{"indices":[1') == []
    assert reader.feed("2") == []
    assert reader.feed(",") == [12]
    assert reader.feed('"3"') == [3]
    assert reader.feed(" ,4]") == [4]
    assert reader.feed("}") == []
    assert reader.finish() == []


def test_last_number_of_an_answer_cut_at_a_limit_is_not_trusted() -> None:
    assert read('{"indices":[2,1', truncated=True) == [2]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"indices":[]}', None),
        ('{"indices": [ ] }', None),
        ('{"indices":[0]}', "none_valid"),
        ('{"indices":[null]}', "none_valid"),
        ('{"indices":["无"]}', "none_valid"),
        ('{"indices":null}', "no_list"),
        ("没有相关条文。", "no_list"),
        ("", "no_list"),
        ("选第[1]条", "no_list"),
        ("1 和 3", "no_list"),
        ("[[1]]", "none_valid"),
        ('{"excluded":[1]}', "no_list"),
        ('{"indices":{"index":1}}', "none_valid"),
        ('{"indices":true}', "none_valid"),
        ('{"indices":"第1条"}', "none_valid"),
        ('{"indices":"1 或 3"}', "none_valid"),
        ('{"indices":1.5}', "none_valid"),
        ('{"indices":6}', "none_valid"),
        ("6", "none_valid"),
        ('{"index":2} {"index":3}', "no_list"),
        ("[1]" + " " * 5000, "no_list"),
    ],
)
def test_an_empty_list_is_an_answer_and_nothing_else_without_picks_is(text: str, fault: str | None) -> None:
    reader = PickReader(NUM_CANDIDATES, 5)
    reader.feed(text)
    reader.finish()
    assert (reader.picks, reader.fault) == ((), fault)


# Pieces of JSON in any order reach more of the reader than random letters do.
PIECES = st.sampled_from(
    [
        '{"indices":[',
        "true",
        "null",
        "3",
        "```json\n",
        "因为",
        "，",
        "￥",
        "\U0001f600",
        "７",
        '{"',
        "indices",
        "index",
        '{"index":',
        '"',
        ":",
        "：",
        "[",
        "]",
        "}",
        ",",
        " ",
        "\n",
        "\\",
        "'",
        "1",
        "2",
        "-",
        ".",
        "e",
        "99",
    ]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=40).map("".join))


@given(TEXTS, st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_picks_are_valid_unique_and_few_enough_for_any_text(
    text: str, num_candidates: int, max_items: int, truncated: bool
) -> None:
    reader = PickReader(num_candidates, max_items)
    picks = reader.feed(text) + reader.finish(truncated)
    assert picks == list(reader.picks)
    assert len(set(picks)) == len(picks) <= max_items
    assert set(picks) <= set(range(1, num_candidates + 1))
    assert not (picks and reader.fault)


@given(TEXTS, st.lists(st.integers(0, 80), max_size=8), st.booleans())
def test_picks_do_not_depend_on_how_the_answer_was_cut(text: str, cuts: list[int], truncated: bool) -> None:
    whole, parts = PickReader(NUM_CANDIDATES, 3), PickReader(NUM_CANDIDATES, 3)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    found, start = [], 0
    for end in ends:
        found += parts.feed(text[start:end])
        start = end
    found += parts.finish(truncated)
    assert found == whole.feed(text) + whole.finish(truncated)
    assert parts.fault == whole.fault


@given(TEXTS)
def test_one_character_at_a_time_gives_the_same(text: str) -> None:
    whole, parts = PickReader(NUM_CANDIDATES, 3), PickReader(NUM_CANDIDATES, 3)
    found = [pick for character in text for pick in parts.feed(character)] + parts.finish()
    assert found == whole.feed(text) + whole.finish()


@pytest.mark.parametrize(
    "text",
    [
        '{"indices":[' + "0," * 2_000_000,
        '{"indices":[0]}' * 300_000,
        "indices" + " " * 4_000_000,
        '{"indices":["' + "x" * 4_000_000,
        '{"indices":[' + " " * 4_000_000,
        '"indices":' * 400_000,
        "[" * 4_000_000,
        "[" * 4000,
        "```" * 1300,
        '{"indices":"' + "1," * 2000 + '"}',
    ],
    ids=["items", "lists", "key", "string", "gap", "keys", "nesting", "deep", "fences", "numbers"],
)
def test_megabytes_of_nonsense_cost_no_more_than_their_length(text: str) -> None:
    started = time.process_time()
    reader = PickReader(NUM_CANDIDATES, 3)
    for start in range(0, len(text), 65536):
        reader.feed(text[start : start + 65536])
    reader.finish()
    assert set(reader.picks) <= {1}
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("cut", range(1, 60))
@pytest.mark.parametrize("key", ["excluded_indices", "rejected_indices", "not_indices", "preindices"])
def test_list_of_another_key_is_no_selection_however_it_is_cut(key: str, cut: int) -> None:
    text = f'{{"{key}":[2],' + " " * 80 + '"indices":[3]}'
    reader = PickReader(5, 5)
    for start in range(0, len(text), cut):
        reader.feed(text[start : start + cut])
    reader.finish()
    assert reader.picks == (3,)


def test_prompt_that_is_said_again_is_passed_over() -> None:
    reader = PickReader(5, 5)
    reader.feed('按 {"indices":[编号,…]} 作答：{"indices":[3,4]}')
    reader.finish()
    assert reader.picks == (3, 4)


@pytest.mark.parametrize("fill", [" ", "\n", "a", "` "])
def test_fence_that_nothing_closes_is_read_in_linear_time(fill: str) -> None:
    assert_linear(read, ("```" + fill * 4000)[:4000])


def test_fence_with_blanks_around_its_json_is_read() -> None:
    assert read("```json \u3000\n [2, 4] \n\n```") == [2, 4]

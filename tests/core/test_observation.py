"""Observations: whatever a model writes for JSON, a label of the list or none, and a text that can be shown."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.observation import (
    MAX_TEXT_CHARACTERS,
    Observation,
    observation_schema,
    read_observation,
)
from cg_rag.modes.vision_rules import load_vision_texts

TEXTS = load_vision_texts(None)
TAXONOMY = TEXTS.rules.taxonomy
SAID = {
    "description": "图中可见施工区域地面存在积水。",
    "hazard_label": "场地积水问题",
    "hazard_description": "场地中部积水未排除。",
    "suggestions": ["及时排除积水。"],
    "is_non_scene": False,
}
# docs/vision.md
TEXT = (
    "图片描述：图中可见施工区域地面存在积水。\n\n确定隐患描述：场地积水问题\n\n整改建议：\n1. 及时排除积水。"
)


def read(text: str) -> Observation:
    return read_observation(text, TAXONOMY, TEXTS.criteria_alone)


def said(**changes: object) -> str:
    return json.dumps(SAID | changes, ensure_ascii=False)


def test_the_example_of_the_document() -> None:
    assert read(said()) == Observation(TEXT, "场地积水问题", "场地中部积水未排除。")


def test_the_schema_names_the_whole_list_and_nothing_else() -> None:
    schema = observation_schema(TAXONOMY)
    labels = schema["properties"]["hazard_label"]["enum"]
    assert len(labels) == 63
    assert labels[-1] == ""
    assert set(schema["required"]) == set(SAID)


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{said()}\n```",
        f"好的，结果如下：\n{said()}\n以上仅供参考。",
        said().replace('"is_non_scene": false}', '"is_non_scene": false,}').replace("。]", "。,]"),
        said(is_non_scene="false"),
        said(is_non_scene=None),
        said(hazard_label=" 「场地积水问题」 "),
        said(hazard_label="场地积水"),
        said(suggestions="1. 及时排除积水。"),
        said(suggestions=["1. 及时排除积水。", "", 5]),
        said(description="图中可见施工区域\n地面存在积水[cite^1]。"),
        said(extra={"a": [1]}),
        json.dumps(SAID),
        f"{{无}} {said()} {said(hazard_label='现场吸烟问题')}",
        said(description="按照《建筑法》第三条的规定，图中可见施工区域地面存在积水。"),
    ],
)
def test_sloppy_json_says_the_same(text: str) -> None:
    observation = read(text)
    assert (observation.label, observation.error, observation.is_non_scene) == ("场地积水问题", "", False)
    assert observation.text.replace("施工区域 地面", "施工区域地面") == TEXT


@pytest.mark.parametrize("label", ["", "无", None, "无隐患", " "])
def test_no_hazard_is_no_failure(label: str | None) -> None:
    observation = read(said(hazard_label=label, suggestions=[]))
    assert (observation.label, observation.hazard_description, observation.error) == ("", "", "")
    assert observation.text == f"图片描述：{SAID['description']}\n\n确定隐患描述：无\n\n整改建议：无"


def test_no_site_is_no_failure() -> None:
    observation = read(said(hazard_label="", suggestions=[], is_non_scene=True))
    assert (observation.is_non_scene, observation.error) == (True, "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("图里是一处基坑。", "没有所要的 JSON 对象"),
        ("{}", "没有所要的 JSON 对象"),
        (said()[:-40], "没有所要的 JSON 对象"),
        (said(hazard_label="地面不平问题"), "不在标签词表中，收到“地面不平问题”"),
        (said(hazard_label=["场地积水问题"]), "不是字符串"),
        ('{"description": "积水很深。", "hazard_description": "有积水。"}', "缺少 hazard_label"),
        (said(description=""), "description"),
        (said(description=7), "description"),
        (said(is_non_scene="大概"), "不是布尔值"),
        (said(is_non_scene=True), "又写了不是施工现场"),
    ],
)
def test_what_cannot_be_read_says_why_and_has_no_label(text: str, error: str) -> None:
    observation = read(text)
    assert error in observation.error
    assert (observation.label, observation.is_non_scene) == ("", False)
    assert observation.text


def test_an_invented_label_is_not_shown_as_one() -> None:
    observation = read(said(hazard_label="地面不平问题"))
    assert observation.text == f"图片描述：{SAID['description']}\n\n整改建议：\n1. 及时排除积水。"


_PIECES = st.sampled_from(
    [
        *SAID,
        *TAXONOMY.labels[:3],
        *'{}[]",:\\\n',
        "[cite^1]",
        "〔2〕",
        "《建筑法》第三条",
        "\\ud800",
        "true",
        "无",
    ]
)
_ANY = st.one_of(
    st.text(max_size=200),
    st.lists(_PIECES, max_size=30).map("".join),
    st.fixed_dictionaries(
        dict.fromkeys(
            SAID,
            st.one_of(
                st.none(),
                st.booleans(),
                st.text(max_size=20),
                _PIECES,
                st.lists(_PIECES, max_size=3),
                st.floats(),
            ),
        )
    ).map(json.dumps),
)


@settings(max_examples=400)
@given(_ANY)
def test_whatever_is_written_is_a_label_of_the_list_or_a_text_that_can_be_shown(text: str) -> None:
    observation = read(text)
    assert observation.label in {"", *TAXONOMY.labels}
    assert not (observation.error and observation.label)
    assert not re.search(r"cite\W{0,3}\d|〔\d|[\x00-\x08\x0b-\x1f\x7f]", observation.text)
    assert orjson.dumps([observation.text, observation.error, observation.hazard_description])


def test_a_long_or_deep_answer_is_bounded() -> None:
    for text in ("{" * 100_000, '{"description":' + "[" * 100_000, "积水" * 100_000):
        observation = read(text)
        assert observation.error
        assert len(observation.text) <= MAX_TEXT_CHARACTERS

"""是, 否 and 未识别: the table of docs/vision-eval.md, row by row."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.photo_labels import PhotoLabel
from cg_rag.core.photo_verdict import MATCHES, Match, Rules, Verdict, judge, read_answer
from cg_rag.core.report import Scene
from cg_rag.core.taxonomy import LEVELS
from cg_rag.modes.vision_rules import load_vision_taxonomy
from tests.evaluating import free_form

TAXONOMY = load_vision_taxonomy()
LABELS = {"场地积水问题": "文明施工"}


def verdict(
    label: PhotoLabel,
    answer: str | dict[str, Any],
    match: Match,
    rules: Rules = Rules(),  # noqa: B008
) -> Verdict:
    payload = {"mode": "free_form", "answer": answer} if isinstance(answer, str) else answer
    return judge(label, read_answer(payload, TAXONOMY, LABELS), match, rules)


def expected(level: str = "", category: str = "", scene: Scene = "", *hazards: tuple[str, ...]) -> PhotoLabel:
    return PhotoLabel("1.jpg", 2, level, scene, category, hazards)


GENERAL = expected("一般隐患", "施工用电")
AGENTIC = {"mode": "agentic", "answer": "画面为室内会议桌，不作隐患判定。"}
NO_SITE = "场景：非施工现场\n\n隐患描述：\n1. 办公室。"


@pytest.mark.parametrize(
    ("label", "answer", "match", "said"),
    [
        (GENERAL, free_form("一般隐患", "施工用电"), "both", "yes"),
        (GENERAL, free_form("一般隐患", "高处作业"), "both", "no"),
        (GENERAL, free_form("一般隐患", "高处作业"), "level", "yes"),
        (GENERAL, free_form("无隐患", "无"), "level", "no"),
        (GENERAL, free_form("较大隐患", "施工用电"), "level", "unrecognised"),
        (GENERAL, free_form("较大隐患", "施工用电"), "both", "unrecognised"),
        (GENERAL, free_form("较大隐患", "高处作业"), "both", "no"),
        (GENERAL, "图中有一只猫。", "both", "unrecognised"),
        (GENERAL, NO_SITE, "both", "unrecognised"),
        (GENERAL, f"## 图1\n{free_form('一般隐患', '施工用电')}\n## 图2\n{NO_SITE}", "both", "unrecognised"),
        (expected("一般隐患"), free_form("一般隐患", "施工用电"), "both", "uncounted"),
        (expected(), free_form("一般隐患", "施工用电"), "level", "uncounted"),
        (expected(scene="unsupported_scene"), NO_SITE, "both", "yes"),
        (expected(scene="unsupported_scene"), AGENTIC | {"scene_status": "unsupported_scene"}, "both", "yes"),
        (
            expected(scene="unsupported_scene"),
            AGENTIC | {"scene_status": "insufficient_visual_evidence"},
            "level",
            "no",
        ),
        (GENERAL, AGENTIC | {"scene_status": "unsupported_scene"}, "both", "unrecognised"),
        (GENERAL, AGENTIC | {"scene_status": "not_assessed"}, "both", "unrecognised"),
        (expected(scene="insufficient_visual_evidence"), NO_SITE, "level", "no"),
        (expected(scene="unsupported_scene"), free_form("一般隐患", "施工用电"), "both", "no"),
        (expected(scene="unsupported_scene"), NO_SITE, "category", "uncounted"),
        (expected("疑似重大事故隐患"), free_form("重大事故隐患", "施工用电"), "level", "no"),
    ],
)
def test_level_and_category(label: PhotoLabel, answer: str, match: Match, said: Verdict) -> None:
    assert verdict(label, answer, match) == said


def test_major_and_suspected_major_are_one_where_they_are_merged() -> None:
    answer = free_form("重大事故隐患", "施工用电")
    assert verdict(expected("疑似重大事故隐患"), answer, "level", Rules(merge_major=True)) == "yes"
    assert verdict(expected("一般隐患"), answer, "level", Rules(merge_major=True)) == "no"


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("立杆底部积水，未设垫板。", "yes"),
        ("立杆底部有水 坑，垫板缺失。", "yes"),
        ("立杆底部积水。", "no"),
        ("立杆悬空，未见垫板，地面有水坑。", "yes"),
    ],
)
def test_every_group_of_keywords_is_to_be_mentioned(description: str, said: Verdict) -> None:
    label = expected("", "", "", ("积水", "水坑"), ("垫板", "底座"))
    assert verdict(label, free_form("一般隐患", "施工用电", description), "hazards") == said


def test_one_group_is_enough_where_any_is() -> None:
    label = expected("", "", "", ("积水",), ("垫板",))
    answer = free_form("一般隐患", "施工用电", "立杆底部积水。")
    assert verdict(label, answer, "hazards", Rules(any_hazard=True)) == "yes"
    assert verdict(label, free_form("无隐患", "无", "没有问题，积水已排。"), "hazards") == "no"


@pytest.mark.parametrize(
    ("said", "category", "hazards"),
    [
        ({"parse_status": "succeeded", "hazard_label": "场地积水问题"}, "yes", "yes"),
        ({"parse_status": "succeeded", "hazard_label": ""}, "no", "no"),
        ({"parse_status": "succeeded", "is_non_scene": True}, "unrecognised", "unrecognised"),
        ({"parse_status": "failed", "hazard_label": ""}, "unrecognised", "unrecognised"),
    ],
)
def test_an_observation_has_a_category_and_never_a_level(
    said: dict[str, Any], category: Verdict, hazards: Verdict
) -> None:
    label = expected("一般隐患", "文明施工", "", ("积水",))
    observed = {"mode": "observe", **said}
    assert verdict(label, observed, "category") == category
    assert verdict(label, observed, "hazards") == hazards
    assert verdict(label, observed, "level") == "uncounted"


@given(st.sampled_from([*LEVELS, ""]), st.sampled_from([*TAXONOMY.categories, "无", ""]), st.text())
def test_every_answer_has_one_verdict_under_every_match(level: str, category: str, answer: str) -> None:
    for match in MATCHES:
        said = verdict(expected(level, category), answer, match)
        assert said in ("yes", "no", "unrecognised", "uncounted")
        if match == "level" and not level:
            assert said == "uncounted"

"""Levels, categories and labels: what counts as one, and that nothing is guessed."""

from __future__ import annotations

import pytest

from cg_rag.core.taxonomy import LEVELS, load_taxonomy
from cg_rag.modes.vision_rules import load_vision_taxonomy
from cg_rag.prompts.vocabulary import LABELS, TAXONOMY, load_json

VOCABULARY = load_vision_taxonomy()


def test_the_vocabularies_have_their_sizes() -> None:
    assert len(VOCABULARY.categories) == 19
    assert VOCABULARY.none == "无"
    assert len(VOCABULARY.labels) == 62
    assert VOCABULARY.version == "construction-hazard-19-v1"


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_names_itself(level: str) -> None:
    for written in (level, f"**{level}**", f"{level}。", f"属于{level}", f"“{level}”", f"{level}（见下）"):
        assert VOCABULARY.find_level(written) == level


@pytest.mark.parametrize(
    "written",
    [
        "",
        "较大隐患",
        "较大事故隐患",
        "严重",
        "高",
        "中风险",
        "重大或一般",
        "可能有隐患",
        "3级",
        "未发现重大事故隐患",
        "一般隐患和重大事故隐患",
    ],
)
def test_a_level_that_the_scale_lacks_is_none(written: str) -> None:
    assert VOCABULARY.find_level(written) is None


@pytest.mark.parametrize("category", [*VOCABULARY.categories, VOCABULARY.none])
def test_every_category_names_itself(category: str) -> None:
    for written in (category, f"**{category}**", f"{category}。", f"{category}（见下）"):
        assert VOCABULARY.find_category(written) == category


@pytest.mark.parametrize(
    ("written", "category"),
    [
        ("塔吊", "塔式起重机"),
        ("爬架", "附着式升降脚手架"),
        ("吊篮", "高处作业吊篮"),
        ("施工电梯", "施工升降机"),
        ("临时用电", "施工用电"),
        ("高支模", "模板支架"),
        ("3.13 高处作业", "高处作业"),
        ("13、高处作业", "高处作业"),
        ("高处作业类", "高处作业"),
        ("脚手架", None),
        ("脚手架工程", None),
        ("满堂支架", None),
        ("起重机械", None),
        ("消防", None),
        ("其他", None),
        ("施工用电和高处作业", None),
        ("", None),
    ],
)
def test_another_name_counts_only_where_it_can_mean_one_category(written: str, category: str | None) -> None:
    assert VOCABULARY.find_category(written) == category


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("场地积水问题", "场地积水问题"),
        (" 【场地积水问题】 ", "场地积水问题"),
        ("场地积水", "场地积水问题"),
        ("积水", None),
        ("", None),
    ],
)
def test_a_label_is_one_of_the_list(written: str, label: str | None) -> None:
    assert VOCABULARY.find_label(written) == label


def test_vocabularies_that_contradict_each_other_are_refused() -> None:
    taxonomy, labels = load_json(TAXONOMY), load_json(LABELS)
    with pytest.raises(ValueError, match="unknown categories"):
        load_taxonomy(taxonomy, {"labels": [{"label": "甲", "category": "乙"}]})
    with pytest.raises(ValueError, match="twice"):
        load_taxonomy(taxonomy, {"labels": [labels["labels"][0]] * 2})
    with pytest.raises(ValueError, match="levels"):
        load_taxonomy(taxonomy | {"levels": ["无隐患"]}, labels)
    both = [entry | {"also_written": ["同名"]} for entry in taxonomy["categories"]]
    with pytest.raises(ValueError, match="同名"):
        load_taxonomy(taxonomy | {"categories": both}, labels)

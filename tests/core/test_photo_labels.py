"""Label files as sites write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cg_rag.core.photo_labels import LabelInvalid, PhotoLabel, parse_labels
from cg_rag.modes.vision_rules import load_vision_taxonomy

TAXONOMY = load_vision_taxonomy()


def parse(text: str, is_jsonl: bool = False) -> list[PhotoLabel]:
    return parse_labels(text, TAXONOMY, is_jsonl)


@pytest.mark.parametrize(
    "head", ["图片,隐患等级,隐患分类,隐患描述", "photo,level,category,hazards", " File ,等级,类别,KEYWORDS"]
)
@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_heads_in_both_languages_delimiters_and_a_mark(head: str, delimiter: str, mark: str) -> None:
    text = f"{mark}{head}\r\na/1.jpg,一般,塔吊,积水|水坑\r\n".replace(",", delimiter)
    assert parse(text) == [PhotoLabel("a/1.jpg", 2, "一般隐患", "", "塔式起重机", (("积水", "水坑"),))]


def test_a_safe_photo_has_the_category_of_none_and_a_scene_has_neither() -> None:
    safe, scene, dark = parse("图片,等级\n1.jpg,未发现隐患\n2.jpg,非施工现场\n3.jpg,画面不足以判定\n")
    assert (safe.level, safe.category) == ("无隐患", "无")
    assert (scene.level, scene.scene) == ("", "unsupported_scene")
    assert dark.scene == "insufficient_visual_evidence"


def test_jsonl_takes_lists_and_its_own_question_and_other_fields_are_passed_over() -> None:
    rows = [
        {"图片": "1.jpg", "隐患": ["积水", ["垫板", "底座"]], "问题": "看基础", "标注人": "甲"},
        {"photo": "二\\2.jpg", "hazards": "a/b；c", "level": None},
    ]
    first, second = parse("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), is_jsonl=True)
    assert (first.hazards, first.question) == ((("积水",), ("垫板", "底座")), "看基础")
    assert (second.photo, second.hazards) == ("二/2.jpg", (("a", "b"), ("c",)))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("图片,等级,隐患等级\n1.jpg,一般隐患,无隐患\n", 2),
        ("图片,分类\n1.jpg,脚手架\n", 2),
        ("图片,等级,分类\n1.jpg,无隐患,施工用电\n", 2),
        ("图片,等级,分类\n1.jpg,非施工现场,施工用电\n", 2),
        ("图片,等级\n\n1.jpg,一般隐患,多出来的\n", 3),
        ('图片,等级\n1.jpg,"一般隐患\n', 2),
        ("图片\n/etc/passwd\n", 2),
        ("图片\na/../../b\n", 2),
        ("", 0),
    ],
)
def test_what_is_no_label_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(LabelInvalid) as caught:
        parse(text)
    assert f"第 {line} 行" in str(caught.value) or not line


@given(st.text(), st.booleans())
def test_any_text_gives_labels_or_a_reason(text: str, is_jsonl: bool) -> None:
    try:
        labels = parse(text, is_jsonl)
    except LabelInvalid as error:
        assert str(error).endswith("。")
    else:
        assert all(label.photo and ".." not in label.photo.split("/") for label in labels)

"""Real excerpts that lie beside the project, read as their manifest says; skipped where they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cg_rag.index.importers.law_text import Line, ParsedLaw, parse_law, write_law

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "awkward"
MANIFEST = FOLDER / "manifest.json"

if not MANIFEST.exists():
    pytest.skip("the excerpts are not here", allow_module_level=True)

EXPECTED = {entry["file"]: entry["expect"] for entry in json.loads(MANIFEST.read_text("utf-8"))}
# What a container takes apart first (JSON, CSV) is tested there.
TEXTS = sorted(name for name in EXPECTED if name.endswith((".md", ".txt")))


def read(name: str) -> ParsedLaw:
    content = (FOLDER / name).read_bytes()
    text = content.decode("gb18030" if name.startswith("24_") else "utf-8-sig")
    rows = text.replace("\r\n", "\n").split("\n")
    # The excerpts lost the names of their files, of which the manifest keeps one.
    told = str(EXPECTED[name].get("law_name_from", "")).removeprefix("file name: ")
    return parse_law([Line(number, row) for number, row in enumerate(rows, start=1)], told or Path(name).stem)


def numbers(law: ParsedLaw) -> list[str]:
    return [article.article_number for article in law.articles]


@pytest.mark.parametrize("name", TEXTS)
def test_an_excerpt_reads_as_its_manifest_says(name: str) -> None:
    expected: dict[str, Any] = EXPECTED[name]
    law = read(name)
    own = [number for number in numbers(law) if not number.startswith(("附", "全文")) and number]
    if "articles" in expected:
        assert own == expected["articles"]
    if "first_article" in expected:
        assert own[0] == expected["first_article"]
    if "articles_include" in expected:
        assert set(expected["articles_include"]) <= set(own)
    if "law_name" in expected:
        assert law.law_name == expected["law_name"]
    if expected.get("annex"):
        assert "附件一" in numbers(law)
    if expected.get("whole_document"):
        assert numbers(law) == ["全文"]


@pytest.mark.parametrize("name", TEXTS)
def test_an_excerpt_reads_the_same_from_what_was_written(name: str) -> None:
    law = read(name)
    rows = [Line(number, row) for number, row in enumerate(write_law(law).split("\n"), start=1)]
    again = parse_law(rows, "")
    assert [(a.law_name, a.article_number, a.contents) for a in again.articles] == [
        (a.law_name, a.article_number, a.contents) for a in law.articles
    ]


def test_a_footnote_and_the_annex_are_not_in_the_last_article() -> None:
    law = read("02_footnote_and_annex.md")
    assert "①" not in law.articles[0].contents
    assert [left.reason for left in law.left].count("脚注") == 1
    assert "惩治军人" not in law.articles[0].contents


def test_the_items_of_a_decision_keep_their_order() -> None:
    items = [number for number in numbers(read("08_decision_yi_dun.md")) if number]
    assert items[:3] == ["一、", "二、", "三、"]
    assert items[-1] == "十六、"
    assert len(items) == 16


def test_the_head_of_an_excerpt_is_no_article() -> None:
    for name in (
        "04_fullwidth_digits_header.md",
        "10_line_starting_with_ref_in_header.md",
        "20_ministry_rule_txt.txt",
    ):
        law = read(name)
        assert not any(
            "通过" in article.contents or "令第37号" in article.contents for article in law.articles
        )
        assert {left.reason for left in law.left} >= {"标题", "题注"}


def test_the_private_use_character_is_named_with_its_line() -> None:
    law = read("13_private_use_char.md")
    assert [line for line, text in law.warnings if "U+E723" in text] == [7]
    assert "\ue723" not in law.articles[0].contents


def test_the_name_of_a_standard_comes_from_its_file() -> None:
    law = read("17_clause_tab_or_space_latex.md")
    assert law.law_name == "GB51247-2018水工建筑物抗震设计标准"
    assert law.articles[0].extra["code"] == "GB51247-2018"


def test_a_table_stays_with_its_clause_without_its_tags() -> None:
    law = read("18_clause_with_html_table.md")
    assert numbers(law).count("3.3.5") == 1
    clause = next(article for article in law.articles if article.article_number == "3.3.5")
    assert "<" not in clause.contents
    assert "1 | 薄板、薄壳的底模板 | 1+2+3+4 | 1+2+3+4" in clause.contents.split("\n")
    assert "悬臂模板" in clause.contents

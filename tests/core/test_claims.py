"""Names of laws and articles in a report, held against its evidence."""

from __future__ import annotations

import pytest

from cg_rag.core.claims import cut_claims, cut_report
from cg_rag.core.evidence import Evidence
from cg_rag.core.report_parse import parse
from cg_rag.modes.vision_rules import load_rules, make_references

RULES = load_rules(None)
_ARTICLES = [
    ("GB55023-2022施工脚手架通用规范", "2.0.1", "脚手架性能应符合下列规定。"),
    (
        "中华人民共和国安全生产法",
        "第二十八条",
        "违反本条的，依照《中华人民共和国消防法》第六十条的规定处罚。",
    ),
    ("GB55023-2022施工脚手架通用规范", "6.0.5(1)", "架体应设护栏。"),
    ("某企业安全制度", "", "第三条 进场须戴安全帽。"),
]
REFERENCES = make_references(
    [Evidence(n, *article, {}) for n, article in enumerate(_ARTICLES, start=1)], RULES
)


@pytest.mark.parametrize(
    ("text", "verdict", "evidence"),
    [
        ("《施工脚手架通用规范》（GB 55023-2022）地基应坚实", "evidence", (1, 3)),
        ("GB55023—2022 第2.0.1条", "evidence", (1,)),
        ("《施工脚手架通用规范》GB55023第6.0.5条", "evidence", (3,)),
        ("第6.0.5条第1款", "evidence", (3,)),
        ("《安全生产法》第28条", "evidence", (2,)),
        ("安全生产法第二十八条第一款", "evidence", (2,)),
        ("２.０.１", "evidence", (1,)),
        ("《中华人民共和国消防法》第六十条", "evidence", ()),
        ("《房屋市政工程生产安全重大事故隐患判定标准（2024版）》第七条第一款", "criteria", ()),
        ("2024版判定标准第七条（一）", "criteria", ()),
        ("《重大事故隐患判定标准》第7.1条", "criteria", ()),
        ("《重大事故隐患判定标准》第七条第九项", "unsupported", ()),
        ("《安全生产法》第二十九条", "unsupported", ()),
        ("消防法第28《安全生产法》第二十八条", "unsupported", ()),
        ("《施工脚手架通用规范》第6.0.5条第9款", "unsupported", ()),
        ("《施工脚手架通用规范》（GB 55023-2016）第2.0.1条", "unsupported", ()),
        ("《建筑法》", "unsupported", ()),
        ("JGJ 130-2011", "unsupported", ()),
        ("建筑法47条", "unsupported", ()),
        ("消防法 六十条", "unsupported", ()),
        ("安全生产法28条", "evidence", (2,)),
        ("第九十九条", "unsupported", ()),
        ("7.7.7", "unsupported", ()),
        # A known name may not carry another law along.
        ("《GB 55023—2022重大事故隐患判定标准（2024版）》第七条", "unsupported", ()),
        ("《重大事故隐患判定标准（建筑法第28条2024版）》第七条", "unsupported", ()),
    ],
)
def test_a_name_stands_on_evidence_or_criteria_or_on_nothing(
    text: str, verdict: str, evidence: tuple[int, ...]
) -> None:
    (claim,) = REFERENCES.check(text)
    assert (claim.verdict, claim.evidence) == (verdict, evidence)
    assert text[claim.start : claim.end] == claim.raw


@pytest.mark.parametrize(
    "text",
    [
        "查《施工日志》和专项方案。",
        "间距 1.5m，荷载 2.0kN。",
        "2024年7月1日",
        "第一层楼板",
        "做法二十条",
        "违法3条",
    ],
)
def test_what_names_no_law_is_no_claim(text: str) -> None:
    assert REFERENCES.check(text) == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("按照《建筑法》第三条的要求，设置扫地杆。", "设置扫地杆。"),
        ("应根据 JGJ46-2005 第8.1.3条、第8.1.4条的规定，一机一闸。", "一机一闸。"),
        ("临边无栏杆，违反《建筑法》第四条规定。", "临边无栏杆。"),
        ("临边无栏杆，不符合JGJ80-2016第4.1.1条的要求；电缆拖地。", "临边无栏杆；电缆拖地。"),
        ("应设置护栏（JGJ80-2016第4.1.1条）。", "应设置护栏。"),
        ("按照建筑法四十七条的要求，设置护栏。", "设置护栏。"),
        ("应设置护栏（依据《建筑法》第四条）。", "应设置护栏。"),
        ("应设置护栏（7.7.7）。", "应设置护栏。"),
        ("《建筑法》第四条规定须有护栏。护栏缺失。", "护栏缺失。"),
        ("《建筑法》第四条规定须有护栏", ""),
        ("按《安全生产法》第二十八条培训。", "按《安全生产法》第二十八条培训。"),
        ("1. 甲。\n2. 《建筑法》第四条。\n3. 丙。", "1. 甲。\n3. 丙。"),
        ("甲。\n\n乙，依据《建筑法》第四条。", "甲。\n\n乙。"),
    ],
)
def test_what_stands_on_nothing_is_cut_with_the_phrase_around_it(text: str, left: str) -> None:
    done, cut = cut_claims(text, REFERENCES)
    assert done == left
    assert bool(cut) == (text != left)


def test_a_basis_goes_whole_and_a_measure_stays_without_its_article() -> None:
    report = parse(
        "## 隐患等级\n一般隐患\n## 隐患分类\n高处作业\n## 隐患描述\n1. 临边无栏杆。\n"
        "## 隐患判定依据\n1. 《建筑法》第四条：须有护栏 [cite^1]。\n2. 《安全生产法》第二十八条 [cite^2]。\n"
        "## 整改措施及建议\n1. 按照《建筑法》第四条的要求，设置护栏。",
        RULES.taxonomy,
    )
    done, cut = cut_report(report, REFERENCES)
    assert done.blocks[0].basis.items == ("《安全生产法》第二十八条 [cite^2]。",)
    assert done.blocks[0].measures.items == ("设置护栏。",)
    assert cut == ["《建筑法》第四条", "《建筑法》第四条"]


def test_a_report_that_names_nothing_wrong_is_not_touched() -> None:
    report = parse(
        "隐患等级：一般隐患\n隐患分类：高处作业\n隐患描述：\n1. 甲。\n整改措施：\n1. 乙。", RULES.taxonomy
    )
    assert cut_report(report, REFERENCES) == (report, [])


def test_a_name_that_follows_an_article_at_once_is_read() -> None:
    first, second = REFERENCES.check("《安全生产法》第二十八条建筑施工法第28条")
    assert (first.verdict, second.raw, second.verdict) == ("evidence", "建筑施工法第28条", "unsupported")


def test_a_name_inside_of_another_one_that_was_begun_is_read() -> None:
    (claim,) = REFERENCES.check("《消防法[《建筑法》第四十七条]》")
    assert (claim.raw, claim.verdict) == ("《建筑法》第四十七条", "unsupported")

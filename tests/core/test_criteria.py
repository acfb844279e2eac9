"""The clause list of major hazards: read from any site's file, named in a text or not."""

from __future__ import annotations

import pytest

from cg_rag.core.criteria import Criteria, names_clause, parse_criteria
from cg_rag.core.doctor import check_criteria
from cg_rag.modes.vision_rules import load_criteria, make_finder

SHIPPED = load_criteria(None)
FIND = make_finder(SHIPPED.articles())
NAME = "《房屋市政工程生产安全重大事故隐患判定标准（2024版）》"


@pytest.mark.parametrize(
    "text",
    [
        f"{NAME}第七条第一款：脚手架工程基础承载力和变形不满足设计要求。",
        f"{NAME}第七条第（一）项",
        f"{NAME}第七条（一）",
        f"{NAME}第七条",
        f"{NAME}第7.1条",
        f"{NAME}7.1",
        f"符合{NAME}第7条第1款的情形",
        "房屋市政工程生产安全重大事故隐患判定标准(2024版)第七条(一)",
        "《房屋市政工程生产安全重大事故隐患判定标准》第七条第一项",
        "《重大事故隐患判定标准》第七条",
        "《2024版重大事故隐患判定标准》第十四条（二）",
        "按2024版判定标准第七条第一款定级",
        "判定标准第十七条",
        f"{NAME}第十三条第二项",  # the digest knows no items of this article
    ],
)
def test_a_clause_is_named_however_its_position_is_written(text: str) -> None:
    assert names_clause(text, FIND)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "基础承载力不满足设计要求，属于重大事故隐患。",
        NAME,
        "第七条第一款",
        f"{NAME}第三十条",
        f"{NAME}第七条第九项",
        f"{NAME}第7.9条",
        "《房屋市政工程生产安全重大事故隐患判定标准（2022版）》第七条",
        "《工贸企业重大事故隐患判定标准》第七条",
        "《建筑法》第七条",
    ],
)
def test_what_names_no_clause_of_the_list_founds_nothing(text: str) -> None:
    assert not names_clause(text, FIND)


def test_the_shipped_list_says_which_clauses_nobody_compared() -> None:
    assert len(SHIPPED.clauses) == 47
    assert SHIPPED.num_unverified == 30
    assert SHIPPED.name == NAME[1:-1]


def read(text: str) -> Criteria:
    return parse_criteria(text.encode("utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "《某市重大事故隐患判定标准（2025版）》\n\n第三条 脚手架工程有下列情形之一的：\n（一）甲；\n（二）乙。\n第四条 其他情形。",
        "# 某市重大事故隐患判定标准（2025版）\n\n**第三条** 脚手架工程\n- （一）甲；\n- （二）乙。\n**第四条** 其他情形。",
        "某市重大事故隐患判定标准（2025版）\r\n第 三 条　脚手架工程\r\n (一) 甲\r\n (二) 乙\r\n第四条　其他",
    ],
)
def test_a_site_may_write_its_list_in_several_ways(text: str) -> None:
    criteria = read(text)
    assert criteria.name == "某市重大事故隐患判定标准（2025版）"
    assert [clause.number for clause in criteria.clauses] == ["第三条（一）", "第三条（二）", "第四条"]
    assert criteria.num_unverified == 0
    find = make_finder(criteria.articles())
    assert names_clause("《某市重大事故隐患判定标准（2025版）》第三条第二款", find)
    assert names_clause("《某市重大事故隐患判定标准》第四条", find)
    assert not names_clause(f"{NAME}第三条", find)


def test_dotted_numbers_are_clauses_too() -> None:
    criteria = read("《某标准》\n3.1 甲\n3.2 乙\n")
    assert [clause.number for clause in criteria.clauses] == ["3.1", "3.2"]
    assert names_clause("《某标准》第三条第二项", make_finder(criteria.articles()))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe\x00", "不是 UTF-8"),
        ("第三条 甲".encode(), "没有标准名称"),
        ("《某标准》\n全文另附".encode(), "没有条款"),
        (b"", "没有标准名称"),
    ],
)
def test_a_file_that_is_no_list_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_criteria(data)


def test_doctor_says_that_the_shipped_list_is_a_digest() -> None:
    finding = check_criteria(lambda: SHIPPED)
    assert finding.severity == "warning"
    assert finding.message == f"{NAME}47 条，为摘要，其中 30 条未核对原文"
    assert "criteria.file" in finding.remedy


def test_doctor_is_content_with_a_full_text_and_names_what_it_cannot_read() -> None:
    assert check_criteria(lambda: read("《某标准》\n第三条 甲")).severity == "ok"

    def missing() -> Criteria:
        raise FileNotFoundError(2, "No such file or directory")

    assert check_criteria(missing).severity == "error"
    finding = check_criteria(lambda: read("第三条"))
    assert (finding.severity, finding.message[:12]) == ("error", "判定标准文件里没有标准名称"[:12])

"""From the text of laws, rules and standards to articles. All texts here are made up."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.citations import Resolver, parse
from cg_rag.index.corpus import Article, LawRun
from cg_rag.index.importers.law_text import Left, Line, ParsedLaw, parse_law, write_law
from cg_rag.index.numerals import lookup_keys
from tests.growth import assert_grows_linearly

RULE = """
样例工地安全管理规定
（2021年3月8日样例市人民政府令第12号公布，自2021年6月1日起施行）
来源：样例市人民政府网 https://example.org/a.html

第一章 总 则

第一条　为了规范样例工地的安全管理，制定本规定。
第二条 本规定所称工地，是指下列场所：
（一）正在搭设脚手架的场地；
(二)正在开挖基坑的场地。
工地以外的场所，参照本规定执行。

第二章 现场管理

第一节 一般要求
第三条 进入工地应当佩戴安全帽。
第三条之一 夜间施工应当保证照明。
第 四 条 本规定自2021年6月1日起施行。
"""

STANDARD = """
样例省工程建设标准
DB99/T 1234-2023
样例塔架搭设技术标准
2023-05-01 发布 2023-09-01 实施

目　次
1 总则…………………………1
2 材料…………………………3
2.1 一般规定………………3
附录A 检查记录表……………9
附：条文说明………………12

1 总 则
1.0.1 为统一塔架搭设的做法，制定本标准。
1.0.2	本标准适用于高度不超过30m的塔架。
2 材 料
2.1 一般规定
2.1.1 钢管应平直，并应符合下列规定：
1 壁厚不应小于3.0mm；
2 表面不应有裂纹。
2.1.2 扣件的检验应符合表2.1.2的规定。
表 2.1.2 扣件检验项目
| 项目 | 数量 |
|------|------|
| 外观 | 2.1.1 条所列全部 |
2.1.3（1） 底座应有排水措施。
2.1.3（2） 底座不得悬空。
附录A 检查记录表
A.0.1 检查记录应按表A.0.1填写。
附录B（资料性附录） 常用重量
钢管每米重量按3.84kg计。
本标准用词说明
1 表示严格的用词，采用“应”。
引用标准名录
1 《样例钢管》GB/T 99999
样例省工程建设标准
样例塔架搭设技术标准
DB99/T 1234-2023
条文说明
1 总则
1.0.1 本条说明制定的目的。
2.1.1 壁厚由计算得到。
"""


def lines(text: str) -> list[Line]:
    return [Line(number, line) for number, line in enumerate(text.split("\n"), start=1)]


def read(text: str, stem: str = "样例") -> ParsedLaw:
    return parse_law(lines(text), stem)


def numbers(law: ParsedLaw) -> list[str]:
    return [article.article_number for article in law.articles]


def contents(law: ParsedLaw, number: str) -> str:
    return next(article.contents for article in law.articles if article.article_number == number)


def chapters(law: ParsedLaw) -> dict[str, str]:
    return {article.article_number: article.extra.get("chapter", "") for article in law.articles}


def reasons(law: ParsedLaw) -> dict[str, str]:
    return {left.text: left.reason for left in law.left}


def same(law: ParsedLaw) -> list[Article]:
    """The articles without their lines."""
    return [
        Article(
            article.law_name,
            article.article_number,
            article.contents,
            {key: value for key, value in article.extra.items() if key != "line"},
        )
        for article in law.articles
    ]


# --- laws and rules ----------------------------------------------------------------------------------------------


def test_a_rule_gives_its_articles_with_chapters_and_dates() -> None:
    law = read(RULE)
    assert law.law_name == "样例工地安全管理规定"
    assert numbers(law) == ["第一条", "第二条", "第三条", "第三条之一", "第四条"]
    assert chapters(law)["第一条"] == "第一章 总则"
    assert chapters(law)["第三条之一"] == "第二章 现场管理 / 第一节 一般要求"
    assert {article.extra["effective_date"] for article in law.articles} == {"2021-06-01"}
    assert law.articles[0].extra["line"] == 8
    assert "status" not in law.articles[0].extra
    assert law.warnings == ()


def test_paragraphs_and_items_of_both_widths_stay_with_their_article() -> None:
    text = contents(read(RULE), "第二条").split("\n")
    assert text[1:3] == ["（一）正在搭设脚手架的场地；", "(二)正在开挖基坑的场地。"]
    assert text[3].startswith("工地以外")


def test_the_head_is_reported_and_is_no_article() -> None:
    left = {entry.line: entry.reason for entry in read(RULE).left}
    assert left == {2: "标题", 3: "题注", 4: "来源", 6: "章节标题", 14: "章节标题", 16: "章节标题"}


def test_parts_and_sub_parts_stand_before_chapters() -> None:
    law = read(
        "# 样例法典\n## 第一编 通则\n### 第一分编 人员\n#### 第一章 资格\n第一条 甲。\n"
        "##### 第二节 培训\n第二条 乙。\n#### 第二章 责任\n第三条 丙。\n## 第二编 附则\n第四条 丁。"
    )
    assert list(chapters(law).values()) == [
        "第一编 通则 / 第一分编 人员 / 第一章 资格",
        "第一编 通则 / 第一分编 人员 / 第一章 资格 / 第二节 培训",
        "第一编 通则 / 第一分编 人员 / 第二章 责任",
        "第二编 附则",
    ]


def test_the_table_of_contents_gives_no_articles_and_no_chapters_twice() -> None:
    law = read(
        "样例条例\n目 录\n第一章 总则\n第二章 附则\n第一章 总则\n第一条 甲。\n第二章 附则\n第二条 乙。"
    )
    assert numbers(law) == ["第一条", "第二条"]
    assert [left.line for left in law.left if left.reason == "目录"] == [2, 3, 4]
    assert chapters(law) == {"第一条": "第一章 总则", "第二条": "第二章 附则"}


def test_a_reference_at_the_start_of_a_line_is_no_article() -> None:
    law = read(
        "# 样例法\n1999年1月1日《关于修改样例法第三十条\n第三十一条的决定》第一次修正\n<!-- INFO END -->\n"
        "第一条 依照本法第九条、\n第十条 、第十一条处理。\n第二条 违反\n第八条规定的，责令改正。"
    )
    assert numbers(law) == ["第一条", "第二条"]
    assert contents(law, "第二条") == "违反\n第八条规定的，责令改正。"
    assert "第十条 、第十一条处理。" in contents(law, "第一条")


def test_a_number_without_a_blank_counts_where_it_is_the_next_one() -> None:
    law = read("样例办法\n第一条为了安全。\n第二条项目部负责。\n第九条规定另行制定。\n第三条 结束。")
    assert numbers(law) == ["第一条", "第二条", "第三条"]


def test_a_number_out_of_order_is_kept_and_reported() -> None:
    law = read("样例办法\n第一条 甲。\n第五条 乙。\n第三条 丙。")
    assert numbers(law) == ["第一条", "第五条", "第三条"]
    assert law.warnings == ((4, "第三条 的编号没有接着上一条，请核对"),)


@pytest.mark.parametrize(
    "number", ["第１２条", "第 12 条", "**第12条**", "### 第12条", "> 第12条", "第12条\t"]
)
def test_marks_and_widths_around_a_number_do_not_matter(number: str) -> None:
    law = read(f"# 样例办法\n{number} 应当戴安全帽。")
    assert [(a.article_number, a.contents) for a in law.articles] == [("第12条", "应当戴安全帽。")]


@pytest.mark.parametrize("end", ["\v", "\f", "\x85", "\u2028", "\u2029", "\r", "<br/>"])
def test_an_article_behind_any_sign_of_a_new_line_is_an_article(end: str) -> None:
    law = read(f"样例条例\n第一条 甲。{end}第二条 乙。")
    assert [(article.article_number, article.contents) for article in law.articles] == [
        ("第一条", "甲。"),
        ("第二条", "乙。"),
    ]
    assert law.warnings == ()


def test_articles_in_one_line_are_articles_and_told() -> None:
    law = read("样例条例\n第一条 甲。第二条　乙。 第二条之一 丙。第三条 丁。")
    assert [(article.article_number, article.contents) for article in law.articles] == [
        ("第一条", "甲。"),
        ("第二条", "乙。"),
        ("第二条之一", "丙。"),
        ("第三条", "丁。"),
    ]
    assert (2, "同一行里接着的第二条另成一条，请核对原文") in law.warnings
    assert len(law.warnings) == 3


@pytest.mark.parametrize(
    "text",
    [
        "第一条 甲。第二条规定的除外。",
        "第一条 甲。第三条 乙。",
        "第一条 甲，第二条 乙。",
        "第一条 甲。第二条 乙。\n第二条 丙。",
        "第一条 甲。第二条 所列情形除外。\n第二条 丙。",
    ],
)
def test_a_reference_in_a_line_is_no_article(text: str) -> None:
    assert contents(read(f"样例条例\n{text}"), "第一条") == text.split("\n")[0].removeprefix("第一条 ")


def test_an_article_whose_text_is_deleted_does_not_swallow_the_next() -> None:
    law = read("样例法\n第一条 （删去）\n第二条 甲。")
    assert [(a.article_number, a.contents) for a in law.articles] == [
        ("第一条", "（删去）"),
        ("第二条", "甲。"),
    ]


def test_a_number_without_text_is_reported() -> None:
    law = read("样例法\n第一条\n第二条 甲。")
    assert numbers(law) == ["第二条"]
    assert Left(2, "第一条", "条号下无正文") in law.left
    assert law.warnings == ((2, "第一条 之下没有正文，未导入"),)


def test_the_text_of_an_article_may_begin_on_the_next_line() -> None:
    assert contents(read("样例法\n第一条\n为了安全。\n第二条 甲。"), "第一条") == "为了安全。"


def test_a_chapter_title_may_stand_on_two_lines() -> None:
    law = read(
        "样例法\n第一章\n总则\n第一条 甲。\n第二章 检查\n一般规定\n第二条 乙。\n第三章 检查、\n验收\n第三条 丙。"
    )
    assert list(chapters(law).values()) == ["第一章 总则", "第二章 检查 / 一般规定", "第三章 检查、验收"]


def test_a_preface_under_a_heading_is_text_that_cannot_be_cited() -> None:
    law = read("# 样例法\n<!-- INFO END -->\n## 序言\n安全是头等大事。\n## 第一章 总则\n第一条 甲。")
    assert numbers(law) == ["", "第一条"]
    assert law.articles[0].extra == {"chapter": "序言", "line": 4, "citable": False, "section": 1}
    assert "citable" not in law.articles[1].extra


def test_a_second_law_in_the_same_text_has_its_own_name() -> None:
    law = read("# 甲样例条例\n第一条 甲。\n第二条 甲。\n# 乙样例办法\n第一条 乙。")
    assert [a.law_name for a in law.articles] == ["甲样例条例", "甲样例条例", "乙样例办法"]


# --- annexes, footnotes, tables ----------------------------------------------------------------------------------


def test_annexes_and_footnotes_are_not_glued_to_the_last_article() -> None:
    law = read(
        "# 样例法\n第九条 本法自2020年1月1日起施行。\n列于附件一的目录，予以废止。\n① 施行日期依各法确定。\n"
        "## 附件一\n下列目录：\n1．甲目录\n附件2：乙目录\n乙。\n附表\n税目 | 税额"
    )
    assert [(a.article_number, a.contents) for a in law.articles] == [
        ("第九条", "本法自2020年1月1日起施行。\n列于附件一的目录，予以废止。"),
        ("附件一", "下列目录：\n1．甲目录"),
        ("附件2", "乙目录\n乙。"),
        ("附表", "税目 | 税额"),
    ]
    assert reasons(law)["① 施行日期依各法确定。"] == "脚注"


def test_circled_items_of_a_list_are_no_footnotes() -> None:
    law = read("样例法\n第一条 应当：\n① 戴帽；\n② 系带。\n③ 穿鞋。")
    assert contents(law, "第一条").count("\n") == 3


def test_a_sentence_that_begins_with_an_annex_is_none() -> None:
    law = read("样例法\n第一条 甲。\n附件一所列设备应当登记。\n附图中除编号外，不得有其他文字。\n第二条 乙。")
    assert numbers(law) == ["第一条", "第二条"]


def test_the_articles_of_a_law_printed_in_an_annex_say_so() -> None:
    law = read("样例决定\n一、将第二条删去。\n二、重新公布。\n附：\n样例规定\n第一条 甲。\n第二条 乙。")
    assert numbers(law) == ["一、", "二、", "附件", "附件第一条", "附件第二条"]


def test_a_long_annex_is_cut_between_its_lines() -> None:
    rows = "\n".join(f"| 设备{number} | {'检' * 90} |" for number in range(100))
    law = read(f"样例法\n第一条 甲。\n附表一\n{rows}\n")
    parts = law.articles[1:]
    assert {part.article_number for part in parts} == {"附表一"}
    assert len(parts) == 5
    assert max(len(part.contents) for part in parts) <= 2000


def test_rows_of_a_table_never_begin_an_article() -> None:
    law = parse_law(
        [
            Line(1, "样例对照规定"),
            Line(2, "下列条文改变名称："),
            Line(3, "第一百条之二 | 甲", table=True),
            Line(4, "| 第一百零一条 | 乙 |"),
            Line(5, "|----|----|"),
            Line(6, "本规定自2022年2月2日起施行。"),
        ],
        "",
    )
    assert numbers(law) == ["全文"]
    assert law.articles[0].contents.split("\n")[1:3] == ["第一百条之二 | 甲", "第一百零一条 | 乙"]
    assert law.articles[0].extra == {
        "effective_date": "2022-02-02",
        "line": 2,
        "citable": False,
        "section": 1,
    }


def test_spanning_cells_keep_the_columns_and_stand_once() -> None:
    law = read(
        "样例标准\n3.3.5 荷载按表3.3.5采用。\n表 3.3.5 荷载\n"
        '<table><tr><td rowspan="2">序</td><td colspan=2>组合</td></tr>\n<tr><td>强度</td><td>刚度&gt;1</td></tr>'
        "<tr><td>1</td><td>甲<br>乙</td><td>3.3.6 丙</td></tr></table>\n3.3.6 丁。"
    )
    assert numbers(law) == ["3.3.5", "3.3.6"]
    assert contents(law, "3.3.5").split("\n") == [
        "荷载按表3.3.5采用。",
        "表 3.3.5 荷载",
        "序 | 组合 |",
        "| 强度 | 刚度>1",
        "1 | 甲 乙 | 3.3.6 丙",
    ]


@pytest.mark.parametrize("text", ["<table><tr><td>甲", "<!-- 甲", "</table>甲<table>", "--> 甲 <!--"])
def test_marks_that_are_never_closed_are_text(text: str) -> None:
    law = read(f"样例法\n第一条 甲。\n{text}\n第二条 乙。")
    assert numbers(law) == ["第一条", "第二条"]
    assert "甲" in contents(law, "第一条").split("\n")[1]


# --- standards ---------------------------------------------------------------------------------------------------


def test_a_standard_gives_its_clauses_its_appendices_and_its_commentary() -> None:
    law = read(STANDARD)
    name = "DB99/T1234-2023样例塔架搭设技术标准"
    assert law.law_name == name
    assert [(a.law_name.removeprefix(name), a.article_number) for a in law.articles] == [
        ("", "1.0.1"),
        ("", "1.0.2"),
        ("", "2.1.1"),
        ("", "2.1.2"),
        ("", "2.1.3(1)"),
        ("", "2.1.3(2)"),
        ("", "A.0.1"),
        ("", "附录B"),
        ("", ""),
        ("", ""),
        (" 条文说明", "1.0.1"),
        (" 条文说明", "2.1.1"),
    ]
    assert law.warnings == ()
    first = law.articles[0].extra
    assert (first["code"], first["effective_date"]) == ("DB99/T1234-2023", "2023-09-01")


def test_the_chapters_of_a_standard_come_from_its_numbered_headings() -> None:
    paths = [article.extra.get("chapter") for article in read(STANDARD).articles]
    assert paths[:4] == ["1 总则", "1 总则", "2 材料 / 2.1 一般规定", "2 材料 / 2.1 一般规定"]
    assert paths[6:10] == ["附录A 检查记录表", None, "本标准用词说明", "引用标准名录"]
    assert paths[10] == "1 总则"


def test_the_cover_the_contents_and_running_heads_of_a_standard_are_left() -> None:
    law = read(STANDARD)
    left = Counter(entry.reason for entry in law.left)
    assert left["目录"] == 6
    assert left["页眉"] == 3
    assert reasons(law)["条文说明"] == "条文说明标题"
    assert reasons(law)["附录A 检查记录表"] == "章节标题"


def test_items_and_tables_stay_with_their_clause() -> None:
    law = read(STANDARD)
    assert contents(law, "2.1.1").count("\n") == 2
    assert contents(law, "2.1.2").endswith("项目 | 数量\n外观 | 2.1.1 条所列全部")


@pytest.mark.parametrize(
    "line",
    [
        "3.0.1条的规定",
        "3.0.1-1 式中的系数",
        "3.0.1～3.0.3 的内容",
        "3.5m以上的作业",
        "3.0.9 的规定执行",
        "2.5 kN的荷载",
        "10 其他荷载。",
        "12.50",
        "-1查得；",
    ],
)
def test_numbers_inside_a_sentence_begin_no_clause(line: str) -> None:
    law = read(f"样例标准\n3.0.1 按下列规定采用：\n{line}\n3.0.2 乙。")
    assert numbers(law) == ["3.0.1", "3.0.2"]
    assert contents(law, "3.0.1").endswith(line)


def test_clauses_of_two_and_of_four_levels_are_read() -> None:
    law = read(
        "GB/T 99100-2020 样例吊具\n1 范围\n本文件规定了吊具的要求。\n2 要求\n2.1 吊具应有铭牌。\n2.2 钢丝绳\n"
        "2.2.1 安全系数\n2.2.1.1 安全系数不应小于9。\n2.2.1.2 报废按规定执行。\n2.3 吊具应每年检验。"
    )
    assert numbers(law) == ["", "2.1", "2.2.1.1", "2.2.1.2", "2.3"]
    assert chapters(law)["2.2.1.1"] == "2 要求 / 2.2 钢丝绳 / 2.2.1 安全系数"
    assert chapters(law)[""] == "1 范围"
    assert chapters(law)["2.3"] == "2 要求"


def test_numbers_that_start_again_are_the_commentary_and_reported() -> None:
    law = read(
        "样例标准\n1.0.1 甲。\n2.0.1 乙。\n3.0.1 丙。\n3.0.2 丁。\n1.0.1 说明甲。\n3.0.1、3.0.2 说明丙丁。",
        "GB 99001-2020_样例标准",
    )
    assert [a.law_name.split()[-1] for a in law.articles][4:] == ["条文说明", "条文说明"]
    assert law.articles[-1].contents == "、3.0.2 说明丙丁。"
    assert law.warnings == ((6, "编号从 3.0.2 回到 1.0.1：其后按条文说明（非规范正文）导入"),)


def test_a_commentary_between_clauses_ends_with_the_next_clause() -> None:
    law = read("样例标准\n1.0.1 甲。\n【条文说明】为何如此。\n1.0.2 乙。\n条文说明：又为何。\n1.0.3 丙。")
    assert [(a.law_name, a.article_number) for a in law.articles] == [
        ("样例标准", "1.0.1"),
        ("样例标准 条文说明", "1.0.1"),
        ("样例标准", "1.0.2"),
        ("样例标准 条文说明", "1.0.2"),
        ("样例标准", "1.0.3"),
    ]


def test_older_standards_write_clauses_as_articles() -> None:
    law = read("样例规范\n第一章 总则\n第1.0.1条 甲。\n第1.0.2条 按第1.0.1条执行。\n第１．０．３条　乙。")
    assert numbers(law) == ["第1.0.1条", "第1.0.2条", "第1.0.3条"]


def test_formulas_stay_as_text() -> None:
    law = read("样例标准\n1.0.1 强度 $f_{\\mathrm{c}}$ 按下式：\n$$\nf = 1.2 \\tag {1.0.1}\n$$\n1.0.2 甲。")
    assert contents(law, "1.0.1").split("\n")[1:] == ["$$", "f = 1.2 \\tag {1.0.1}", "$$"]


# --- decisions and texts without numbers -------------------------------------------------------------------------


def test_a_decision_counts_by_items_and_its_last_line_is_none_of_them() -> None:
    law = read(
        "样例市关于加强工地管理的决定\n为了加强管理，作如下决定：\n一、建立台账。\n二级以上单位设专人。\n二、定期检查。\n"
        "（一）每月一次；\n三、一、二级工地每周检查。\n本决定自2024年5月1日起施行。"
    )
    assert numbers(law) == ["一、", "二、", "三、", ""]
    assert law.articles[-1].extra["citable"] is False
    assert reasons(law)["为了加强管理，作如下决定："] == "首条之前的正文"


def test_articles_that_a_decision_inserts_are_text_of_its_items() -> None:
    law = read("样例决定\n一、增加两条：\n“第九条 甲。\n第十条 乙。”\n二、删去第三条。")
    assert numbers(law) == ["一、", "二、"]


def test_headings_with_items_stand_over_articles() -> None:
    law = read("样例解释\n一、一般规定\n第一条 下列情形：\n一、甲；\n二、乙。\n二、责任\n第二条 丙。")
    assert chapters(law) == {"第一条": "一、一般规定", "第二条": "二、责任"}
    assert contents(law, "第一条") == "下列情形：\n一、甲；\n二、乙。"


def test_bracketed_numbers_count_where_there_are_no_others() -> None:
    law = read("样例规定\n(一) 爱护设备。\n（二）不得抛锚。\n（三）及时报告。")
    assert numbers(law) == ["(一)", "(二)", "(三)"]


def test_text_without_numbers_becomes_sections_that_cannot_be_cited() -> None:
    law = read("# 样例工地手册\n## 进场\n先登记。\n再培训。\n## 出场\n交还工具。")
    assert numbers(law) == ["", ""]
    assert [a.extra for a in law.articles] == [
        {"chapter": "进场", "line": 3, "citable": False, "section": 1},
        {"chapter": "出场", "line": 6, "citable": False, "section": 2},
    ]


def test_long_text_is_cut_between_its_lines() -> None:
    law = read("样例说明\n" + "\n".join("工" * 500 + "。" for _ in range(9)))
    assert [len(a.contents.split("\n")) for a in law.articles] == [3, 3, 3]
    assert [a.extra["section"] for a in law.articles] == [1, 2, 3]


def test_no_article_is_longer_than_a_record_may_be() -> None:
    law = read("样例法\n第一条 " + "长" * 50_000)
    assert [len(a.contents) for a in law.articles] == [20_000, 20_000, 10_000]
    assert law.warnings == ((2, "第一条 的正文超过 20000 字，分为 3 条"),)


# --- names, status, dates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "stem", "name"),
    [
        ("施工样例通用规范", "GB 99055-2022 施工样例通用规范", "GB99055-2022施工样例通用规范"),
        ("《施工样例通用规范》GB 99055-2022", "x", "GB99055-2022施工样例通用规范"),
        ("《施工样例通用规范》（GB 99055—2022）", "x", "GB99055-2022施工样例通用规范"),
        ("GB99055-2022施工样例通用规范", "x", "GB99055-2022施工样例通用规范"),
        ("中华人民共和国国家标准\n施工样例通用规范\nGB 99055-2022", "x", "GB99055-2022施工样例通用规范"),
        (
            "中华人民共和国行业标准 JGJ/T 999-2024\n样例用电安全技术标准",
            "x",
            "JGJ/T999-2024样例用电安全技术标准",
        ),
        ("", "GB 99247-2018_样例抗震设计标准_clean_text", "GB99247-2018样例抗震设计标准"),
        ("", "样例安全法_20210610", "样例安全法"),
        ("", "03_样例工地守则(2020-01-02)", "样例工地守则"),
        ("# 样例安全法\n样例主席令第八号", "x", "样例安全法"),
        ("关于印发《样例施工办法》的通知\n各单位：\n现将办法印发给你们。\n样例施工办法", "x", "样例施工办法"),
        (
            "样例法院关于审理工地案件适用法律\n若干问题的解释",
            "x",
            "样例法院关于审理工地案件适用法律若干问题的解释",
        ),
        ("样例分部分项工程 安全管理规定", "x", "样例分部分项工程安全管理规定"),
        ("", "", "未命名文件"),
    ],
)
def test_the_name_comes_from_the_head_or_from_the_name_of_the_file(head: str, stem: str, name: str) -> None:
    law = read(f"{head}\n第一条 甲。", stem)
    assert law.law_name == name
    assert {article.law_name for article in law.articles} == {name}


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("时效性：现行有效", "现行有效"),
        ("时效性： 有效", "现行有效"),
        ("时效性 | 已修改", "已修改"),
        ("法规状态:尚未生效", "尚未生效"),
        ("效力状态：失效", "已废止"),
        ("（本规定已被《新样例规定》废止）", "已废止"),
        ("注：本规定自2020年1月1日起废止。", "已废止"),
        ("2001年发布的《旧样例规定》同时废止", None),
        ("2019年1月1日公布", None),
    ],
)
def test_the_status_is_what_the_head_says(head: str, status: str | None) -> None:
    law = read(f"样例规定\n{head}\n第一条 《旧规定》同时废止。\n第二条 已被修改的，从其规定。")
    assert law.articles[0].extra.get("status") == status


def test_the_status_may_stand_behind_the_name() -> None:
    law = read("样例规定（已废止）\n第一条 甲。")
    assert (law.law_name, law.articles[0].extra["status"]) == ("样例规定", "已废止")


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("样例法\n施行日期：2021年9月1日\n第一条 本法自2002年11月1日起施行。", "2021-09-01"),
        (
            "样例法\n（2002年1月1日公布 自2002年11月1日起施行 2021年修正，自2021年9月1日起施行）\n第一条 甲。",
            "2021-09-01",
        ),
        ("样例法\n第一条 甲。\n第二条 本法自二〇〇二年十一月一日起施行。", "2002-11-01"),
        ("样例法\n第一条 甲。\n第二条 本法自２０２２年１０月１日起施行。", "2022-10-01"),
        ("样例规定\n2018年3月8日样例部令第37号公布\n第一条 本规定自公布之日起施行。", "2018-03-08"),
        ("样例法\n第一条 《别的法》自2001年1月1日起施行。", None),
        ("样例法\n施行日期：2021年13月40日\n第一条 甲。", None),
        ("样例标准\n2022-03-01 发布  2022-10-01 实施\n1.0.1 甲。", "2022-10-01"),
    ],
)
def test_the_effective_date_is_an_iso_date(text: str, date: str | None) -> None:
    assert read(text).articles[0].extra.get("effective_date") == date


def test_styles_of_a_container_mark_titles_and_headings() -> None:
    law = parse_law(
        [
            Line(1, "样例主席令"),
            Line(2, "样例安全法", "title"),
            Line(3, "第一章 总则", "heading"),
            Line(4, "第一条 甲。", "heading"),
            Line(5, "乙。"),
        ],
        "下载文件",
    )
    assert law.law_name == "样例安全法"
    assert [(a.article_number, a.contents, a.extra["chapter"]) for a in law.articles] == [
        ("第一条", "甲。\n乙。", "第一章 总则")
    ]


# --- characters --------------------------------------------------------------------------------------------------


def test_characters_that_nobody_can_see_go_with_a_warning() -> None:
    law = read("样例法\n第\u200b一条 备案\ue723甲\x07。\n第二条 乙\ufffd。")
    assert contents(law, "第一条") == "备案甲。"
    assert contents(law, "第二条") == "乙\ufffd。"
    assert law.warnings == (
        (2, "删去不可见字符 U+0007，请核对原文"),
        (2, "删去不可见字符 U+200B，请核对原文"),
        (2, "删去无法显示的私用区字符 U+E723，请核对原文"),
        (3, "含有替换字符 U+FFFD：原文此处的字已丢失"),
    )


def test_comments_are_reported_and_only_known_tags_are_marks() -> None:
    law = read(
        "样例法\n第一条 依照<样例法>，<b>应当</b>戴帽 <!-- 甲 -->。\n<!-- 第二条 乙\n丙 -->\n第三条 m<sup>2</sup>。"
    )
    assert contents(law, "第一条") == "依照<样例法>，应当戴帽 。"
    assert contents(law, "第三条") == "m2。"
    assert [left.text for left in law.left if left.reason == "注释"] == [
        "<!-- 甲 -->",
        "<!-- 第二条 乙",
        "丙 -->",
    ]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "#", "# ", "---", "|", "第", "条文说明", "目录", "附件", "附", "①", "一、"]
)
def test_a_text_of_almost_nothing_is_read(text: str) -> None:
    law = read(text)
    assert all(article.contents for article in law.articles)


# --- what citations find -----------------------------------------------------------------------------------------


class Rows:
    """The look-up that an index has, over articles in memory."""

    def __init__(self, articles: Sequence[Article]) -> None:
        names = list(dict.fromkeys(article.law_name for article in articles))
        self.sorted = sorted(articles, key=lambda article: names.index(article.law_name))
        counts = Counter(article.law_name for article in articles)
        starts = {name: [a.law_name for a in self.sorted].index(name) for name in names}
        self.runs = [LawRun(name, "c", (), starts[name], counts[name], "") for name in names]

    def find_rows(self, run_index: int, key: str) -> list[int]:
        run = self.runs[run_index]
        rows = range(run.start, run.start + run.count)
        return [row for row in rows if key in lookup_keys(self.sorted[row].article_number)]


@pytest.mark.parametrize(
    ("citation", "found"),
    [
        ("《样例塔架搭设技术标准》第2.1.1条", "钢管应平直"),
        ("DB99/T 1234-2023 第2.1.3条", "底座应有排水"),
        ("《样例塔架搭设技术标准》2.1.3(2)", "底座不得悬空"),
        ("《样例塔架搭设技术标准》附录A.0.1", "检查记录应按"),
        ("《样例塔架搭设技术标准》附录B", "（资料性附录）"),
        ("《样例塔架搭设技术标准》条文说明第2.1.1条", "壁厚由计算"),
    ],
)
def test_citations_find_what_was_read(citation: str, found: str) -> None:
    rows = Rows(read(STANDARD).articles)
    resolution = Resolver(rows).resolve(parse(citation)[0])
    assert resolution.status == "exact"
    assert rows.sorted[resolution.rows[0]].contents.startswith(found)


def test_a_text_without_numbers_never_lets_an_article_be_called_absent() -> None:
    rows = Rows(read("# 样例管理办法\n## 进场\n登记。\n## 出场\n交还。").articles)
    assert Resolver(rows).resolve(parse("《样例管理办法》第三条")[0]).status == "law_only"


# --- properties --------------------------------------------------------------------------------------------------

# Pieces that begin, end, break or imitate structure.
FRAGMENTS = [
    *(
        "第一条 ",
        "第二条",
        "第十条之一 ",
        "1.0.1 ",
        "1.0.2\t",
        "2.1 ",
        "A.0.1 ",
        "3.0.1、3.0.2 ",
        "一、",
        "二、",
        "（一）",
        "(二)",
    ),
    *(
        "第一编 甲",
        "第一章 总则",
        "第二节",
        "1 总则",
        "附件一",
        "附录A ",
        "附：",
        "附表",
        "条文说明",
        "【条文说明】",
        "目录",
        "目次",
    ),
    *(
        "① ",
        "② ",
        "# ",
        "## ",
        "### ",
        "**",
        "__",
        "> ",
        "| ",
        " |",
        "|---|",
        "<table>",
        "<tr>",
        "<td rowspan=2>",
        "</td>",
        "</table>",
    ),
    *(
        "<!-- ",
        " -->",
        "<!-- INFO END -->",
        "<!-- 法规正文 1 -->",
        "<br>",
        "</p>",
        "&gt;",
        "&nbsp;",
        "\\",
        "\\#",
        "……3",
        "...... 12",
    ),
    *(
        "时效性：有效",
        "施行日期：2021-01-01",
        "自2022年1月1日起施行",
        "来源：",
        "本规范用词说明",
        "前言",
        "样例安全法",
        "GB 99001-2020",
    ),
    *(
        "\u3000",
        "\t",
        " ",
        "\u200b",
        "\ue723",
        "\ufeff",
        "\ufffd",
        "\x00",
        "\x0b",
        "\x1c",
        "\x85",
        "\u2028",
        "\ud800",
        "。",
        "：",
        "；",
    ),
    *(
        "“",
        "”",
        "《",
        "》",
        "第３条　",
        "１．０．１",
        "— 3 —",
        "（无编号）",
        "全文",
        "工地",
        "安全帽应当佩戴",
        "12.5m",
    ),
]
TEXTS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=6)), max_size=6).map("".join)
LINES = st.lists(
    st.tuples(
        TEXTS, st.sampled_from(["", "", "", "title", "heading"]), st.sampled_from([False, False, False, True])
    ),
    max_size=30,
).map(lambda rows: [Line(number, *row) for number, row in enumerate(rows, start=1)])

# What markup.py names as going without being text: marks of Markdown and HTML, and characters nobody can see. The last
# are what a number may have that the text has not: 附件 of 附：, 全文.
GOES = re.compile(
    r"</?(?:table|tr|td|br|p)(?: rowspan=2)?/?>|&gt;|&nbsp;|[#*_>|\\:：-]"
    "|[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ue000-\uf8ff\ud800-\udfff]"
    "|[\U000f0000-\U0010ffff]|[附件全文]"
)


def visible(*texts: str) -> Counter[str]:
    """The characters that must be kept, of every width alike."""
    joined = GOES.sub("", unicodedata.normalize("NFKC", GOES.sub("", "".join(texts))))
    return Counter("".join(joined.split()))


@given(LINES, st.text(max_size=12))
@settings(max_examples=150)
def test_any_text_is_read_and_read_back_from_what_was_written(source: list[Line], stem: str) -> None:
    law = parse_law(source, stem)
    again = parse_law(lines(write_law(law)), "别的文件名")
    assert again.law_name == law.law_name
    assert same(again) == same(law)
    assert again.warnings == ()
    assert write_law(again) == write_law(law)


@given(LINES)
@settings(max_examples=150)
def test_every_character_is_in_one_article_or_left(source: list[Line]) -> None:
    law = parse_law(source, "样例")
    # The number that a commentary between clauses shares with its clause, and that of an annex its articles bear.
    copied = [a.article_number for a in law.articles if a.law_name.endswith("条文说明")]
    kept = visible(*(a.article_number + a.contents for a in law.articles), *(left.text for left in law.left))
    given_ = visible(*(line.text for line in source))
    assert given_ - kept == Counter()
    assert set(kept - given_) <= set("".join(copied) + "附件录表图条之第一二三ABCDE0123456789")


@given(st.lists(st.sampled_from([*FRAGMENTS[:24], "。\n", "\n", "：\n"]), max_size=60))
@settings(max_examples=100)
def test_every_word_of_a_law_stands_once_and_in_its_order(fragments: list[str]) -> None:
    """Each line ends with a word of its own; markup and annexes that would repeat a number are not in the way."""
    marked = "".join(fragments).split("\n")
    source = [Line(number, f"{text}〔{number}〕") for number, text in enumerate(marked, start=1)]
    law = parse_law(source, "样例")
    parts = [(a.extra["line"], a.contents) for a in law.articles] + [
        (left.line, left.text) for left in law.left
    ]
    found = [int(word) for _, text in parts for word in re.findall(r"〔(\d+)〕", text)]
    assert sorted(found) == list(range(1, len(marked) + 1))
    inside = [[int(word) for word in re.findall(r"〔(\d+)〕", a.contents)] for a in law.articles]
    assert [word for words in inside for word in words] == sorted(word for words in inside for word in words)


@given(LINES)
@settings(max_examples=60)
def test_every_article_is_one_that_an_index_takes(source: list[Line]) -> None:
    for article in parse_law(source, "样例").articles:
        assert article.contents == article.contents.strip()
        assert 0 < len(article.contents) <= 20_000
        assert 0 < len(article.law_name) <= 310
        assert len(article.article_number) <= 100
        assert not re.search("[\ud800-\udfff\u200b\ue000-\uf8ff]", article.contents + article.law_name)
        assert ("citable" in article.extra) == (article.article_number in ("", "全文"))


@pytest.mark.parametrize(
    "line",
    [
        "第{n}条 施工单位应当设置安全警示标志，并对作业人员进行交底。",
        "{n}.{n}.1 塔架应每日检查。",
        "<table><tr><td rowspan=9 colspan=99>甲",
        "<!-- 甲",
        "附件一：甲",
        "（" * 200,
        "." * 200,
        "目录……{n}",
        "2021年1月1日公布",
    ],
)
def test_time_is_linear_in_the_text(line: str) -> None:
    """Four times the text takes about four times as long; a square would take sixteen."""

    def parse(count: int) -> None:
        source = [Line(number, line.format(n=number % 90)) for number in range(count)]
        parse_law([*source, Line(count, "--></table>")], "样例")

    assert_grows_linearly(lambda: parse(500), lambda: parse(2000), 0.2)

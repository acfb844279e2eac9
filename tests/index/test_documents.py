"""Laws as sites keep them, Markdown, text, DOCX and HTML, become articles; what is in no article is told."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers import ImportLog, InputFile, find_source, read_source
from cg_rag.index.importers import docx as docx_importer
from cg_rag.index.importers.docx_numbering import format_count, to_chinese
from cg_rag.index.importers.html import read_markup
from cg_rag.index.importers.tables import Cell, spread_rows
from cg_rag.index.importers.text import find_mojibake
from cg_rag.index.importers.xml_tree import XmlInvalid, parse_xml
from cg_rag.index.numerals import chinese_to_int
from tests.docx_maker import cell, numbered, numbering, paragraph, root, run, save_docx, styles, table

LAW = """样例市施工现场管理办法

（2024年3月1日样例市人民政府令第5号公布，自2024年5月1日起施行）

第一章 总则

第一条　为了加强施工现场管理，制定本办法。

第二条　脚手架搭设完成后应当组织验收：
（一）未经验收的，不得使用；
（二）验收不合格的，不得使用。
"""


def read(path: Path) -> tuple[list[Article], ImportLog]:
    log = ImportLog()
    return list(read_source(find_source(path), log)), log


def told(log: ImportLog, kind: str = "left") -> list[tuple[str, str, str]]:
    """(line or paragraph, text, reason) of the notes."""
    return [(note.place.rpartition(":")[2], note.text, note.reason) for note in log.notes(kind)]  # type: ignore[arg-type]


def numbers(articles: list[Article]) -> list[str]:
    return [article.article_number for article in articles]


# --- text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
@pytest.mark.parametrize("name", ["办法.txt", "办法.md", "办法.MARKDOWN"])
def test_a_law_reads_the_same_in_every_encoding(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(LAW.replace("\n", "\r\n").encode(encoding))
    articles, log = read(path)
    assert numbers(articles) == ["第一条", "第二条"]
    assert articles[0].law_name == "样例市施工现场管理办法"
    assert articles[0].extra["source"] == name
    assert articles[1].extra["chapter"] == "第一章 总则"
    assert articles[1].contents.endswith("（二）验收不合格的，不得使用。")
    assert ("3", "题注") in [(place, reason) for place, _, reason in told(log)]
    assert log.files[0].num_articles == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (LAW.encode("utf-16")[:-1], "已损坏"),
        (LAW.encode("big5", "ignore"), "编码无法识别"),
        (LAW.encode("utf-8")[:-1] + b"\xff", "编码无法识别"),
        (LAW.encode("utf-8").decode("gb18030", "replace").encode("utf-8"), "乱码|无法识别的字符"),
        (LAW.encode("utf-8").decode("gb18030", "ignore").encode("utf-8"), "乱码"),
        (LAW.encode("gb18030").decode("latin-1").encode("utf-8"), "乱码"),
        (LAW.encode("utf-8").decode("latin-1").encode("utf-8"), "乱码"),
        (LAW.encode("utf-8").decode("cp1252", "ignore").encode("utf-8"), "乱码"),
        (LAW.encode("ascii", "replace").replace(b"?", "\ufffd".encode()), "无法识别的字符"),
        (b"%PDF-1.7\n" + LAW.encode(), "而是 PDF"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"x" * 99, "旧版 Office"),
        (LAW.encode() + b"\0", "空字节"),
    ],
)
def test_text_that_is_not_what_was_written_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(SourceInvalid, match=reason) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


def test_one_lost_character_is_a_warning_and_good_text_is_no_mojibake(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(LAW.replace("制定", "制\ufffd") + "正文。\n" * 1000, "utf-8")
    articles, log = read(path)
    assert len(articles) == 2
    assert any("U+FFFD" in reason for _, _, reason in told(log, "warning"))
    for text in (LAW, "±20℃ ×5 µm ÷ § ° ± · ¥ é ü", "GB 50000", "", "ΔαβγΩ φ20@100 ①②③"):
        assert find_mojibake(text) is None


@settings(max_examples=60)
@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5), min_size=6, max_size=40))
def test_chinese_is_no_mojibake_and_its_misreadings_are(text: str) -> None:
    assert find_mojibake(text) is None
    if text.encode("gb18030").decode("utf-8", "ignore").strip():
        return  # a text whose bytes are both
    assert find_mojibake(text.encode("utf-8").decode("latin-1"))


def test_pictures_links_and_escapes_of_markdown_go_and_formulas_stay(tmp_path: Path) -> None:
    path = tmp_path / "GB99001-2025样例规范.md"
    path.write_text(
        "1\\.0\\.1　见[附表](https://example.com/a)。![图](a.png)\n\n1.0.2 **应** $25\\%$ 且 $a\\.b$。\n",
        "utf-8",
    )
    articles, log = read(path)
    assert [(article.article_number, article.contents) for article in articles] == [
        ("1.0.1", "见附表。"),
        ("1.0.2", "应 $25\\%$ 且 $a\\.b$。"),
    ]
    assert ("1", "![图](a.png)", "图片未导入") in told(log)


def test_a_very_long_line_is_refused_and_a_hundred_thousand_lines_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("长" * (1 << 20) + "长", "utf-8")
    with pytest.raises(SourceInvalid, match=r"a\.txt:1：一行超过"):
        read(path)
    path.write_text("第一条 总则。\n" + "第二款的一行正文。\n" * 100_000, "utf-8")
    began = time.process_time()
    articles, _ = read(path)
    assert time.process_time() - began < 20
    assert sum(article.contents.count("第二款") for article in articles) == 100_000


def test_an_empty_file_gives_nothing_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(b"\n \n")
    articles, log = read(path)
    assert articles == []
    assert [reason for _, _, reason in told(log, "warning")] == ["没有得到任何条文"]


# --- DOCX ----------------------------------------------------------------------------------------------------------


def docx(tmp_path: Path, body: str, **parts: str) -> tuple[list[Article], ImportLog]:
    return read(
        save_docx(tmp_path / "样例.docx", body, {f"{name}.xml": content for name, content in parts.items()})
    )


def test_paragraphs_of_a_law_are_read_and_a_place_is_a_paragraph(tmp_path: Path) -> None:
    body = "".join(
        [
            paragraph("样例条例", "T"),
            paragraph("（2024年1月1日公布）"),
            paragraph("第一章 总则", "H1"),
            paragraph("第一条　为了安全，", runs=run("制定") + "<w:r><w:tab/></w:r>" + run("本条例。")),
            paragraph("第二条　本条例自公布之日起施行。", runs="<w:r><w:br/></w:r>" + run("换行之后。")),
        ]
    )
    articles, log = docx(tmp_path, body, styles=styles(("T", "Title", ""), ("H1", "heading 1", "")))
    assert [(article.law_name, article.article_number) for article in articles] == [
        ("样例条例", "第一条"),
        ("样例条例", "第二条"),
    ]
    assert articles[0].contents == "为了安全，制定\t本条例。"
    assert articles[1].contents == "本条例自公布之日起施行。\n换行之后。"
    assert articles[1].extra["chapter"] == "第一章 总则"
    assert [(place, reason) for place, _, reason in told(log)] == [
        ("1", "标题"),
        ("2", "题注"),
        ("3", "章节标题"),
    ]


def test_numbers_that_word_writes_itself_are_written_out(tmp_path: Path) -> None:
    levels = {
        0: ("chineseCountingThousand", "第%1章"),
        1: ("chineseCountingThousand", "第%2条"),
        2: ("decimal", "（%3）"),
    }
    body = paragraph("样例条例") + "".join(
        numbered(text, 1, level)
        for text, level in [
            ("总则", 0),
            ("甲。", 1),
            ("乙：", 1),
            ("其一；", 2),
            ("其二。", 2),
            ("附则", 0),
            ("丙。", 1),
        ]
    )
    keep = '<w:lvlRestart w:val="0"/>'
    articles, _ = docx(tmp_path, body, numbering=numbering(levels, extra=keep))
    assert [(article.article_number, article.extra.get("chapter")) for article in articles] == [
        ("第一条", "第一章 总则"),
        ("第二条", "第一章 总则"),
        ("第三条", "第二章 附则"),
    ]


def test_clauses_of_a_standard_count_over_their_levels_and_a_list_may_start_anew(tmp_path: Path) -> None:
    levels = {0: ("decimal", "%1"), 1: ("decimal", "%1.%2"), 2: ("decimal", "%1.%2.%3")}
    again = '<w:num w:numId="2"><w:abstractNumId w:val="7"/><w:lvlOverride w:ilvl="2"><w:startOverride w:val="9"/></w:lvlOverride></w:num>'
    body = paragraph("GB99001-2025样例规范") + "".join(
        [
            numbered("总则", 1, 0),
            numbered("一般规定", 1, 1),
            numbered("甲应符合规定。", 1, 2),
            numbered("乙应符合规定。", 1, 2),
            numbered("特别规定", 1, 1),
            numbered("丙应符合规定。", 1, 2),
            numbered("丁应符合规定。", 2, 2),
            numbered("无号的列表。", 99, 0),
        ]
    )
    articles, _ = docx(tmp_path, body, numbering=numbering(levels, nums=again))
    assert numbers(articles) == ["1.1.1", "1.1.2", "1.2.1", "1.2.9"]
    assert "无号的列表。" in articles[-1].contents


def test_a_style_may_carry_the_number_and_a_paragraph_may_turn_it_off(tmp_path: Path) -> None:
    entries = styles(("A", "条文", '<w:numPr><w:numId w:val="1"/></w:numPr>'))
    off = '<w:numPr><w:numId w:val="0"/></w:numPr>'
    body = paragraph("甲。", "A") + paragraph("乙。", "A") + paragraph("续。", "A", off)
    articles, _ = docx(
        tmp_path, body, styles=entries, numbering=numbering({0: ("chineseCounting", "第%1条")})
    )
    assert [(article.article_number, article.contents) for article in articles] == [
        ("第一条", "甲。"),
        ("第二条", "乙。\n续。"),
    ]


def test_tracked_changes_are_read_as_accepted_and_what_goes_is_told(tmp_path: Path) -> None:
    gone = '<w:del w:id="1"><w:r><w:delText>不得</w:delText></w:r></w:del>'
    come = f'<w:ins w:id="2">{run("应当")}</w:ins>'
    moved = f'<w:moveFrom w:id="3">{run("移走的字")}</w:moveFrom>'
    joined = "<w:rPr><w:del/></w:rPr>"
    body = (
        paragraph("第一条 单位", runs=gone + come + run("验收。") + moved)
        + paragraph("第二条 前半", properties=joined)
        + paragraph("后半。")
    )
    articles, log = docx(tmp_path, body)
    assert [article.contents for article in articles] == ["单位应当验收。", "前半后半。"]
    assert [(text, reason) for _, text, reason in told(log)] == [
        ("不得", "修订中已删除"),
        ("移走的字", "修订中已移走"),
    ]
    assert "3 处修订" in told(log, "warning")[0][2]


def test_rows_of_tables_belong_to_the_article_before_them_and_a_frame_is_no_table(tmp_path: Path) -> None:
    rows = (
        cell("项次") + cell("荷载", '<w:gridSpan w:val="2"/>'),
        cell("1", '<w:vMerge w:val="restart"/>') + cell("恒载") + cell("1.2"),
        cell("", "<w:vMerge/>") + cell("活载") + cell("1.4"),
    )
    frame = table(f"<w:tc>{paragraph('第二条 框中的条文。')}</w:tc>")
    articles, _ = docx(tmp_path, paragraph("第一条 按下表计算。") + table(*rows) + frame)
    assert [article.contents for article in articles] == [
        "按下表计算。\n项次 | 荷载 |\n1 | 恒载 | 1.2\n| 活载 | 1.4",
        "框中的条文。",
    ]


def test_what_a_reader_does_not_see_as_text_is_left_and_told(tmp_path: Path) -> None:
    box = f"<w:r><w:pict><v:shape><w:txbxContent>{paragraph('框内说明。')}</w:txbxContent></v:shape></w:pict></w:r>"
    twice = f"<w:r><mc:AlternateContent><mc:Choice>{run('选一')}</mc:Choice><mc:Fallback>{run('选一')}</mc:Fallback></mc:AlternateContent></w:r>"
    body = (
        paragraph("第一章 总则 1", "TOC1")
        + paragraph(
            "第一条 正文",
            runs='<w:r><w:footnoteReference w:id="2"/></w:r>' + run("隐藏", "<w:vanish/>") + twice,
        )
        + paragraph(runs="<w:r><w:drawing/></w:r>")
        + paragraph("第二条 文字。", runs=box)
    )
    note = root("footnotes", f'<w:footnote w:id="2">{paragraph("脚注的话")}</w:footnote>')
    articles, log = docx(
        tmp_path,
        body,
        styles=styles(("TOC1", "toc 1", "")),
        footnotes=note,
        header1=root("hdr", paragraph("页眉字")),
    )
    assert [article.contents for article in articles] == ["正文选一", "文字。\n框内说明。"]
    assert [(text, reason) for _, text, reason in told(log)] == [
        ("第一章 总则 1", "目录"),
        ("隐藏", "隐藏文字"),
        ("脚注的话", "脚注"),
        ("页眉字", "页眉"),
    ]
    assert ("3", "", "图片或对象未导入") in told(log, "warning")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "零"), (7, "七"), (10, "十"), (11, "十一"), (20, "二十"), (101, "一百零一"), (110, "一百一十"), (1005, "一千零五"), (2030, "二千零三十"), (10000, "10000")],
)  # fmt: skip
def test_chinese_numbers(count: int, text: str) -> None:
    assert to_chinese(count) == text


@settings(max_examples=100)
@given(st.integers(0, 9999))
def test_chinese_numbers_read_back(count: int) -> None:
    assert chinese_to_int(to_chinese(count)) == count


def test_other_ways_of_counting() -> None:
    shown = {
        ("upperRoman", 14): "XIV", ("lowerRoman", 9): "ix", ("upperLetter", 27): "AA", ("lowerLetter", 2): "b",
        ("ideographDigital", 102): "一〇二", ("chineseLegalSimplified", 12): "壹拾贰", ("decimalZero", 3): "03",
        ("decimalEnclosedCircleChinese", 3): "③", ("unheardOf", 3): "3", ("upperRoman", 5000): "5000",
    }  # fmt: skip
    assert {key: format_count(key[1], key[0]) for key in shown} == shown


BILLION_LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]><x>&j;</x>"
)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (BILLION_LAUGHS.encode(), "DTD"),
        (BILLION_LAUGHS.encode("utf-16"), "DTD"),
        (b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>', "DTD"),
        (b"<x>" * 200, "层"),
        (b"<x>", "损坏"),
        (b"", "损坏"),
        (b"<x>&undefined;</x>", "损坏"),
        (b'<?xml version="1.0" encoding="klingon"?><x/>', "损坏"),
    ],
)
def test_xml_that_is_broken_or_dangerous_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(XmlInvalid, match=reason):
        parse_xml(raw, {})


def test_a_docx_that_is_none_is_refused_with_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.docx"
    whole = save_docx(path, paragraph("第一条 文字。") * 200).read_bytes()
    bomb = tmp_path / "bomb.docx"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b" " * (64 << 20))
    evil = (
        save_docx(tmp_path / "evil.docx", "").read_bytes().replace(b"word/document.xml", b"word/documenX.xml")
    )
    for content, reason in (
        (b"\xd0\xcf\x11\xe0" + b"x" * 600, "旧版 Office（.doc、.xls、.wps）或加密"),
        (b"<html></html>", "zip 文件损坏"),
        (whole[: len(whole) // 2], "zip 文件损坏"),
        (bomb.read_bytes(), "压缩炸弹"),
        (evil, "没有 document.xml"),
        (b"", "zip 文件损坏"),
    ):
        path.write_bytes(content)
        with pytest.raises(SourceInvalid, match=reason):
            read(path)


def test_a_changed_byte_anywhere_in_a_docx_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.docx"
    levels = numbering({0: ("chineseCounting", "第%1条")})
    parts = {"numbering.xml": levels, "styles.xml": styles(("A", "heading 1", ""))}
    whole = save_docx(path, numbered("甲。", 1) + table(cell("a") + cell("b")), parts).read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            read(path)
        except SourceInvalid:
            continue


# --- HTML ----------------------------------------------------------------------------------------------------------

PAGE = """<!DOCTYPE html><html><head><meta charset="{charset}"><title>样例条例_网站</title>
<style>p {{ color: red }}</style><script>var a = "第九条 假的";</script></head>
<body><form><nav><a href="/">首页</a></nav><h1>样例条例</h1>
<p>第一条&nbsp;&nbsp;为了<b>安全</b>，<br>制定本条例。</p><!-- 第八条 注释 -->
<table><tr><th rowspan=2>项</th><th colspan="2">荷载</th></tr><tr><td>a&lt;b</td><td>2</td></tr></table>
<p>第二条 完。<div>尾段。</div><footer>网站地图</footer></form></body></html>"""


@pytest.mark.parametrize("charset", ["utf-8", "gb2312", "gbk", "none"])
def test_a_page_is_read_as_it_is_seen(tmp_path: Path, charset: str) -> None:
    path = tmp_path / "a.html"
    path.write_bytes(PAGE.format(charset=charset).encode("gb18030" if charset.startswith("gb") else "utf-8"))
    articles, log = read(path)
    assert [(article.law_name, article.article_number, article.contents) for article in articles] == [
        ("样例条例", "第一条", "为了安全，\n制定本条例。\n项 | 荷载 |\n| a<b | 2"),
        ("样例条例", "第二条", "完。\n尾段。"),
    ]
    assert [(text, reason) for _, text, reason in told(log)][:2] == [
        ("样例条例_网站", "网页标题"),
        ("首页", "导航"),
    ]
    assert ("6", "网站地图", "页脚") in told(log)


def test_a_page_that_was_saved_anew_keeps_an_old_declaration(tmp_path: Path) -> None:
    path = tmp_path / "a.htm"
    path.write_bytes(PAGE.format(charset="gb2312").encode("utf-8"))
    assert len(read(path)[0]) == 2


def test_a_table_that_only_lays_out_the_page_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    inner = "<table><tr><td>甲</td><td>乙</td></tr></table>"
    path.write_text(
        f"<table><tr><td>菜单</td><td><p>第一条 文字。</p>{inner}<p>第二条 完。</p></td></tr></table>",
        "utf-8",
    )
    articles, _ = read(path)
    assert [(article.article_number, article.contents) for article in articles] == [
        ("第一条", "文字。\n甲 | 乙"),
        ("第二条", "完。"),
    ]


@pytest.mark.parametrize(
    "markup",
    [
        "<!--",
        "<a ",
        "<![CDATA[",
        '<a x="',
        "&",
        "<script></",
        "<!",
        "<?",
        "</",
        "<table>",
        "<td>",
        "<p>",
        "<script>",
    ],
)
def test_hostile_pages_cost_linear_time_and_raise_nothing_else(markup: str) -> None:
    began = time.process_time()
    for text in (markup * 20_000, markup * 20_000 + ">"):
        try:
            read_markup(text, "a.html", ImportLog())
        except SourceInvalid as error:
            assert "a.html:1" in str(error)
    assert time.process_time() - began < 5


def test_what_follows_a_script_without_an_end_is_told_not_lost_in_silence() -> None:
    log = ImportLog()
    assert read_markup("<p>第一条 甲。</p><script>第二条 乙。", "a.html", log)[0].text == "第一条 甲。"
    assert "<script> 没有结尾" in told(log, "warning")[0][2]


SNIPPETS = ["<p>", "</p>", "<table>", "<tr>", "<td colspan=3>", "<td rowspan='9'>", "</td>", "</tr>", "</table>", "<h1>", "</h1>",
    "<header>", "</header>", "<nav>", "</nav>", "<script>", "</script>", "<br/>", "第一条 甲", "&lt;", "<!-- x -->", "\n", "<", ">"]  # fmt: skip


@settings(max_examples=200)
@given(st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=5), max_size=30).map("".join))
def test_any_markup_gives_lines(text: str) -> None:
    for line in read_markup(text, "a.html", ImportLog()):
        assert line.text.strip()


CELLS = st.builds(Cell, st.text("字a |", max_size=3), st.integers(0, 99), st.integers(0, 99))


@settings(max_examples=100)
@given(st.lists(st.lists(CELLS, max_size=5), max_size=6))
def test_every_cell_of_a_table_stands_in_it_once(rows: list[list[Cell]]) -> None:
    shown = "".join(spread_rows(rows)).replace(" ", "").replace("|", "")
    assert shown == "".join(one.text for row in rows for one in row).replace(" ", "").replace("|", "")


# --- anything ------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    st.sampled_from([".md", ".txt", ".html", ".docx", ".json", ".csv", ".jsonl", ".zip"]),
    st.binary(max_size=200)
    | st.text(max_size=80).map(lambda text: text.encode("utf-8", "ignore"))
    | st.just(LAW.encode()),
)
def test_any_bytes_give_articles_or_a_report(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / f"a{suffix}"
    path.write_bytes(content)
    try:
        articles, _ = read(path)
    except SourceInvalid as error:
        assert str(path) in str(error)
        return
    assert all(article.law_name and article.contents for article in articles)


def test_paragraphs_are_counted_as_word_counts_them(tmp_path: Path) -> None:
    path = save_docx(
        tmp_path / "a.docx", paragraph() + paragraph("第一条 甲。") + table(cell("a") + cell("b"))
    )
    lines = docx_importer.read_lines(InputFile(path, "a.docx"), ImportLog())
    assert [(line.number, line.text, line.table) for line in lines] == [
        (2, "第一条 甲。", False),
        (3, "| a | b |", True),
    ]

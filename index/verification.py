"""Which citations of a text are in the corpus: each one looked up, none judged by likeness.

Rule: what is not found is said to be absent only where the law it names is there with numbered articles. Of anything
else nothing can be said, and the status never says more.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from cg_rag.index.citation_ranges import cite_inside, find_range
from cg_rag.index.citation_scanner import Citation
from cg_rag.index.citations import Resolution, Resolver, is_law_like
from cg_rag.index.corpus import Article, LawRun, Scope
from cg_rag.index.errors import ScopeUnknown
from cg_rag.index.numerals import article_key, parent_keys
from cg_rag.index.onnx import CURRENT_TOKEN
from cg_rag.index.validity import Validity, find_validity, is_in_force, is_partly_repealed

Status = Literal["exact", "article_absent", "law_not_in_corpus"]

# A number that so many articles have is a fault of the source; nobody reads on.
MAX_ARTICLES_PER_CITATION = 50
# Articles inside of ranges (第七条至第九条) that one text gets, all in all: 2,000 ranges fit into a text.
MAX_FILLED_IN = 500
# What all articles of one answer may hold together, 3 MB of JSON: 4,000 citations of one long article fit into a text.
MAX_ARTICLE_CHARACTERS = 1_000_000
_CHARACTERS_BESIDE_CONTENTS = 200


class Reader(Protocol):
    """What is needed of an open index (`store.IndexReader`)."""

    @property
    def runs(self) -> Sequence[LawRun]: ...

    def find_rows(self, run_index: int, key: str) -> list[int]: ...

    def read_articles(self, rows: Sequence[int]) -> list[Article]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """One citation and what the corpus says of it. `raw` is the part of the text that begins at `start`.

    exact              what is cited is there: `articles`, those in force first, of them the one whose number is the
                       cited one (6.0.5 before 6.0.5(1)), else in source order. Of a law named
                       alone they are one entry a law, without number and contents
    article_absent     `law_name` is there with numbered articles, the one cited is not among them
    law_not_in_corpus  nothing can be said

    `law_name` is the corpus's where the law is there, else as written, "" where none is named; `article_number` as
    written, with paragraph and item, "" where none is named. `note` is a Chinese sentence on what to mind.
    """

    start: int
    raw: str
    law_name: str
    article_number: str
    status: Status
    articles: tuple[Article, ...] = ()
    note: str = ""

    @property
    def standing(self) -> Validity | None:
        """That of the first article."""
        return find_validity(self.articles[0].extra) if self.articles else None

    def as_json(self) -> dict[str, Any]:
        """docs/http.md, 引用核对. What is empty is left out, but for the first four."""
        body: dict[str, Any] = {
            "raw": self.raw,
            "law_name": self.law_name,
            "article_number": self.article_number,
            "status": self.status,
        }
        if self.standing:
            body["standing"] = self.standing
        if self.note:
            body["note"] = self.note
        if self.articles:
            body["doc"] = _document(self.articles[0])
        if len(self.articles) > 1:
            body["more_docs"] = [_document(article) for article in self.articles[1:]]
        return body


@dataclass(slots=True)
class Verification:
    """`verdicts` in the order of the text. `warnings` are Chinese sentences. `timings_ms`: scan_ms, read_ms."""

    verdicts: list[Verdict]
    warnings: list[str] = field(default_factory=list)
    timings_ms: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """docs/http.md, 引用核对, without ok, request_id and scope."""
        return {
            "citations": [verdict.as_json() for verdict in self.verdicts],
            "warnings": self.warnings,
            "runtime_stats": {name: round(value, 3) for name, value in self.timings_ms.items()},
        }


class Verifier:
    """Verifies against the scopes of one open index. Threads share one; a scope costs about 10 µs a law when it is
    first asked for."""

    def __init__(self, reader: Reader, scopes: Mapping[str, Scope]) -> None:
        self._reader = reader
        self._scopes = dict(scopes)
        self._lock = threading.Lock()
        self._ready: dict[str, tuple[_ScopeLookup, Resolver]] = {}

    def verify(self, text: str, scope: str) -> Verification:
        """Every citation in `text`, judged by the articles of `scope` alone.

        Raises ScopeUnknown, Cancelled when the token of the context is cancelled, IndexDamaged and OSError for an
        article that cannot be read.
        """
        lookup, resolver = self._of_scope(scope)
        result = Verification([])
        with _timed(result, "scan_ms"):
            citations = _Citations(resolver, text)
            found = [_judge(citation, resolution) for citation, resolution in citations.resolve()]
        if citations.num_ends_only:
            result.warnings.append(
                f"有 {citations.num_ends_only} 处条文区间过长，或全文的区间合计超过 {MAX_FILLED_IN} 条，只核对了两端。"
            )
        room = MAX_ARTICLE_CHARACTERS
        with _timed(result, "read_ms"):
            for judged in found:
                verdict = self._with_articles(judged, lookup, room)
                room -= sum(map(_num_characters, verdict.articles))
                result.verdicts.append(verdict)
        num_bare = sum(one.status == "exact" and not one.articles for one in result.verdicts)
        if num_bare:
            result.warnings.append(
                f"引用过多，条文合计超过 {MAX_ARTICLE_CHARACTERS} 个字符，其中 {num_bare} 处未附条文，请分段核对。"
            )
        return result

    def _of_scope(self, name: str) -> tuple[_ScopeLookup, Resolver]:
        with self._lock:
            if name not in self._ready:
                if name not in self._scopes:
                    raise ScopeUnknown(name, list(self._scopes))
                lookup = _ScopeLookup(self._reader, self._scopes[name])
                self._ready[name] = lookup, Resolver(lookup)
            return self._ready[name]

    def _with_articles(self, judged: _Judged, lookup: _ScopeLookup, room: int) -> Verdict:
        _check_cancelled()
        verdict, citation = judged.verdict, judged.citation
        if verdict.status != "exact" or room <= 0:
            return verdict
        rows = judged.rows or [lookup.first_row[name] for name in judged.law_names]
        articles = self._reader.read_articles(rows[:MAX_ARTICLES_PER_CITATION])
        if not judged.rows:
            articles = [_law_alone(article) for article in articles]
        cited = article_key(_number_as_written(citation))
        articles.sort(
            key=lambda article: (not is_in_force(article.extra), article_key(article.article_number) != cited)
        )
        if sum(map(_num_characters, articles)) > room:
            return verdict
        notes = [verdict.note, *_notes_on_articles(citation, articles, len(rows))]
        return replace(verdict, law_name=articles[0].law_name, articles=tuple(articles), note="".join(notes))


@dataclass(frozen=True, slots=True)
class _Judged:
    """A verdict without its articles: `rows`, or those of `law_names` where the law is named alone."""

    verdict: Verdict
    citation: Citation
    rows: Sequence[int]
    law_names: Sequence[str]


class _ScopeLookup:
    """The laws of one scope as `citations.ArticleLookup`; rows stay those of the index."""

    def __init__(self, reader: Reader, scope: Scope) -> None:
        self._reader = reader
        # A profile takes laws whole (`corpus.resolve_scope`), so the first row tells.
        self._indices = [
            index
            for index, run in enumerate(reader.runs)
            if any(start <= run.start < stop for start, stop in scope.ranges)
        ]
        self.runs = [reader.runs[index] for index in self._indices]
        self.first_row = {run.law_name: run.start for run in reversed(self.runs)}

    def find_rows(self, run_index: int, key: str) -> list[int]:
        return self._reader.find_rows(self._indices[run_index], key)


class _Citations:
    """The citations of one text, those inside of its ranges too. `num_ends_only`: ranges of which only the ends are."""

    def __init__(self, resolver: Resolver, text: str) -> None:
        self._resolver = resolver
        self._text = text
        self._room = MAX_FILLED_IN
        self.num_ends_only = 0

    def resolve(self) -> Iterator[tuple[Citation, Resolution]]:
        before: Citation | None = None
        for citation in self._resolver.find_citations(self._text):
            _check_cancelled()
            if before is not None:
                yield from self._resolve_between(before, citation)
            before = citation
            resolution = self._resolver.resolve(citation)
            # 《施工日志》 names no law; without a code or an article nobody cites it as one.
            names_law = citation.code or not _is_law_alone(citation) or is_law_like(citation.law_name or "")
            if names_law or resolution.law_names:
                yield citation, resolution

    def _resolve_between(self, first: Citation, last: Citation) -> Iterator[tuple[Citation, Resolution]]:
        span = find_range(self._text, first, last)
        if span is None:
            return
        if span.is_too_long or span.last - span.first - 1 > self._room:
            self.num_ends_only += 1
            return
        self._room -= span.last - span.first - 1
        for number in range(span.first, span.last):
            if number > span.first:
                citation = cite_inside(self._text, first, last, f"{span.head}{number}")
                yield citation, self._resolver.resolve(citation)
            yield from self._resolve_inserted(first, last, f"{span.head}{number}")

    def _resolve_inserted(
        self, first: Citation, last: Citation, number: str
    ) -> Iterator[tuple[Citation, Resolution]]:
        """第七条之一, 第七条之二 … stand inside of a range where the law has them."""
        for place in range(1, 10):
            citation = replace(
                cite_inside(self._text, first, last, number), article_number=f"{number}-{place}"
            )
            resolution = self._resolver.resolve(citation)
            if resolution.status != "exact" or not resolution.rows:
                return
            yield replace(citation, article_number=f"第{number}条之{place}"), resolution


def _judge(citation: Citation, resolution: Resolution) -> _Judged:
    status, note = _status(citation, resolution)
    is_there = status != "law_not_in_corpus"
    number = "" if status == "exact" and not resolution.rows else _number_as_written(citation)
    law_name = resolution.law_names[0] if is_there else _law_as_written(citation)
    verdict = Verdict(citation.start, citation.raw, law_name, number, status, (), note)
    return _Judged(verdict, citation, resolution.rows, resolution.law_names)


def _status(citation: Citation, resolution: Resolution) -> tuple[Status, str]:
    names = "、".join(f"“{name}”" for name in resolution.law_names[:3])
    year = resolution.unchecked_year
    edition = f"写明 {year} 版，条文库中的法规未注明版本，请以条文所带日期为准。" if year else ""
    if resolution.status == "exact":
        return "exact", edition
    if resolution.status == "article_absent":
        return "article_absent", f"条文库中的{names}没有这一条。{edition}"
    if resolution.status == "law_only" and _is_law_alone(citation):
        return "exact", f"只写了法规，没有写明条文。{edition}"
    if resolution.status == "law_only":
        return "law_not_in_corpus", f"条文库中的{names}没有条文编号，无法核对到条。"
    if citation.law_name is None and citation.code is None:
        return "law_not_in_corpus", "没有写明是哪一部法规，无法核对。"
    near = f"名称或编号相近的有{names}，不能视为同一部。" if names else ""
    return "law_not_in_corpus", f"所选检索范围内没有这部法规，无法核对。{near}"


def _is_law_alone(citation: Citation) -> bool:
    """Whether no article is named: （一） right behind a name that has no such article belongs to the name."""
    return citation.article_number is None or citation.article_number.startswith(("(", "（"))


def _law_as_written(citation: Citation) -> str:
    code = f"{citation.code}-{citation.year}" if citation.code and citation.year else citation.code
    return citation.law_name or code or ""


def _number_as_written(citation: Citation) -> str:
    return "".join(part for part in (citation.article_number, citation.paragraph, citation.item) if part)


def _notes_on_articles(citation: Citation, articles: Sequence[Article], num_rows: int) -> Iterator[str]:
    if num_rows > len(articles):
        yield f"共有 {num_rows} 条，只附前 {len(articles)} 条。"
    if all(_is_coarse(citation, article) for article in articles):
        yield "所引的款、项没有单独收录，对上的是它所在的条文，请对照正文。"
    if is_partly_repealed(articles[0].extra):
        yield "该法规标注为部分失效，请核对所引条文是否仍然有效。"


def _is_coarse(citation: Citation, article: Article) -> bool:
    """Whether the article only holds the paragraph or item that is cited."""
    wanted, found = article_key(citation.article_number or ""), article_key(article.article_number)
    if "." not in found:
        wanted = re.sub(r"^(\d+)\.(\d+)$", r"\1(\2)", wanted)  # 15.1 of a law that has 第十五条
    has_part = bool(citation.paragraph or citation.item)
    return found in parent_keys(wanted) or (has_part and found == wanted)


def _law_alone(article: Article) -> Article:
    kept = ("status", "effective_date", "version_date")
    return Article(
        article.law_name, "", "", {name: article.extra[name] for name in kept if name in article.extra}
    )


def _num_characters(article: Article) -> int:
    extra = sum(len(str(value)) for value in article.extra.values())
    return len(article.contents) + len(article.law_name) + extra + _CHARACTERS_BESIDE_CONTENTS


def _document(article: Article) -> dict[str, Any]:
    return {
        **article.extra,
        "law_name": article.law_name,
        "article_number": article.article_number,
        "contents": article.contents,
    }


def _check_cancelled() -> None:
    token = CURRENT_TOKEN.get()
    if token is not None:
        token.check()


@contextmanager
def _timed(result: Verification, stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    result.timings_ms[stage] = (time.perf_counter() - started) * 1000

"""How people write a law and its article, and which articles of a corpus they mean: the public names.

`parse` needs no corpus. `Resolver` knows the laws of one: it also finds their names without 《》, and turns
a citation into rows. A citation never resolves to another law than the one it names: nothing is matched by
likeness.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from cg_rag.index.citation_scanner import Citation, scan
from cg_rag.index.corpus import LawRun
from cg_rag.index.law_names import (
    Identity,
    code_key,
    identify,
    is_about,
    is_generic,
    is_sure_code,
    may_begin,
    spoken_titles,
    without_newer,
)
from cg_rag.index.numerals import CHINESE_DIGITS, article_key, fold, parent_keys, parts_key


def parse(text: str) -> list[Citation]:
    """Every citation in `text` that 《》, a code or 第…条 marks: spans ascending and disjoint.

    Never raises, linear in the text. A 《》 that holds no law (《施工日志》) is returned too, without an
    article. 附录A and 6.0.5 count only behind a law.
    """
    return scan(text, None)


class ArticleLookup(Protocol):
    """What the index offers for look-up."""

    @property
    def runs(self) -> Sequence[LawRun]: ...

    def find_rows(self, run_index: int, key: str) -> list[int]:
        """Rows of that law which `lookup_keys` stores under `key`, ascending."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a citation means in this corpus.

    exact              `rows` are the articles, `law_names` the laws they are in
    article_absent     `law_names` are in the corpus, the article is not
    law_only           `law_names` are the laws that the citation may mean; no rows, because it names no
                       article, or because the corpus holds the law as text without article numbers
    law_not_in_corpus  nothing can be said. `law_names` then lists near misses that are NOT the law cited:
                       another edition, laws that only one of a contradicting name and code belongs to, or
                       laws whose title the name ends in (北京市消防条例)

    A paragraph or item that the corpus does not hold apart from its article resolves to the article, unless
    other parts of that article are held apart. `unchecked_year` is the edition cited where a law found does not
    tell its own.
    """

    status: Literal["exact", "article_absent", "law_only", "law_not_in_corpus"]
    law_names: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    unchecked_year: str = ""


@dataclass(frozen=True, slots=True)
class _Law:
    name: str
    identity: Identity
    runs: list[int]


class Resolver:
    """Finds and resolves citations over one corpus. Thread safe; building costs about 10 µs a law."""

    def __init__(self, lookup: ArticleLookup) -> None:
        self._lookup = lookup
        self._laws: list[_Law] = []
        self._by_title: dict[str, list[int]] = {}
        self._by_code: dict[str, list[int]] = {}
        by_name: dict[str, list[int]] = {}
        for index, run in enumerate(lookup.runs):
            by_name.setdefault(run.law_name, []).append(index)
        for name, runs in by_name.items():
            self._add(_Law(name, identify(name), runs))
        self._names = _NameTable(by_name)
        self._dotted: dict[int, bool] = {}

    def _add(self, law: _Law) -> None:
        number = len(self._laws)
        self._laws.append(law)
        if law.identity.title:
            self._by_title.setdefault(law.identity.title, []).append(number)
        if law.identity.code:
            self._by_code.setdefault(law.identity.code, []).append(number)

    def find_citations(self, text: str) -> list[Citation]:
        """`parse`, and names of laws of this corpus that stand without 《》 (安全生产法第28条).

        A bare code that may as well be the model of a machine (SY 75) is left out where the corpus does not know it.
        """
        return [citation for citation in scan(text, self._names) if not self._is_model(citation)]

    def _is_model(self, citation: Citation) -> bool:
        bare = not (citation.law_name or citation.year or citation.article_number)
        code = citation.code if bare else None
        return code is not None and not is_sure_code(code) and code_key(code) not in self._by_code

    def resolve(self, citation: Citation) -> Resolution:
        """Rows over the whole corpus, ascending; a caller keeps those of its scope."""
        number = citation.article_number
        bracketed = number is not None and number.startswith(("(", "（"))
        if bracketed and (resolution := self._resolve_qualified(citation)):
            return resolution
        laws, near = self._find_laws(citation)
        if not laws:
            return Resolution("law_not_in_corpus", _names(near))
        years = _wanted(citation).years
        unchecked = "" if all(law.identity.years & years for law in laws) else max(years, default="")
        if number is None:
            return Resolution("law_only", _names(laws), (), unchecked)
        found = [(law, self._find_articles(law, citation)) for law in laws]
        rows = sorted({row for _, law_rows in found for row in law_rows})
        if not rows:
            absent = not bracketed and all(self._is_numbered(law) for law in laws)
            return Resolution("article_absent" if absent else "law_only", _names(laws), (), unchecked)
        names = _names(law for law, law_rows in found if law_rows)
        return Resolution("exact", names, tuple(rows), unchecked)

    def find_anywhere(self, citation: Citation) -> tuple[int, ...]:
        """Rows of that article number in every law, for a citation that names no law."""
        rows = {row for run in range(len(self._lookup.runs)) for row in self._find_in_run(run, citation)}
        return tuple(sorted(rows))

    def _resolve_qualified(self, citation: Citation) -> Resolution | None:
        """《…的解释》（一） as the name that the corpus has."""
        name = f"{citation.law_name or ''}{citation.article_number}"
        laws, _ = self._find_laws(replace(citation, law_name=name, article_number=None))
        return Resolution("law_only", _names(laws)) if laws else None

    def _find_laws(self, citation: Citation) -> tuple[list[_Law], list[_Law]]:
        """The laws that agree with all that the citation says, and those that agree with a part of it."""
        wanted = _wanted(citation)
        known = self._by_title.get(wanted.title, ()) or self._by_title.get(without_newer(wanted.title), ())
        if known:
            wanted = replace(wanted, title=self._laws[known[0]].identity.title)
        numbers = {*known, *self._by_code.get(wanted.code, ())}
        near = [self._laws[number] for number in sorted(numbers)]
        laws = [law for law in near if wanted.agrees(law.identity)]
        if wanted.years:
            undated = [law for law in laws if not law.identity.years]
            laws = [law for law in laws if law.identity.years & wanted.years] or undated
        return laws, near or self._find_tails(wanted.title)

    def _find_tails(self, title: str) -> list[_Law]:
        for start in range(1, len(title) - 2):
            if numbers := self._by_title.get(title[start:]):
                return [self._laws[number] for number in numbers]
        return []

    def _is_numbered(self, law: _Law) -> bool:
        """False when every row of the law is text without a number, in which the article may well stand."""
        runs, find = self._lookup.runs, self._lookup.find_rows
        plain = sum(len(find(run, key)) for run in law.runs for key in ("", "全文"))
        return plain < sum(runs[run].count for run in law.runs)

    def _find_articles(self, law: _Law, citation: Citation) -> set[int]:
        rows: set[int] = set()
        for run in law.runs:
            rows.update(self._find_in_run(run, citation))
        return rows

    def _find_in_run(self, run: int, citation: Citation) -> set[int]:
        number = citation.article_number or ""
        rows = self._find_first(run, _specific_keys(citation))
        match = re.fullmatch(r"(\d+)\.(\d+)", article_key(number))
        if not rows and match and not self._has_dotted(run):
            rows = self._find_first(run, [f"{match[1]}({match[2]})"])
        return rows

    def _find_first(self, run: int, keys: Sequence[str]) -> set[int]:
        """Rows of the first key that has any, else of the nearest parent, unless that is stored in parts.

        An appendix is no parent: 附录A does not stand for a 附录A.0.2 that is not there.
        """
        find = self._lookup.find_rows
        for key in keys:
            if rows := find(run, key):
                return set(rows)
        for parent in parent_keys(keys[0]):
            if (len(parent) == 3 and parent.startswith("附录")) or find(run, parts_key(parent)):
                break
            if rows := find(run, parent):
                return set(rows)
        return set()

    def _has_dotted(self, run: int) -> bool:
        """Whether the law numbers its articles 3.1 or 3.0.1, so that 15.1 can only be that."""
        if run not in self._dotted:
            keys = (f"{chapter}.{rest}" for chapter in range(1, 21) for rest in ("1", "0.1", "1.1"))
            self._dotted[run] = any(self._lookup.find_rows(run, key) for key in keys)
        return self._dotted[run]


def _names(laws: Iterable[_Law]) -> tuple[str, ...]:
    return tuple(law.name for law in laws)


def _wanted(citation: Citation) -> Identity:
    """The identity of the law cited: what its name says, completed by the code and edition beside it."""
    named = identify(citation.law_name or "")
    years = named.years | ({citation.year} if citation.year else set())
    code = code_key(citation.code) if citation.code else named.code
    return Identity(named.title, code, frozenset(years), named.commentary)


def _specific_keys(citation: Citation) -> list[str]:
    """Keys of exactly what is cited, most specific first; a row of paragraphs counts as the whole article."""
    number, paragraph, item = citation.article_number or "", citation.paragraph or "", citation.item or ""
    base = article_key(number)
    keys = [article_key(number + paragraph + item)]
    if paragraph and item:
        keys.append(article_key(number + item))
    return [key for key in keys if key.startswith(base)] or [base]


# What may follow a name. Any other Han character may continue it: 消防法规, 消防法实施条例 are not 消防法.
_AFTER = re.compile(
    r"(?![\u3400-\u9fff〇])|第|附[录件]|条文|规定|的|中(?![心华国央])|里|当中|之中|之第|对|等(?!级)|和|与|及|或|以及"
    rf"|要求|所|是|关于|[{CHINESE_DIGITS}]{{1,12}} ?[条、至到]"
)
_AND = re.compile("和|与|及|或|以及|跟|同|还有|、")
_LAWLIKE = re.compile(
    r"(?:法|法典|条例|规定|办法|规范|标准|规程|细则|规则|决定|解释|[通导准]则|章程|通知|意见|制度|手册|指南|公约"
    r"|要点)"
    r"(?:\(.{1,5}\))?$"
)
_STATE = "中华人民共和国"


def is_law_like(name: str) -> bool:
    """Whether a name says by its last word that it is a law (《…条例》, not 《施工日志》)."""
    return bool(_LAWLIKE.search(fold(name).strip()))


class _NameTable:
    """Titles of the corpus as they stand in a sentence, for the longest match at a position.

    A sorted list and, for each title, the longest other title that begins it: the titles that begin a text
    are among the list's last entry not after the text and that entry's beginnings.
    """

    def __init__(self, law_names: Iterable[str]) -> None:
        titles = {title for name in law_names for title in spoken_titles(name)}
        self._titles = sorted(title for title in titles if len(title) >= 2)
        self._longest = max(map(len, self._titles), default=0)
        self._heads = {title[:2] for title in self._titles} | {_STATE[:2]}
        self._shorter = self._link()

    def _link(self) -> list[int]:
        links: list[int] = []
        beginnings: list[int] = []
        for number, title in enumerate(self._titles):
            while beginnings and not title.startswith(self._titles[beginnings[-1]]):
                beginnings.pop()
            links.append(beginnings[-1] if beginnings else -1)
            beginnings.append(number)
        return links

    def _ends(self, folded: str, pos: int) -> Iterator[int]:
        """Ends of the titles that start at `pos`, longest first."""
        if folded.startswith(_STATE, pos):
            pos += len(_STATE)
        number = bisect_right(self._titles, folded[pos : pos + self._longest]) - 1
        while number >= 0:
            if folded.startswith(self._titles[number], pos):
                yield pos + len(self._titles[number])
            number = self._shorter[number]

    def match(self, folded: str, pos: int) -> int | None:
        """The longest title at `pos`, whatever stands around it."""
        return next(self._ends(folded, pos), None) if folded[pos : pos + 2] in self._heads else None

    def find(self, folded: str) -> list[tuple[int, int]]:
        """Spans of titles that begin and end where a name may, ascending and disjoint."""
        spans: list[tuple[int, int]] = []
        heads, stop = self._heads, 0
        for pos in range(len(folded) - 1):
            if pos < stop or folded[pos : pos + 2] not in heads:
                continue
            end = next((end for end in self._ends(folded, pos) if _AFTER.match(folded, end)), 0)
            joined = bool(spans) and _AND.fullmatch(folded, spans[-1][1], pos)
            if end and (joined or _may_stand(folded, pos, end)):
                spans.append((pos, end))
            # A title that may not stand here covers the shorter ones that it ends in.
            stop = max(stop, end)
        return spans

    def stands_alone(self, folded: str, start: int, end: int) -> bool:
        """Whether the title says by its last word that it is a law, and is no mere 宪法."""
        return end - start >= 3 and bool(_LAWLIKE.search(folded, max(start, end - 10), end))


def _may_stand(folded: str, start: int, end: int) -> bool:
    title = folded[start:end]
    if is_generic(title) or ("的" in title and is_about(folded, start)):
        return not start or folded[start - 1] in '《"“「『\n'
    return may_begin(folded, start)

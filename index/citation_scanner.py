"""The grammar of citations: `scan` finds them in a text, with the law and article that each one names.

It reads 《name》 and codes, what may follow them (another code, an edition, an order number, 条文说明), then
articles, one by one or in a row:

    《安全生产法》（2021修正）第二十八条第一款
    GB 55023—2022 第6.0.5条, 《施工脚手架通用规范》GB55023 6.0.5(1)
    《建筑法》第七条、第八条   two citations of one law; a range 第七条至第九条 gives its two ends
    同法第五条                the law cited before; 本法第五条 names no law that is known here
    第三条                    a citation without a law
    根据刑法第三十条           a name that nothing marks, cut where a name may begin
    第二十八条 安全生产法       the article before its law

The whole grammar works on folded text of the same length, so spans are spans of the text given.
Quantifiers are bounded and what follows them is disjoint: time is linear in the text, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cg_rag.index.law_names import (
    BOOK,
    CODE,
    COMMENTARY,
    edition_before,
    find_unknown_name,
    read_code,
    read_parenthesis,
)
from cg_rag.index.numerals import CHINESE_DIGITS, fold


@dataclass(frozen=True, slots=True)
class Citation:
    """One law, or one article of a law, named in a text; `raw` is text[start:end].

    `law_name` is as written, without the outer 《》, with 条文说明 or （试行） that stands behind it; None
    when only a code is given. `code` is in normal form without the edition ("GB/T50720"), `year` is the
    edition. The other three are as written: 第二十八条, 6.0.5(1), 附录A; 第一款; 第（一）项, a）.
    """

    raw: str
    start: int
    end: int
    law_name: str | None = None
    code: str | None = None
    year: str | None = None
    article_number: str | None = None
    paragraph: str | None = None
    item: str | None = None


class NameFinder(Protocol):
    """Knows names that may stand without 《》."""

    def find(self, folded: str) -> Sequence[tuple[int, int]]:
        """Spans of names in a text, ascending and disjoint."""

    def match(self, folded: str, pos: int) -> int | None:
        """End of the longest name that starts at `pos`, if one does."""

    def stands_alone(self, folded: str, start: int, end: int) -> bool:
        """Whether this name is one even where no article and no code follows it."""


_SP = " {0,3}"
_N = rf"(?:[0-9]{{1,4}}|[{CHINESE_DIGITS}]{{1,12}})"
_SHORT = rf"(?:[0-9]{{1,2}}|[{CHINESE_DIGITS}]{{1,3}})"
_ZHI = rf"(?:之(?!一般){_N})?"
_DOT = r"(?:[A-Z]\.|[0-9]{1,3}\.)[0-9]{1,3}(?:\.[0-9]{1,3}){0,3}"
_ONE = rf"(?:{_DOT}|{_N}{_ZHI})"
_POINT = rf"(?:{_SP}\({_SP}{_SHORT}{_SP}\))"
_AND = rf"{_SP}(?:以及|[、,和及与或至到~-]){_SP}"
_DI = rf"第{_SP}{_ONE}{_POINT}?{_SP}条{_ZHI}"
_DI_LIST = rf"第{_SP}{_ONE}(?:{_AND}{_ONE}){{1,20}}{_SP}条"
# A bare 3.5 may be a length or a load: it is an article only where no unit follows.
_NO_UNIT = (
    r"(?!\.?[0-9])(?![A-Z%℃‰°×*])(?! ?(?:[米毫厘公吨倍万元度级个年月日%]|(?:M|MM|CM|KM|KN|KG|MPA|T)\b))"
)
_BARE_DOT = rf"{_DOT}(?:{_POINT}{_SP}条?|{_SP}条|{_NO_UNIT})"
_SECTION = rf"§{_SP}(?:{_DOT}{_POINT}?|{_N}){_SP}条?"
_APPENDIX = rf"附录{_SP}(?:[A-Z](?![A-Z])(?:\.?[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{0,3}})?|{_N})"
_SUB = (
    rf"(?P<paragraph>{_SP}第{_SP}(?:{_N}(?:[、和及至]{_N}){{0,5}}|\({_SP}{_SHORT}{_SP}\)){_SP}款)?"
    rf"(?P<item>{_SP}(?:第?{_SP}\({_SP}{_SHORT}{_SP}\)(?:[、和及至]\({_SHORT}\)){{0,8}}{_SP}项"
    rf"|第{_SP}{_N}(?:[、和及至]{_N}){{0,8}}{_SP}项|{_POINT}|[㈠-㈩⑴-⒇]|:?{_SP}\(?[A-Z]\)))?"
    rf"(?:{_SP}第{_SP}{_N}{_SP}目)?"
)
_PART = rf"第{_SP}{_N}{_SP}(?:分编|编|章|节)[ ,、]?[的中里]?"
_TO_ARTICLE = (
    r"[ *\"”」』]{0,4}(?:里面|里边|当中|之中|[中里](?![华国]))?所?(?:(?<!标准)(?<!规定)规定)?[的之:·]?"
    rf"(?:关于[^第《》,.;:?!。\n]{{1,20}}的)?{_SP}(?:{_PART}){{0,3}}"
    rf"(?:,(?={_SP}(?:第|附录|[0-9]{{1,3}}\.[0-9]{{1,3}}(?:\.[0-9]|\())))?{_SP}"
)
# 八条 without 第: not 八条红线, and not 一条 (安全生产法一条都没落实).
_TIAO = rf"(?:[0-9]{{1,4}}|[{CHINESE_DIGITS}]{{2,12}}|[二三四五六七八九十](?= ?条(?![红底铁禁硬措建意要基具]))){_SP}条{_ZHI}"
_AFTER_LAW = re.compile(
    rf"{_TO_ARTICLE}(?P<open>[(\[【]{_SP})?(?:(?P<row>{_DI_LIST}|{_N}(?:{_AND}{_N}){{1,20}}{_SP}条)"
    rf"|(?P<one>(?:附录{_SP}[A-Z]{_SP})?{_DI}|{_SECTION}|{_BARE_DOT}|{_TIAO}|{_APPENDIX}|附件{_SP}{_N}|条目{_SP}{_N}))"
    rf"{_SUB}(?(open)(?:{_SP}[)\]】])?)"
)
# （一） of a law whose articles have no other number.
_BRACKETED = re.compile(
    rf"{_SP}(?P<one>\({_SP}{_SHORT}{_SP}\))(?P<row>(?!))?(?P<paragraph>(?!))?(?P<item>(?!))?"
)
_REVERSED = re.compile(
    r"(?<![A-Z0-9.第/~-])(?P<number>(?:[A-Z]\.|[0-9]{1,3}\.[0-9]{1,3}\.)[0-9]{1,3}(?:\.[0-9]{1,3}){0,2}"
    rf"{_POINT}?|附录[A-Z](?:\.[0-9]{{1,3}}){{0,3}}) {{0,3}}$"
)
_PHRASE_END = re.compile(r" {0,3}(?:$|[,.;:?!。，；：？！、)\n]|是|怎|讲|说|规定|的?(?:内容|原文|全文))")
_NUMBER_ALONE = re.compile(
    rf"(?<![A-Z0-9./~-])(?<![表图式版V])(?<!版本)(?:第{_SP})?(?P<number>[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{2,4}}{_POINT}?"
    rf"|[0-9]{{1,3}}\.[0-9]{{1,3}}{_POINT}|(?<=第)[0-9]{{1,3}}\.[0-9]{{1,3}}(?={_SP}条)|[A-Z](?:\.[0-9]{{1,3}}){{2,3}}{_POINT}?"
    rf"|附录{_SP}[A-Z](?![A-Z])(?:\.[0-9]{{1,3}}){{0,3}}{_POINT}?)"
    rf"(?![0-9]|\.[0-9]|[~-] ?[0-9]|版)(?:(?={_SP}条)|{_NO_UNIT})"
)
_ONLY_NUMBER = re.compile(r"[ 第]{0,3}(?P<number>[0-9]{1,3}\.[0-9]{1,3}) ?条?[ ?？。]{0,3}")
_BARE = re.compile(rf"(?:(?P<row>{_DI_LIST})|(?P<one>{_DI}|{_SECTION}))" + _SUB)
# Behind a comma a bare 3.5 begins a new statement more often than a new article.
_NEXT = re.compile(
    rf"(?:{_AND}(?:(?P<row>{_DI_LIST})|(?P<one>{_DI}|{_APPENDIX}))|(?!{_SP},){_AND}(?P<dotted>{_BARE_DOT}))"
    + _SUB
)
_NEXT_SUB = re.compile(rf"{_AND}(?=第?{_SP}(?:{_N}|\({_SHORT}\)){_SP}[款项]){_SUB}")
_IN_ROW = re.compile(_ONE)
_MAY_CONTINUE = frozenset(" 以、,和及与或至到~-")
_KIND = "(?:法|条例|规定|办法|规范|标准|规程|细则|规则|导则|决定|解释)"
_ANCHOR = re.compile(
    rf"(?P<book>《(?=《?[^《》\n]))"
    # 合同法, 应该, 基本法, 成本 end alike.
    rf"|(?P<same>(?:(?<![合共相不会连雷])同|(?<!应)该|上述|前述){_KIND}(?={_TO_ARTICLE}[第§]))"
    rf"|(?P<self>(?<![基根样成资日版文书标])本{_KIND}(?={_TO_ARTICLE}[第§]))"
    rf"|(?P<bare>第(?={_SP}[0-9A-Z{CHINESE_DIGITS}])|§)|{CODE.pattern}"
)
_TAIL = re.compile(
    r"[ *\"”]{0,4}(?:\((?P<parenthesis>[^()\n]{1,80}+)\)"
    rf"|(?P<commentary>[及其的]{{0,2}}{COMMENTARY})|{CODE.pattern})"
)
# A title behind its code, without 《》 and unknown to the corpus; only taken when an article follows it.
_LOOSE_TITLE = re.compile(
    r"[_ ]?(?![的中第对等和及与之规])[\u4e00-\u9fff、]{2,40}?"
    r"(?:规范|标准|规程|规定|通则|导则|条例|办法|细则|要点|手册|指南)"
    rf"(?=(?:\([^()\n]{{1,20}}\))?{_SP}(?:第{_SP}[0-9A-Z{CHINESE_DIGITS}]|[0-9]{{1,3}}\.[0-9]|§|附录))"
)


def scan(text: str, names: NameFinder | None) -> list[Citation]:
    """Every citation in `text`: spans ascending and disjoint. Never raises.

    `names` knows the names that may stand without 《》; None: none.
    """
    scanner = _Scanner(text, names)
    return _turn_round(scanner.folded, text, scanner.citations())


def scan_numbers(text: str) -> list[str]:
    """Numbers of articles in a text that names no law: 3.0.1(2), A.0.1, 附录A; 9.2 where it is all of the text.

    No repetitions. A length (3.5米), a date or 表3.0.1 is none.
    """
    folded = fold(text)
    if only := _ONLY_NUMBER.fullmatch(folded):
        return [only["number"]]
    return list(dict.fromkeys(match["number"] for match in _NUMBER_ALONE.finditer(folded)))


def _turn_round(folded: str, text: str, citations: Iterable[Citation]) -> list[Citation]:
    """Join an article and the law right behind it: 第二十八条 安全生产法, 6.0.5 GB55023."""
    done: list[Citation] = []
    for citation in citations:
        if citation.article_number is None and _PHRASE_END.match(folded, citation.end):
            low = done[-1].end if done else 0
            window = max(low, citation.start - 24)
            if done and _is_bare(done[-1]) and not folded[low : citation.start].strip(" "):
                before = done.pop()
                start, number = before.start, before.article_number
                citation = replace(citation, paragraph=before.paragraph, item=before.item)
            elif match := _REVERSED.search(folded, window, citation.start):
                start, number = match.start(), text[match.start("number") : match.end("number")]
            else:
                start, number = citation.start, None
            raw = text[start : citation.end]
            citation = replace(citation, raw=raw, start=start, article_number=number)
        done.append(citation)
    return done


def _is_bare(citation: Citation) -> bool:
    return citation.law_name is None and citation.code is None and citation.raw[0] in "第§"


@dataclass(slots=True)
class _Named:
    """The law being read: where it starts and ends, and its parts so far."""

    start: int
    end: int
    law_name: str | None = None
    code: str | None = None
    year: str | None = None


class _Scanner:
    def __init__(self, text: str, names: NameFinder | None) -> None:
        self.text = text
        self.folded = fold(text)
        self.names = names
        self.last_law: _Named | None = None
        self.read_to = 0

    def citations(self) -> Iterator[Citation]:
        pos = 0
        anchor = _ANCHOR.search(self.folded)
        spans = list(self.names.find(self.folded)) if self.names else []
        spans.reverse()
        while anchor or spans:
            if spans and (anchor is None or spans[-1][0] <= anchor.start()):
                start, end = spans.pop()
                found = self._read_spoken(start, end)
                pos = start
            elif anchor:
                found = self._read_anchor(anchor)
                pos = anchor.start() + 1
            yield from found
            if found:
                pos = self.read_to = found[-1].end
            while spans and spans[-1][0] < pos:
                spans.pop()
            if anchor and anchor.start() < pos:
                anchor = _ANCHOR.search(self.folded, pos)

    def _read_spoken(self, start: int, end: int) -> list[Citation]:
        """A name without 《》; nothing when it may be a common noun (高处作业吊篮) and no article follows."""
        last_law = self.last_law
        law = _Named(start, end, self.text[start:end], year=edition_before(self.folded, start))
        found = self._read_law(law)
        certain = found[0].article_number or found[0].code
        if certain or (self.names and self.names.stands_alone(self.folded, start, end)):
            return found
        self.last_law = last_law
        return []

    def _read_anchor(self, anchor: re.Match[str]) -> list[Citation]:
        start, end = anchor.span()
        if anchor["book"]:
            match = BOOK.match(self.folded, start)
            return self._read_law(self._from_book(match)) if match else []
        if anchor["bare"]:
            match = _BARE.match(self.folded, start)
            return self._read_row(self._unknown_law(start), match) if match else []
        if anchor["self"]:
            self.last_law = None
        if anchor["same"] or anchor["self"]:
            law = replace(self.last_law, start=start, end=end) if self.last_law else _Named(start, end)
            match = _AFTER_LAW.match(self.folded, end)
            return self._read_row(law, match) if match else []
        return self._read_law(self._from_code(anchor))

    def _unknown_law(self, stop: int) -> _Named:
        """The law that the words before an article at `stop` name, if they do."""
        span = find_unknown_name(self.folded, self.read_to, stop)
        if span is None:
            return _Named(stop, stop)
        start, end = span
        self.last_law = _Named(start, end, self.text[start:end], year=edition_before(self.folded, start))
        return self.last_law

    def _from_book(self, match: re.Match[str]) -> _Named:
        law = _Named(match.start(), match.end(), self.text[match.start(1) : match.end(1)])
        if code := CODE.search(self.folded, match.start(1), match.end(1)):
            found = read_code(code)
            law.code, law.year = found.code, found.year
            rest = self.folded[match.start(1) : code.start()] + self.folded[code.end() : match.end(1)]
            if not rest.strip(" -_()"):
                law.law_name = None
        return law

    def _from_code(self, match: re.Match[str]) -> _Named:
        found = read_code(match)
        law = _Named(found.start, found.end, None, found.code, found.year)
        pos = found.end
        while pos < len(self.folded) and self.folded[pos] in " *_":
            pos += 1
        if book := BOOK.match(self.folded, pos):
            law.law_name, law.end = self.text[book.start(1) : book.end(1)], book.end()
        elif self.names and (end := self.names.match(self.folded, pos)):
            law.law_name, law.end = self.text[pos:end], end
        elif loose := _LOOSE_TITLE.match(self.folded, found.end):
            law.law_name, law.end = self.text[loose.start() : loose.end()].lstrip(" _　"), loose.end()
        return law

    def _read_law(self, law: _Named) -> list[Citation]:
        """The law at `law`, what belongs to its name, and its articles."""
        for _ in range(5):
            match = _TAIL.match(self.folded, law.end)
            if match is None or not self._take_tail(law, match):
                break
            law.end = match.end()
        self.last_law = law
        if match := _AFTER_LAW.match(self.folded, law.end):
            return self._read_row(law, match)
        if self.folded[law.end - 1] == "》" and (match := _BRACKETED.match(self.folded, law.end)):
            return self._read_row(law, match)
        return [self._cite(law, law.start, law.end)]

    def _take_tail(self, law: _Named, match: re.Match[str]) -> bool:
        if match["parenthesis"] is None:
            if match["commentary"]:
                self._append(law, f" {COMMENTARY}")
                return True
            # "《A》 GB 1《B》": the code belongs to the name behind it.
            if match[0].startswith(" ") and BOOK.match(self.folded, match.end()):
                return False
            found = read_code(match)
            return self._take_code(law, found.code, found.year)
        inner = read_parenthesis(match["parenthesis"])
        if inner is None:
            return False
        if inner.code:
            return self._take_code(law, inner.code.code, inner.code.year)
        if inner.commentary:
            self._append(law, f" {COMMENTARY}")
        if inner.qualifier:
            if inner.qualifier[0] in CHINESE_DIGITS and not _AFTER_LAW.match(self.folded, match.end()):
                return False
            self._append(law, f"（{inner.qualifier}）")
        law.year = law.year or inner.year
        return True

    def _take_code(self, law: _Named, code: str, year: str | None) -> bool:
        if law.code and law.code != code:
            return False
        law.code, law.year = code, year or law.year
        return True

    def _append(self, law: _Named, suffix: str) -> None:
        law.law_name = f"{law.law_name or self.text[law.start : law.end]}{suffix}"

    def _read_row(self, law: _Named, match: re.Match[str]) -> list[Citation]:
        """The article of `match`, then those that a comma, 和, 至 … adds to it."""
        found = self._cite_articles(law, law.start, match)
        while True:
            pos = found[-1].end
            if self.folded[pos : pos + 1] not in _MAY_CONTINUE:
                return found
            if following := _NEXT.match(self.folded, pos):
                start = max(following.start(group) for group in ("row", "one", "dotted"))
                found += self._cite_articles(law, start, following)
            elif (following := _NEXT_SUB.match(self.folded, pos)) and (
                starts := [s for s in (following.start("paragraph"), following.start("item")) if s >= 0]
            ):
                start = min(starts)
                paragraph, item = self._slice(following, "paragraph"), self._slice(following, "item")
                paragraph = paragraph or found[-1].paragraph
                number = found[-1].article_number
                found.append(self._cite(law, start, following.end(), number, paragraph, item))
            else:
                return found

    def _cite_articles(self, law: _Named, start: int, match: re.Match[str]) -> list[Citation]:
        paragraph, item = self._slice(match, "paragraph"), self._slice(match, "item")
        if match["row"] is None:
            number = self._slice(match, "dotted" if match.re is _NEXT and match["dotted"] else "one")
            return [self._cite(law, start, match.end(), number, paragraph, item)]
        numbers = list(_IN_ROW.finditer(self.folded, match.start("row"), match.end("row")))
        starts = [match.start("row"), *(number.start() for number in numbers[1:])]
        ends = [*(number.end() for number in numbers[:-1]), match.end("row")]
        found: list[Citation] = []
        for begin, end in zip(starts, ends, strict=True):
            found.append(self._cite(law, start if not found else begin, end, self.text[begin:end]))
        found[-1] = replace(
            found[-1],
            raw=self.text[found[-1].start : match.end()],
            end=match.end(),
            paragraph=paragraph,
            item=item,
        )
        return found

    def _slice(self, match: re.Match[str], group: str) -> str | None:
        start, end = match.span(group)
        return self.text[start:end].strip(" :：\t\u3000") if start >= 0 else None

    def _cite(
        self,
        law: _Named,
        start: int,
        end: int,
        number: str | None = None,
        paragraph: str | None = None,
        item: str | None = None,
    ) -> Citation:
        raw = self.text[start:end]
        return Citation(raw, start, end, law.law_name, law.code, law.year, number, paragraph, item)

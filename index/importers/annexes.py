"""Annexes that stand glued to the last article of a law, and texts that are too long for one article.

Rule: a table behind a law is not the law's last article. Cited as that article it would be a citation that does not
exist, so it becomes an article of its own, under its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

from cg_rag.index.corpus import Article
from cg_rag.index.importers.input_file import ImportLog
from cg_rag.index.importers.record import MAX_CONTENTS_CHARS, RecordInvalid, check_length

# Longer than any article of national law that has no annex glued to it: such a record is cut wherever it stands.
LONG_ARTICLE_CHARS = 3000

_NUMERAL = "[0-9０-９一二三四五六七八九十百]"
# A line that is nothing but the name of an annex, or its name, a colon and a title. A sentence that begins
# with 附件三所列… is neither.
_ANNEX_LINE = re.compile(
    rf"^[ \t\u3000]*(?P<name>附(?:件|表|录|图)(?:{_NUMERAL}{{1,3}}|[A-ZＡ-Ｚ])?|附)[ \t\u3000]*"
    rf"(?:[：:][ \t\u3000]*(?P<title>.*))?$",
    re.MULTILINE,
)


def split_annexes(contents: str) -> list[tuple[str, str]]:
    """Cut off the annexes that stand glued to a law's last article.

    Returns [("", the article's own text), (annex name, annex text), …].
    """
    starts = list(_ANNEX_LINE.finditer(contents))
    if not starts or not contents[: starts[0].start()].strip():
        return [("", contents)]
    parts = [("", contents[: starts[0].start()])]
    ends = [match.start() for match in starts[1:]] + [len(contents)]
    for match, end in zip(starts, ends, strict=True):
        name = "附件" if match["name"] == "附" else match["name"]
        parts.append((name, f"{match['title'] or ''}{contents[match.end() : end]}".strip() or match[0]))
    return parts


def cut_records(records: Iterable[tuple[str, Article]], log: ImportLog) -> Iterator[Article]:
    """Articles from (place, article of any length), annexes cut off where they are glued on.

    Only the last article of a law has annexes glued to it, or one that is far too long; elsewhere such a line belongs
    to the article. What cannot be brought below MAX_CONTENTS_CHARS is rejected.
    """
    end: Iterable[tuple[str, Article] | None] = (None,)
    for current, following in pairwise(chain(records, end)):
        assert current is not None
        place, article = current
        last = following is None or following[1].law_name != article.law_name
        try:
            parts = fit_article(article, last)
        except RecordInvalid as error:
            log.reject(place, str(error))
            continue
        if len(parts) > 1:
            names = "、".join(part.article_number or "无条号的一段" for part in parts[1:])
            log.warn(place, f"“{article.article_number}”之后的内容另成条文：{names}"[:300])
        yield from parts


def fit_article(article: Article, last: bool = False) -> list[Article]:
    """The article, and behind it the annexes that it does not own; each within MAX_CONTENTS_CHARS.

    Raises RecordInvalid for an article that is too long without being an annex.
    """
    if not last and len(article.contents) <= LONG_ARTICLE_CHARS:
        return [article]
    parts = split_annexes(article.contents)
    own = replace(article, contents=parts[0][1].rstrip())
    if not _is_annex(own.article_number):
        check_length("contents", own.contents, MAX_CONTENTS_CHARS)
    fitted = list(_fit_parts(own))
    for name, contents in parts[1:]:
        extra = {key: value for key, value in article.extra.items() if key != "chapter"}
        if isinstance(extra.get("doc_id"), str):
            extra["doc_id"] = f"{extra['doc_id']}-{name}"
        fitted += _fit_parts(Article(article.law_name, name, contents, extra, article.tags))
    return fitted


def _is_annex(number: str) -> bool:
    """Text without a number of its own, or under the name of an annex: a part of it may stand for itself."""
    return not number or number.startswith("附")


def _fit_parts(article: Article) -> Iterator[Article]:
    """The article in parts that are not too long, cut at the ends of lines where there are any."""
    rest, count = article.contents, 0
    while len(rest) > MAX_CONTENTS_CHARS:
        cut = rest.rfind("\n", MAX_CONTENTS_CHARS // 2, MAX_CONTENTS_CHARS)
        cut = cut if cut > 0 else MAX_CONTENTS_CHARS
        yield _part(article, rest[:cut], count)
        rest, count = rest[cut:], count + 1
    yield _part(article, rest, count)


def _part(article: Article, contents: str, count: int) -> Article:
    number = (
        f"{article.article_number}（续{count}）"
        if count and article.article_number
        else article.article_number
    )
    return replace(article, article_number=number, contents=contents.strip())

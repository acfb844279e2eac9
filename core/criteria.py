"""The list of clauses that make a hazard a major one: which clauses a file holds, and whether a text names one. No I/O.

Rule: a level of 重大事故隐患 stands on a clause of this list, named with the list's name and the clause's number. The
list is a text that a site may replace; its clauses are read from the lines that begin with 第N条 and （N）.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

# The words behind a clause that was not compared with the official text (prompts/vision/criteria_2024.txt).
UNVERIFIED: Final = "（未核对原文）"

_N: Final = "[0-9〇零一二两三四五六七八九十百]{1,5}"
_LEAD: Final = r"[ \t\u3000>#*-]*"
_TITLE: Final = re.compile(
    r"《([^《》\n]{2,80})》|^[ \t\u3000#*]*([^\s《》，。：:]{4,60}标准(?:（[^（）\n]{1,20}）)?)"
)
_ARTICLE: Final = re.compile(rf"^{_LEAD}第[ \u3000]?({_N})[ \u3000]?条[ \t\u3000:：*]*(.*)$")
_ITEM: Final = re.compile(
    rf"^{_LEAD}(?:第[ \u3000]?)?[（(][ \u3000]?({_N})[ \u3000]?[)）][ \u3000]?项?[ \t\u3000:：、.]*(.*)$"
)
_DOTTED: Final = re.compile(
    rf"^{_LEAD}(?:第[ \u3000]?)?(\d{{1,2}})\.(\d{{1,2}})(?![.\d])[ \u3000]?条?[ \t\u3000:：、]*(.*)$"
)
# A long name is also said by its end: 重大事故隐患判定标准, 判定标准（2024版）.
_ENDS: Final = (
    "生产安全重大事故隐患判定标准",
    "重大事故隐患判定标准",
    "重大隐患判定标准",
    "事故隐患判定标准",
    "判定标准",
)


@dataclass(frozen=True, slots=True)
class Clause:
    """`number` is as the file writes it (第七条, 第七条（一）, 15.1), `is_article` says that it is no item of one."""

    number: str
    contents: str
    is_article: bool
    is_verified: bool


@dataclass(frozen=True, slots=True)
class Criteria:
    """`name` is the list's full name, `text` goes behind a system prompt, `sha256` is of its bytes."""

    name: str
    clauses: tuple[Clause, ...]
    text: str
    sha256: str

    @property
    def num_unverified(self) -> int:
        return sum(not clause.is_verified for clause in self.clauses)

    def names(self) -> list[str]:
        """The full name and what it is called for short, each with the edition."""
        edition = re.search(r"[（(][^（）()]*[)）]$", self.name)
        suffix = edition[0] if edition else ""
        title = self.name.removesuffix(suffix)
        ends = [end for end in _ENDS if title.endswith("判定标准") and end != title]
        middle = [title.replace("生产安全", "")] if "生产安全" in title else []
        return [f"{word}{suffix}" for word in dict.fromkeys((title, *middle, *ends))]

    def articles(self) -> list[tuple[str, str]]:
        """(law_name, article_number) of every clause under every name and every way to write its position.

        In this list 第N款, 第（N）项, （N） and N.M are the same position (contract 7).
        """
        numbers = [number for clause in self.clauses for number in _spellings(clause.number)]
        return [(name, number) for name in self.names() for number in dict.fromkeys(numbers)]


def _spellings(number: str) -> list[str]:
    if match := re.fullmatch(rf"第({_N})条（({_N})）", number):
        return [number, f"第{match[1]}条第{match[2]}款", f"{match[1]}.{match[2]}"]
    if match := re.fullmatch(r"(\d+)\.(\d+)", number):
        return [number, f"第{match[1]}条（{match[2]}）", f"第{match[1]}条第{match[2]}款"]
    return [number]


def parse_criteria(data: bytes) -> Criteria:
    """Read a clause list (UTF-8, BOM tolerated). Raises ValueError with a Chinese reason when it is no text, has no
    name or no clause."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError("判定标准文件不是 UTF-8 文本。") from error
    lines = text.split("\n")
    name = next((match[1] or match[2] for line in lines if (match := _TITLE.search(line))), "")
    if not name:
        raise ValueError(
            "判定标准文件里没有标准名称，请在开头写明，如《房屋市政工程生产安全重大事故隐患判定标准（2024版）》。"
        )
    clauses = _read_clauses(lines)
    if not clauses:
        raise ValueError("判定标准文件里没有条款，条款须以“第N条”或“（N）”开头，各占一行。")
    return Criteria(name, tuple(clauses), text, hashlib.sha256(text.encode("utf-8")).hexdigest())


def _read_clauses(lines: Sequence[str]) -> list[Clause]:
    clauses: list[Clause] = []
    article: Clause | None = None
    has_items = False

    def close() -> None:
        if article and not has_items:
            clauses.append(article)

    for line in lines:
        verified = UNVERIFIED not in line
        if match := _ARTICLE.match(line):
            close()
            article, has_items = Clause(f"第{match[1]}条", match[2].strip(), True, verified), False
        elif (match := _ITEM.match(line)) and article:
            has_items = True
            clauses.append(Clause(f"{article.number}（{match[1]}）", match[2].strip(), False, verified))
        elif match := _DOTTED.match(line):
            clauses.append(Clause(f"{match[1]}.{match[2]}", match[3].strip(), False, verified))
    close()
    return clauses


class Found(Protocol):
    """A law or an article named in a text, looked up in a list of articles (index/evidence.py).

    `rows` are the places in that list of the articles that it names, empty when it names none of them; `law_rows`
    those of every article of the law that it names.
    """

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def raw(self) -> str: ...

    @property
    def names_article(self) -> bool: ...

    @property
    def names_law(self) -> bool: ...

    @property
    def rows(self) -> Sequence[int]: ...

    @property
    def law_rows(self) -> Sequence[int]: ...


# What `make_finder` gives: the laws and articles that a text names, looked up in the articles that it was made from.
Finder = Callable[[str], Sequence[Found]]


def names_clause(text: str, find: Finder) -> bool:
    """Whether `text` names a clause of the list; `find` was made from `Criteria.articles()`."""
    return any(found.names_law and found.names_article and found.rows for found in find(text))

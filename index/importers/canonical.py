"""The canonical Markdown of a parsed law: what people can read and correct, and a program reads back without judging.

    <!-- 法规正文 1 -->
    # 样例条例

    时效性：现行有效
    施行日期：2022-10-01

    ## 第一章 总则

    ### 第一条

    为了…

Only the lines that begin with # are structure. A line of text that begins with # or \\ has a \\ before it, as Markdown
has it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cg_rag.index.corpus import Article
from cg_rag.index.importers.law_head import code_of
from cg_rag.index.importers.law_lines import Left, Line, ParsedLaw, build_article

MARK = "<!-- 法规正文 1 -->"
_NO_NUMBER = "（无编号）"
_FIELDS = {"时效性": "status", "施行日期": "effective_date"}


def is_canonical(lines: Sequence[Line]) -> bool:
    return bool(lines) and lines[0].text.strip() == MARK


def write_law(law: ParsedLaw) -> str:
    """Canonical Markdown of the articles, with \\n at the end of each line."""
    return "".join(f"{line}\n" for line in _write(law))


def read_canonical(lines: Sequence[Line]) -> ParsedLaw:
    """The articles that `write_law` was given, with their lines in this text. Text before the first number is `Left`."""
    reader = _CanonicalReader(lines[0])
    for line in lines[1:]:
        reader.read(line)
    reader.close()
    return ParsedLaw(reader.first_name, tuple(reader.articles), tuple(reader.left), ())


def _write(law: ParsedLaw) -> Iterator[str]:
    yield MARK
    name, chapter = law.law_name, ""
    yield from _write_head(
        name, next((article for article in law.articles if article.law_name == name), None)
    )
    for article in law.articles:
        if article.law_name != name:
            name, chapter = article.law_name, ""
            yield from _write_head(name, article)
        if (own := article.extra.get("chapter", "")) != chapter:
            chapter = own
            yield from ("", f"## {chapter}".strip())
        yield from ("", f"### {article.article_number or _NO_NUMBER}", "")
        yield from (
            f"\\{text}" if text.startswith(("#", "\\")) else text for text in article.contents.split("\n")
        )


def _write_head(name: str, article: Article | None) -> Iterator[str]:
    yield from (f"# {name}", "")
    extra = article.extra if article else {}
    yield from (f"{label}：{extra[key]}" for label, key in _FIELDS.items() if extra.get(key))


class _CanonicalReader:
    def __init__(self, first: Line) -> None:
        self.articles: list[Article] = []
        self.left: list[Left] = [Left(first.number, first.text, "注释")]
        self.names: list[str] = []
        self.about: dict[str, str] = {}
        self.number: str | None = None
        self.texts: list[Line] = []
        self.section = 0

    @property
    def first_name(self) -> str:
        return self.names[0] if self.names else ""

    def read(self, line: Line) -> None:
        level, _, rest = line.text.partition(" ")
        if level in ("#", "##", "###"):
            self.close()
            self._turn(level, rest.strip())
            if level != "###":
                self.left.append(Left(line.number, line.text, "标题" if level == "#" else "章节标题"))
        elif line.text.strip():
            self._add(line)

    def close(self) -> None:
        if self.number is not None and self.texts:
            contents = "\n".join(line.text.removeprefix("\\") for line in self.texts)
            number = "" if self.number == _NO_NUMBER else self.number
            about = self.about | {"code": code_of(self.names[-1] if self.names else "")}
            section = self.section + 1
            article = build_article(
                self.names[-1] if self.names else "", number, contents, self.texts[0].number, section, about
            )
            self.section += "section" in article.extra
            self.articles.append(article)
        self.number, self.texts = None, []

    def _turn(self, level: str, rest: str) -> None:
        if level == "#":
            self.names.append(rest)
            self.about = {}
        elif level == "##":
            self.about["chapter"] = rest
        else:
            self.number = rest

    def _add(self, line: Line) -> None:
        label, _, value = line.text.partition("：")
        if self.number is not None:
            self.texts.append(line)
        elif label in _FIELDS and value and "chapter" not in self.about:
            self.about[_FIELDS[label]] = value.strip()
            self.left.append(Left(line.number, line.text, "文首信息"))
        else:
            self.left.append(Left(line.number, line.text, "首条之前的正文"))

"""An article as the text that a model is given: filled into a template, control tokens broken up."""

from __future__ import annotations

import re
from collections.abc import Callable

from cg_rag.index.corpus import Article
from cg_rag.index.model_folder import Template

ARTICLE_NAMES = ("law_name", "short_law_name", "article_number", "contents")
STATE_PREFIX = "中华人民共和国"  # 12 of the 20 tokens of a law's name, the same for every statute

# What common chat and embedding models take for control; broken by a blank after its first character.
_CONTROL = re.compile(r"<\|[^|<>]{1,40}\|>|</?s>|\[(?:CLS|SEP|MASK|PAD|UNK)\]")
_BRACKETS = re.compile("[《》]")
_SPACE = re.compile(r"\s+")


def break_control_tokens(text: str) -> str:
    """For servers: they tokenise these as control tokens, and what an article or a question says must stay text."""
    return _CONTROL.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def fill_article(
    template: Template, article: Article, clean: Callable[[str], str], compact: bool = False
) -> str:
    """`template` with the names of ARTICLE_NAMES filled in; `clean` breaks up control tokens of the model at hand.
    `compact` leaves out 《》 in the law's name and all white space in the contents.
    """
    law = clean(_BRACKETS.sub("", article.law_name) if compact else article.law_name)
    values = {
        "law_name": law,
        "short_law_name": law.removeprefix(STATE_PREFIX) or law,
        "article_number": clean(article.article_number),
        # Before control tokens are broken up by a blank, not after it.
        "contents": clean(_SPACE.sub("", article.contents) if compact else article.contents),
    }
    rendered = template.render(values)
    # A token may also form where two fields meet: law name `…<`, number `s>…`.
    joined = values["law_name"] + values["article_number"] + values["contents"]
    if clean(joined) != joined:
        rendered = template.render({name: f"{value} " for name, value in values.items()})
    return rendered

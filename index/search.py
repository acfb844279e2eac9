"""`cg-rag search "…"`: ask the index from the command line, without a server."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap

from cg_rag.index.corpus import Article
from cg_rag.index.errors import IndexLibraryError, ScopeUnknown
from cg_rag.index.library import IndexLibrary
from cg_rag.index.ranking import Hit
from cg_rag.index.retriever import SearchResult
from cg_rag.index.validity import describe_validity, is_in_force

# The limits of the HTTP interface (core/requests.py), which the library does not import.
MAX_QUERY_CHARACTERS = 2000
MAX_TOPK = 200
_SHOWN_CHARACTERS = 240
_STAGES = {"lexical": "字面得分", "dense": "余弦", "rerank": "重排得分"}


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="问题", help="检索问题")
    parser.add_argument("--scope", metavar="范围", help="检索范围，缺省为 active_scope")
    parser.add_argument("--topk", metavar="N", type=int, default=5, help="返回条文数上限（1..200，缺省 5）")
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def run_search(args: argparse.Namespace, library: IndexLibrary, active_scope: str) -> int:
    """Prints the articles; returns 0, 1 when the index cannot be asked, 2 for wrong arguments."""
    query = args.query.strip()
    if not 1 <= len(query) <= MAX_QUERY_CHARACTERS:
        print(f"问题须为 1..{MAX_QUERY_CHARACTERS} 个字符，收到 {len(query)} 个。", file=sys.stderr)
        return 2
    if not 1 <= args.topk <= MAX_TOPK:
        print(f"--topk 须为 1..{MAX_TOPK} 的整数，收到 {args.topk}。", file=sys.stderr)
        return 2
    scope = args.scope or active_scope
    library.refresh()
    try:
        state = library.snapshot.get_scope(scope)
        retriever = library.snapshot.retriever
        if state.fault or retriever is None:
            print(library.explain(scope), file=sys.stderr)
            return 1
        result = retriever.search(query, scope, args.topk)
    except ScopeUnknown as error:
        print(str(error), file=sys.stderr)
        return 2
    except IndexLibraryError as error:
        print(str(error), file=sys.stderr)
        return 1
    print(_as_json(result) if args.json else _as_text(result))
    return 0


def _as_json(result: SearchResult) -> str:
    documents = [
        {
            **article.extra,
            "law_name": article.law_name,
            "article_number": article.article_number,
            "contents": article.contents,
            "score": round(hit.score, 6),
        }
        for hit, article in zip(result.hits, result.articles, strict=True)
    ]
    body = {"query": result.query, "retrieval_docs": documents, "warnings": result.warnings}
    return json.dumps(body, ensure_ascii=False, indent=2)


def _as_text(result: SearchResult) -> str:
    blocks = [f"注意：{warning}" for warning in result.warnings]
    if not result.hits:
        return "\n".join([*blocks, "没有找到相关条文。"])
    for place, (hit, article) in enumerate(zip(result.hits, result.articles, strict=True), 1):
        contents = textwrap.shorten(" ".join(article.contents.split()), _SHOWN_CHARACTERS, placeholder=" …")
        head = f"{place}. {article.law_name} {article.article_number}{_standing(article)}　{_score(hit)}"
        blocks.append(f"{head}\n   {contents}")
    return "\n".join(blocks)


def _standing(article: Article) -> str:
    """What the source says of the law; a date to come where that is all there is."""
    status = article.extra.get("status")
    told = "" if is_in_force(article.extra) else describe_validity(article.extra)
    if status and str(status) not in told:  # 现行有效, and a day that is still to come
        told = f"{status}，{told}" if told else str(status)
    return f"（{told}）" if told else ""


def _score(hit: Hit) -> str:
    """The score that orders the list. Of a lone candidate, and of several alike, there is none: its distance from the
    mean is 0 whatever it is worth, so what went in is shown."""
    stages = [f"{word} {hit.stages[name]:.3f}" for name, word in _STAGES.items() if name in hit.stages]
    if round(hit.score, 3) == 0 and "fused" in hit.stages and stages:
        return "、".join(stages)
    return f"得分 {hit.score:.3f}"

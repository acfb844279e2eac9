"""`cg-rag ask "…"`: retrieve and choose from the command line, without a server."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cg_rag.index.validity import describe_validity, is_in_force
from cg_rag.modes import MODES
from cg_rag.modes.once import print_json, print_warnings, run_once
from cg_rag.modes.services import Services

ROUTE = "/rag"
BY_SCORE = "注意：条文按检索得分选出，没有经过模型判断，可能不切题；全文见 cg-rag search。"


def add_ask_arguments(parser: argparse.ArgumentParser) -> None:
    fields = MODES[ROUTE].Request.model_fields
    parser.add_argument("query", metavar="问题", help="要问的问题")
    parser.add_argument("--scope", metavar="范围", help="检索范围，缺省为 active_scope")
    for name, meaning in (("topk", "候选条文数上限（1..200"), ("max_items", "至多选出多少条（1..50")):
        default = fields[name].default
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, metavar="N", type=int, default=default, help=f"{meaning}，缺省 {default}）")
    parser.add_argument("--json", action="store_true", help="输出 JSON，与 POST /cg-rag/rag 的响应相同")


def run_ask(args: argparse.Namespace, services: Services) -> int:
    """Prints the answer, as it comes where standard output is a terminal; returns 0, 1 when there is none, 2 for wrong
    arguments. Closes `services`."""
    body = {"query": args.query, "topk": args.topk, "max_items": args.max_items}
    if args.scope is not None:
        body["scope"] = args.scope
    streams = sys.stdout.isatty() and not args.json
    payload = run_once(ROUTE, body, services, streams=streams)
    if isinstance(payload, int):
        return payload
    if args.json:
        print_json(payload)
    elif payload["ok"] and not streams:
        print(payload["generation"]["answer_text"])
    return _report(payload)


def _report(payload: dict[str, Any]) -> int:
    print_warnings(payload["retrieval"])
    if payload["ok"]:
        if payload["generation"]["provider"] == "local":
            print(BY_SCORE, file=sys.stderr)
        # The lines of the answer hold names and numbers alone; a program reads the status of each document.
        documents = payload["retrieval"]["retrieval_docs"]
        for place, number in enumerate(payload["generation"]["pred_indices"], start=1):
            if not is_in_force(documents[number - 1]):
                print(
                    f"注意：第 {place} 条{describe_validity(documents[number - 1])}，请核对现行规定。",
                    file=sys.stderr,
                )
        return 0
    print(payload["generation"]["error"]["message"], file=sys.stderr)
    return 1

"""`cg-rag ask "…"`: retrieve and choose from the command line, without a server."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

from cg_rag.core.errors import CgError
from cg_rag.core.events import AnswerReset, Event, Final, Token, drain
from cg_rag.core.log import logger
from cg_rag.core.requests import parse_request
from cg_rag.modes import rag
from cg_rag.modes.services import Services

REQUEST_ID = "ask"


def add_ask_arguments(parser: argparse.ArgumentParser) -> None:
    fields = rag.Request.model_fields
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
    logger.addHandler(logging.NullHandler())  # what went wrong is told below, in Chinese
    body = {"query": args.query, "topk": args.topk, "max_items": args.max_items}
    if args.scope is not None:
        body["scope"] = args.scope
    try:
        request = parse_request(rag.Request, body)
        services.library.refresh()
        payload = asyncio.run(_ask(request, services, streams=sys.stdout.isatty() and not args.json))
    except CgError as error:
        print(error.message, file=sys.stderr)
        return 2 if error.code == "invalid_request" else 1
    finally:
        services.library.close()
        services.threads.shutdown(wait=False, cancel_futures=True)
    if args.json:
        print(json.dumps(payload, ensure_ascii=False, indent=2))
    elif payload["ok"] and not sys.stdout.isatty():
        print(payload["generation"]["answer_text"])
    return _report(payload)


async def _ask(request: rag.Request, services: Services, streams: bool) -> dict[str, Any]:
    events = rag.run(request, services, REQUEST_ID)
    try:
        return await drain(_shown(events) if streams else events)
    finally:
        await services.close()


async def _shown(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """The same events, with the answer printed on the way."""
    has_text = False
    async for event in events:
        if isinstance(event, Token) and event.channel == "answer":
            print(event.text, end="", flush=True)
            has_text = True
        elif isinstance(event, AnswerReset):
            print(f"\n（{event.reason}，以上作废）", flush=True)
            has_text = False
        elif isinstance(event, Final) and has_text:
            print(flush=True)
        yield event


def _report(payload: dict[str, Any]) -> int:
    for warning in payload["retrieval"]["warnings"]:
        print(f"注意：{warning}", file=sys.stderr)
    if payload["ok"]:
        return 0
    print(payload["generation"]["error"]["message"], file=sys.stderr)
    return 1

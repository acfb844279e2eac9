"""One request of a mode from the command line, without a server: for `ask`, `look` and whatever asks once."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

from cg_rag.core.errors import CgError
from cg_rag.core.events import AnswerReset, Event, Final, Token, drain
from cg_rag.core.log import logger
from cg_rag.modes import MODES, start
from cg_rag.modes.services import Services

# Words for the reasons that programs read (docs/vision.md, answer_reset).
REASONS: Mapping[str, str] = {
    "correction": "不合要求，正在重写",
    "format": "以整理后的样子重发",
    "level": "隐患等级有调整",
    "salvage": "发布此前的草稿或回答",
    "thinking": "此前的文字是思考过程",
}


def run_once(
    route: str, body: Mapping[str, Any], services: Services, *, streams: bool
) -> dict[str, Any] | int:
    """The payload of the mode at `route`, or the exit code: 2 for wrong arguments, 1 for any other failure, which is
    told on standard error. `streams`: the answer is printed as it comes. Closes `services`."""
    logger.addHandler(logging.NullHandler())  # what went wrong is told below, in Chinese
    try:
        return asyncio.run(_run(route, body, services, streams))
    except CgError as error:
        print(error.message, file=sys.stderr)
        if error.code == "index.not_ready":
            print(services.library.where, file=sys.stderr)
        return 2 if error.code in ("invalid_request", "invalid_image") else 1
    finally:
        services.library.close()
        services.threads.shutdown(wait=False, cancel_futures=True)


async def _run(route: str, body: Mapping[str, Any], services: Services, streams: bool) -> dict[str, Any]:
    try:
        events = start(MODES[route], body, services, request_id="cli")
        await asyncio.to_thread(services.library.refresh)
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
        elif isinstance(event, AnswerReset) and has_text:
            print(f"\n（{REASONS.get(event.reason, event.reason)}，以上作废）\n", flush=True)
            has_text = False
        elif isinstance(event, Final) and has_text:
            print(flush=True)
        yield event


def print_json(payload: Mapping[str, Any]) -> None:
    print(json.dumps(payload, ensure_ascii=False, indent=2))


def print_warnings(payload: Mapping[str, Any]) -> None:
    for warning in payload.get("warnings", ()):
        print(f"注意：{warning}", file=sys.stderr)

"""`cg-rag look PHOTO…`: a photo's hazards from the command line, without a server."""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cg_rag.core.vision_request import DEFAULT_QUESTION
from cg_rag.index.errors import file_fault
from cg_rag.modes import STREAMS
from cg_rag.modes.once import print_json, print_warnings, run_once
from cg_rag.modes.services import Services

# --mode -> route, and the field of its answer that is shown.
ROUTES: Final[Mapping[str, tuple[str, str]]] = {
    "answer": ("/vision/answer", "answer"),
    "agentic": ("/vision/agentic", "answer"),
    "observe": ("/vision/observe", "text"),
    "hybrid": ("/vision/hybrid", "answer"),
}


def add_look_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photos", metavar="图片", nargs="+", help="JPEG、PNG 或 WebP 文件")
    parser.add_argument("--question", metavar="问题", default="", help=f"观察重点，缺省“{DEFAULT_QUESTION}”")
    parser.add_argument(
        "--mode",
        choices=tuple(ROUTES),
        default="answer",
        help="answer 自由生成（缺省），agentic 智能生成、hybrid 垂域+RAG（检索法规并引用），observe 结构化观察",
    )
    for flag, meaning in (
        ("--scope", "检索范围，缺省 full（只用于检索法规的模式）"),
        ("--rounds", "最多检索轮数，1..3（只用于检索法规的模式）"),
        ("--topk", "每轮检索候选数，1..200（只用于 agentic）"),
    ):
        kind = str if flag == "--scope" else int
        parser.add_argument(flag, type=kind, metavar="范围" if kind is str else "N", help=meaning)
    parser.add_argument("--thinking", action="store_true", help="让模型先思考；缺省按 vision.enable_thinking")
    parser.add_argument("--json", action="store_true", help="输出 JSON，与对应接口的响应相同")


def run_look(args: argparse.Namespace, services: Services) -> int:
    """Prints the answer, as it comes where standard output is a terminal; returns 0, 1 when there is none, 2 for wrong
    arguments and pictures. Closes `services`."""
    misplaced = _misplaced(args)
    if misplaced:
        print(misplaced, file=sys.stderr)
        return 2
    images = []
    for number, name in enumerate(args.photos, start=1):
        try:
            images.append({"data": _encode(number, Path(name), services.settings.vision.max_image_bytes)})
        except (OSError, ValueError) as error:
            print(_told(name, error), file=sys.stderr)
            return 2
    route, field = ROUTES[args.mode]
    body: dict[str, Any] = {"images": images, "question": args.question}
    if args.thinking:
        body["enable_thinking"] = True
    body |= _search_fields(args)
    streams = sys.stdout.isatty() and not args.json and route in STREAMS
    payload = run_once(route, body, services, streams=streams)
    if isinstance(payload, int):
        return payload
    if args.json:
        print_json(payload)
    elif not streams:
        print(payload[field])
    print_warnings(payload)
    if payload.get("parse_error"):
        print(f"注意：没有得到隐患标签：{payload['parse_error']}。", file=sys.stderr)
    return 0


def _misplaced(args: argparse.Namespace) -> str:
    """What is wrong with an option of another mode, "" for nothing: who gives one expects it to act."""
    modes = {"--scope": ("agentic", "hybrid"), "--rounds": ("agentic", "hybrid"), "--topk": ("agentic",)}
    for flag, value in (("--scope", args.scope), ("--rounds", args.rounds), ("--topk", args.topk)):
        if value is not None and args.mode not in modes[flag]:
            return f"{flag} 只用于 --mode {' 与 '.join(modes[flag])}，本次为 --mode {args.mode}。"
    return ""


def _search_fields(args: argparse.Namespace) -> dict[str, Any]:
    """What was said of the search."""
    fields = {"scope": args.scope, "max_search_rounds": args.rounds, "topk": args.topk}
    return {name: value for name, value in fields.items() if value is not None}


def _encode(number: int, path: Path, max_bytes: int) -> str:
    """A file in Base64. Raises OSError, and ValueError for one that is too large to be looked at."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"第 {number} 张图片为 {path.stat().st_size} 字节，超过上限 {max_bytes} 字节。")
    return base64.b64encode(data).decode()


def _told(name: str, error: OSError | ValueError) -> str:
    return f"{name}：{file_fault(error)}。" if isinstance(error, OSError) else str(error)

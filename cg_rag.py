"""CG_RAG: laws and standards for construction-site safety, retrieved and cited, never invented.

This file is the command line and the server: a command is dispatched here, the application is put together here, and
a request passes through it from top to bottom: edge (id, key, error body, log line), declared size and type, body,
fields, mode. The work itself is in modes/, what modes share in core/, retrieval in index/.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

# modes/, index/, prompts/ and core/ lie beside this file in a checkout and under
# cg_rag/ in a wheel. This line makes both the package `cg_rag`.
__path__ = [str(Path(__file__).resolve().parent)]
# Run as a script the file is `__main__`, and the package would be loaded beside it a second time; hence no state here.
if __name__ == "__main__":
    sys.path.insert(0, __path__[0])

if TYPE_CHECKING:
    from aiohttp import web

    from cg_rag.core.config import Loaded
    from cg_rag.core.settings import Settings
    from cg_rag.index.library import IndexLibrary
    from cg_rag.modes import Mode
    from cg_rag.modes.services import Services
    from cg_rag.prompts import Mismatch

__version__ = "0.1.0"

MAX_JSON_BODY_BYTES = 2 * 1024 * 1024
# Larger answers take room among the bodies in flight; what twenty ordinary articles need stays far below.
LARGE_ANSWER_BYTES = 256 * 1024


# --- the application ---------------------------------------------------------------------------------------------


def make_library(settings: Settings) -> IndexLibrary:
    """The index that `settings` name, not opened yet."""
    from cg_rag.index.corpus import Selector
    from cg_rag.index.library import IndexLibrary, Profile

    profiles = {}
    for name, profile in settings.profiles.items():
        include = profile.include
        selectors = (
            (Selector(),) if include == "all" else tuple(Selector(**entry.model_dump()) for entry in include)
        )
        profiles[name] = Profile(profile.label, selectors)
    return IndexLibrary(settings.index.dir, profiles, settings.retrieval.min_score)


def make_services(settings: Settings, prompt_mismatches: Sequence[Mismatch] = ()) -> Services:
    """Everything that modes use, from settings alone. Opens nothing."""
    from cg_rag.core.cache import Cache
    from cg_rag.core.capacity import Limiter
    from cg_rag.modes.services import Services

    wait = settings.capacity.wait_timeout_seconds
    return Services(
        settings=settings,
        library=make_library(settings),
        # A search is CPU work of about a millisecond: more threads than processors only add switching.
        threads=ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="retrieval"),
        retrieval_slots=Limiter("retrieval", settings.capacity.retrieval.max, wait),
        generation_slots=Limiter("generation", settings.capacity.generation.max, wait),
        body_bytes=Limiter("request_body", settings.server.max_inflight_body_bytes, wait),
        retrieval_cache=Cache(settings.cache.max_bytes, settings.cache.ttl_seconds),
        prompt_mismatches=tuple(prompt_mismatches),
    )


def build_app(services: Services) -> web.Application:
    """The aiohttp application: routes under /cg-rag, the edge around them, the index followed in the background."""
    from aiohttp import web

    from cg_rag.core.openapi import Route, build_openapi
    from cg_rag.core.web import BASE_PATH, KEY_NAME, OPEN_PATHS, encode_json, json_response, make_edge
    from cg_rag.modes import MODES
    from cg_rag.modes.health import health, profiles, ready

    server = services.settings.server
    keys = server.api_keys
    started_at = time.monotonic()

    def may_count(request: web.Request) -> bool:
        return not keys or KEY_NAME in request

    async def get_health(request: web.Request) -> web.Response:
        return json_response(encode_json(health(services, __version__, started_at, may_count(request))))

    async def get_ready(request: web.Request) -> web.Response:
        return json_response(encode_json(ready(services, may_count(request))))

    async def get_profiles(_request: web.Request) -> web.Response:
        return json_response(encode_json(profiles(services)))

    async def get_openapi(_request: web.Request) -> web.Response:
        return json_response(openapi)

    def post_json(mode: Mode) -> Callable[[web.Request], Any]:
        async def handler(request: web.Request) -> web.Response:
            return await _answer_json(request, mode, services)

        return handler

    gets = {
        "/health": (get_health, "运行状态", ()),
        "/ready": (get_ready, "缺省检索范围是否可用", ("index.not_ready",)),
        "/profiles": (get_profiles, "可用检索范围", ()),
        "/openapi.json": (get_openapi, "本文档", ()),
    }
    app = web.Application(middlewares=[make_edge(keys)])
    routes = []
    for path, (handler, summary, codes) in gets.items():
        app.router.add_get(BASE_PATH + path, handler, allow_head=False)
        routes.append(Route(path, "GET", summary, codes, open=BASE_PATH + path in OPEN_PATHS))
    for path, mode in MODES.items():
        app.router.add_post(BASE_PATH + path, post_json(mode))
        routes.append(Route(path, "POST", mode.SUMMARY, BODY_CODES + mode.CODES, mode.Request))
    openapi = encode_json(build_openapi(routes, BASE_PATH, __version__, with_keys=bool(keys)))
    app.cleanup_ctx.append(_following_index(services))
    return app


# What reading and checking a body can fail with, on every POST route.
BODY_CODES = (
    "invalid_request",
    "request_timeout",
    "payload_too_large",
    "unsupported_media_type",
    "capacity.exceeded",
)


async def _answer_json(request: web.Request, mode: Mode, services: Services) -> web.Response:
    """One POST: the order of checks is contract, docs/http.md lists it."""
    from cg_rag.core.body import read_json_object
    from cg_rag.core.events import drain
    from cg_rag.core.requests import parse_request
    from cg_rag.core.web import REQUEST_ID, encode_json, json_response

    body = await read_json_object(
        request,
        max_bytes=MAX_JSON_BODY_BYTES,
        inflight=services.body_bytes,
        idle_timeout_seconds=services.settings.server.body_idle_timeout_seconds,
    )
    fields = parse_request(mode.Request, body)
    answer = encode_json(await drain(mode.run(fields, services, request[REQUEST_ID])))
    if len(answer) > LARGE_ANSWER_BYTES:
        # An answer that nobody reads stays in memory until the write deadline, like a body that nobody finishes.
        lease = await services.body_bytes.take(min(len(answer), services.body_bytes.max_units))
        lease.release_with_task()
    return json_response(answer)


def _following_index(services: Services) -> Callable[[web.Application], AsyncIterator[None]]:
    """Open the index in the background, and look again every `index.poll_seconds` for a newer one."""

    async def context(_app: web.Application) -> AsyncIterator[None]:
        stopping = threading.Event()
        task = asyncio.create_task(_follow_index(services, stopping))
        yield
        stopping.set()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        services.library.close()
        services.threads.shutdown(wait=False, cancel_futures=True)

    return context


async def _follow_index(services: Services, stopping: threading.Event) -> None:
    from cg_rag.core.log import log_event, logger

    poll_seconds = services.settings.index.poll_seconds
    while True:
        try:
            refresh = await asyncio.to_thread(services.library.refresh, stopping.is_set)
        except Exception:
            # The watcher must outlive whatever one look meets; the index in use goes on answering.
            logger.exception("index_refresh_failed")
            refresh = None
        if refresh is not None:
            outcome = refresh.outcome
            for fault in outcome.faults:
                log_event(logging.ERROR, "index_fault", fault=fault)
            event = "index_loaded" if refresh.adopted else "index_refused"
            fingerprint = outcome.reader.fingerprint if outcome.reader else ""
            log_event(logging.INFO, event, state=outcome.state, fingerprint=fingerprint)
        if not poll_seconds:
            return
        await asyncio.sleep(poll_seconds)


# --- the process -------------------------------------------------------------------------------------------------


def run_server(loaded: Loaded, announce: Callable[[str], None] = lambda url: None) -> int:
    """Logging, pins and leftovers first, then serve until a signal comes. Returns the exit code."""
    from cg_rag import prompts
    from cg_rag.core.log import log_event, setup_logging
    from cg_rag.core.serving import run_app
    from cg_rag.index.store import remove_leftovers

    settings = loaded.settings
    setup_logging(settings.log.level, settings.log.format)
    for warning in loaded.warnings:
        log_event(logging.WARNING, "config_warning", warning=warning)
    mismatches = prompts.verify()
    for mismatch in mismatches:
        log_event(
            logging.WARNING,
            "prompt_pin_mismatch",
            file=mismatch.name,
            expected=mismatch.expected,
            found=mismatch.found,
        )
        if settings.strict_prompt_pins:
            print(
                f"提示词文件 {mismatch.name} 与 pins.json 不符，strict_prompt_pins 已开启，拒绝启动。",
                file=sys.stderr,
            )
            return 1
    for name in remove_leftovers(settings.index.dir):
        log_event(logging.INFO, "leftover_removed", name=name)
    return run_app(
        lambda: build_app(make_services(settings, mismatches)), settings.server, __version__, announce
    )


# --- the command line --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """`add_arguments` and `run` import what they need when they are called: `--help` stays instant."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _load(args: argparse.Namespace, presets: Mapping[str, Any] | None = None) -> Loaded:
    from cg_rag.core.config import load

    flags: dict[str, Any] = {}
    for key, value in (
        ("server.host", getattr(args, "host", None)),
        ("server.port", getattr(args, "port", None)),
        ("index.dir", getattr(args, "index_dir", None)),
    ):
        if value is not None:
            flags[key] = value
    config = getattr(args, "config", None)
    return load(Path(config) if config else None, os.environ, presets, flags)


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.core.cli import add_server_arguments

    add_server_arguments(parser)


def _run_serve(args: argparse.Namespace) -> int:
    return run_server(_load(args))


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.index.demo import add_demo_arguments

    _serve_arguments(parser)
    add_demo_arguments(parser)


def _run_demo(args: argparse.Namespace) -> int:
    from cg_rag.core.config import ConfigError
    from cg_rag.core.serving import CannotListen, check_address
    from cg_rag.core.settings import default_index_dir
    from cg_rag.index.demo import DEMO_PROFILES, demo_variant, prepare_demo_index
    from cg_rag.index.errors import IndexLibraryError, SourceInvalid
    from cg_rag.index.progress import TerminalProgress

    try:
        demo_dir = default_index_dir(os.environ).parent / "demo"
    except RuntimeError as error:
        raise ConfigError(
            "找不到用户主目录，请用环境变量 XDG_DATA_HOME 或 CG_RAG_INDEX_DIR 指定存放位置。"
        ) from error
    index_dir = demo_dir / demo_variant(args)
    loaded = _load(args, {"profiles": DEMO_PROFILES, "index.dir": str(index_dir), "log.format": "text"})
    try:
        check_address(loaded.settings.server)
        prepare_demo_index(loaded.settings.index.dir, demo_dir, args, TerminalProgress(), print)
    except SourceInvalid as error:
        print(str(error), file=sys.stderr)
        return 2
    except (CannotListen, IndexLibraryError) as error:
        print(str(error), file=sys.stderr)
        return 1

    def announce(url: str) -> None:
        print(f"CG_RAG 已启动：{url}（Ctrl-C 停止）。另开一个终端试试：\n")
        print(f"curl --noproxy '*' -sS {url}/retrieve-rerank -H 'Content-Type: application/json' \\")
        print("""  -d '{"query":"脚手架基础积水怎么办","topk":1}'\n""", flush=True)

    return run_server(loaded, announce)


def _index_dir_argument(parser: argparse.ArgumentParser) -> None:
    from cg_rag.core.cli import add_config_argument

    add_config_argument(parser)
    parser.add_argument("--index-dir", metavar="目录", help="索引目录，覆盖 index.dir")


def _on_index_dir(add_name: str, run_name: str) -> tuple[Any, Any]:
    """Argument and run functions of an `index …` command, from index/commands.py."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        from cg_rag.index import commands

        _index_dir_argument(parser)
        getattr(commands, add_name)(parser)

    def run(args: argparse.Namespace) -> int:
        from cg_rag.index import commands

        code: int = getattr(commands, run_name)(args, _load(args).settings.index.dir)
        return code

    return add_arguments, run


def _search_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.index.search import add_search_arguments

    _index_dir_argument(parser)
    add_search_arguments(parser)


def _run_search(args: argparse.Namespace) -> int:
    from cg_rag.index.search import run_search

    settings = _load(args).settings
    return run_search(args, make_library(settings), settings.active_scope)


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    _index_dir_argument(parser)
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def _run_doctor(args: argparse.Namespace) -> int:
    from cg_rag import prompts
    from cg_rag.core.doctor import FindingLike, check_config, check_machine, check_pins, report
    from cg_rag.index.doctor import check_index

    findings: list[FindingLike] = [*check_machine()]
    loaded, config_findings = check_config(lambda: _load(args))
    findings += config_findings
    findings += check_pins(prompts.verify(), loaded is not None and loaded.settings.strict_prompt_pins)
    if loaded is not None:
        findings += check_index(make_library(loaded.settings), loaded.settings.active_scope)
    return report(findings, as_json=args.json)


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.core.config import add_check_arguments

    add_check_arguments(parser)


def _run_config_check(args: argparse.Namespace) -> int:
    from cg_rag.core.config import run_check

    return run_check(args)


COMMANDS: Mapping[str, Command | Mapping[str, Command]] = {
    "serve": Command("启动服务", _serve_arguments, _run_serve),
    "demo": Command("准备示例索引并启动服务，初次试用从这里开始", _demo_arguments, _run_demo),
    "search": Command("在命令行检索条文", _search_arguments, _run_search),
    "doctor": Command("检查配置、索引、提示词与运行环境，并给出处理办法", _doctor_arguments, _run_doctor),
    "index": {
        "build": Command("从文件构建索引", *_on_index_dir("add_build_arguments", "run_build")),
        "info": Command("显示当前索引", *_on_index_dir("add_info_arguments", "run_info")),
        "verify": Command("逐字节校验当前索引", *_on_index_dir("add_verify_arguments", "run_verify")),
    },
    "config": {"check": Command("检查配置并显示生效值（密钥已遮盖）", _config_arguments, _run_config_check)},
}


def _make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Arguments are added only to the command that `words` call, so that nothing else is imported."""
    from cg_rag.core.cli import Parser, speak_chinese

    speak_chinese()
    parser = Parser(prog="cg-rag", description="施工现场安全法规检索服务", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"CG_RAG {__version__}", help="显示版本")
    _add_commands(parser, COMMANDS, words)
    return parser


def _add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Any], words: Sequence[str]) -> None:
    choices = parser.add_subparsers(title="命令", metavar="命令", required=True)
    for name, command in commands.items():
        called = bool(words) and words[0] == name
        if isinstance(command, Command):
            child = choices.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
            child.set_defaults(run=command.run)
            if called:
                command.add_arguments(child)
        else:
            summary = "、".join(entry.help for entry in command.values())
            child = choices.add_parser(name, help=summary, description=summary, allow_abbrev=False)
            _add_commands(child, command, words[1:] if called else ())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (docs/commands.md)."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show Chinese gets escapes, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "cg_rag":
            raise
        print(f"缺少依赖 {error.name}，请先在项目目录运行 pip install .", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of a pipe has gone (`| head`); nothing may be written while Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _run(words: Sequence[str]) -> int:
    args = _make_parser(words).parse_args(words)
    from cg_rag.core.config import ConfigError

    try:
        code: int = args.run(args)
    except ConfigError as error:
        print(str(error), file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())

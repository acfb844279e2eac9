"""CG_RAG: laws and standards for construction-site safety, retrieved and cited, never invented.

This file is the command line and the process; a command lives beside what it commands and is imported when it is
called. The HTTP application is modes/http_app.py, the work is in modes/, what modes share in core/, retrieval in index/.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
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
    from cg_rag.core.settings import ServerSettings
    from cg_rag.core.worker import Worker
    from cg_rag.index.embedder import Embedder

__version__ = "0.1.0"


# --- the process -------------------------------------------------------------------------------------------------


def run_server(
    loaded: Loaded,
    announce: Callable[[str], None] = lambda url: None,
    beside: Callable[[Callable[[], bool]], None] | None = None,
    embedder: Embedder | None = None,
    workers: int = 1,
) -> int:
    """Logging and pins first, then serve until a signal comes. Returns the exit code.

    `beside` is work for a thread of its own while the service runs; it is handed a function that says when to stop.
    `embedder` is the embedding model when it is open already. Both are for a service of one process; `workers` more
    than 1 start as many.
    """
    from cg_rag import prompts
    from cg_rag.core.log import log_event, setup_logging
    from cg_rag.core.memory import loading, share_arenas
    from cg_rag.core.os_words import reason_of
    from cg_rag.core.supervisor import supervise
    from cg_rag.core.vision_settings import half_configured
    from cg_rag.core.worker import ALONE

    settings = loaded.settings
    log = settings.log
    try:
        setup_logging(log.level, log.format, log.file, log.utc_offset)
    except OSError as error:
        print(f"log.file {log.file} 无法写入：{reason_of(error)}。", file=sys.stderr)
        return 1
    share_arenas()
    # A search hands the interpreter over this much sooner to the event loop (default 5 ms): docs/benchmarks.md, 事件循环.
    sys.setswitchinterval(0.001)
    for warning in [*loaded.warnings, *half_configured(settings)]:
        log_event(logging.WARNING, "config_warning", warning=warning)
    mismatches = prompts.verify()
    for mismatch in mismatches:
        fields = {"file": mismatch.name, "expected": mismatch.expected, "found": mismatch.found}
        log_event(logging.WARNING, "prompt_pin_mismatch", **fields)
    if mismatches and settings.strict_prompt_pins:
        names = "、".join(mismatch.name for mismatch in mismatches)
        print(f"提示词文件 {names} 与 pins.json 不符，strict_prompt_pins 已开启，拒绝启动。", file=sys.stderr)
        return 1

    def serve(worker: Worker, server: ServerSettings) -> int:
        # Imported here: NumPy starts threads, and a process with threads does not fork.
        with loading():
            from cg_rag.core.serving import run_app
            from cg_rag.index.store import remove_leftovers
            from cg_rag.modes.http_app import build_app, running_beside
            from cg_rag.modes.services import make_services

        if worker.count > 1:
            setup_logging(log.level, log.format, log.file, log.utc_offset, worker=worker.number)
        for name in remove_leftovers(settings.index.dir):
            log_event(logging.INFO, "leftover_removed", name=name)

        def make_app() -> web.Application:
            with loading():
                services = make_services(settings, mismatches, embedder, worker=worker)
                app = build_app(services, __version__)
            if services.vision_profile.is_experimental:
                log_event(
                    logging.WARNING, "vision_profile_experimental", profile=services.vision_profile.name
                )
            if beside is not None:
                app.cleanup_ctx.append(running_beside(beside))
            return app

        return run_app(make_app, server, __version__, announce, worker)

    if workers == 1:
        return serve(ALONE, settings.server)
    return supervise(serve, workers, settings.server, __version__, announce)


# --- the command line --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """`add_arguments` and `run` import what they need when they are called: `--help` stays instant."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _load(args: argparse.Namespace, presets: Mapping[str, Any] | None = None) -> Loaded:
    from cg_rag.core.memory import loading

    with loading():
        from cg_rag.core.config import load

    flags: dict[str, Any] = {}
    for key, value in (
        ("server.host", getattr(args, "host", None)),
        ("server.port", getattr(args, "port", None)),
        ("server.workers", getattr(args, "workers", None)),
        ("index.dir", getattr(args, "index_dir", None)),
    ):
        if value is not None:
            flags[key] = value
    config = getattr(args, "config", None)
    return load(Path(config) if config else None, os.environ, presets, flags)


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.core.cli import add_server_arguments

    add_server_arguments(parser)
    parser.add_argument(
        "--workers", metavar="个数", type=int, help="工作进程数，覆盖 server.workers；共用一个端口"
    )


def _run_serve(args: argparse.Namespace) -> int:
    loaded = _load(args)
    return run_server(loaded, workers=loaded.settings.server.workers)


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.core.cli import add_server_arguments
    from cg_rag.index.demo import add_demo_arguments

    add_server_arguments(parser)
    add_demo_arguments(parser)


def _run_demo(args: argparse.Namespace) -> int:
    from cg_rag.core.config import ConfigError
    from cg_rag.core.serving import CannotListen, check_address
    from cg_rag.core.settings import default_index_dir
    from cg_rag.index.demo import DEMO_PROFILES, demo_variant, prepare_demo
    from cg_rag.index.errors import IndexLibraryError, SourceInvalid
    from cg_rag.index.model_errors import Cancelled
    from cg_rag.index.progress import TerminalProgress
    from cg_rag.modes.services import make_embedder

    try:
        demo_dir = default_index_dir(os.environ).parent / "demo"
    except RuntimeError as error:
        raise ConfigError(
            "找不到用户主目录，请用环境变量 XDG_DATA_HOME 或 CG_RAG_INDEX_DIR 指定存放位置。"
        ) from error
    presets = {
        "profiles": DEMO_PROFILES,
        "index.dir": str(demo_dir / demo_variant(args)),
        "log.format": "text",
        "embedding.provider": "none" if args.sample else "onnx",
        "generation.provider": "local",
    }
    loaded = _load(args, presets)
    if loaded.settings.generation.endpoint:
        # Whoever names a model wants it asked.
        del presets["generation.provider"]
        loaded = _load(args, presets)
    settings = loaded.settings
    try:
        check_address(settings.server)
        embedder = make_embedder(settings)
        demo = prepare_demo(settings.index.dir, demo_dir, args, embedder, TerminalProgress(), print)
    except SourceInvalid as error:
        print(str(error), file=sys.stderr)
        return 2
    except (CannotListen, IndexLibraryError) as error:
        print(str(error), file=sys.stderr)
        return 1

    def announce(url: str) -> None:
        print(f"CG_RAG 已启动：{url}（Ctrl-C 停止）。浏览器打开 {url}/console，或另开一个终端试试：\n")
        print(f"curl --noproxy '*' -sS {url}/retrieve-rerank -H 'Content-Type: application/json' \\")
        print("""  -d '{"query":"脚手架基础积水怎么办","topk":1}'\n""", flush=True)
        if demo.lacks_vectors:
            print("正在后台生成向量，完成前按字面检索。", flush=True)

    def add_vectors(should_stop: Callable[[], bool]) -> None:
        assert embedder is not None
        try:
            demo.add_vectors(embedder, lambda text: print(text, flush=True), should_stop)
        except Cancelled:
            return
        except IndexLibraryError as error:
            print(f"向量没有生成：{error}。继续按字面检索，重新启动 demo 会接着生成。", flush=True)

    return run_server(loaded, announce, add_vectors if demo.lacks_vectors else None, embedder)


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
        from cg_rag.modes.services import make_embedder

        settings = _load(args).settings
        more = (lambda: make_embedder(settings),) if run_name in ("run_build", "run_install") else ()
        code: int = getattr(commands, run_name)(args, settings.index.dir, *more)
        return code

    return add_arguments, run


def _push_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.index.push import add_push_arguments

    _index_dir_argument(parser)
    add_push_arguments(parser)


def _run_push(args: argparse.Namespace) -> int:
    from cg_rag.core.config import ConfigError
    from cg_rag.index.push import run_push
    from cg_rag.modes.services import make_milvus

    settings = _load(args).settings
    if not settings.index.milvus.uri:
        raise ConfigError("推送须设置 index.milvus.uri。")
    return run_push(args, settings.index.dir, make_milvus(settings))


def _search_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.index.search import add_search_arguments

    _index_dir_argument(parser)
    add_search_arguments(parser)


def _run_search(args: argparse.Namespace) -> int:
    from cg_rag.index.search import run_search
    from cg_rag.modes.services import make_library

    settings = _load(args).settings
    return run_search(args, make_library(settings), settings.active_scope)


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.index.verify import add_verify_arguments

    _index_dir_argument(parser)
    add_verify_arguments(parser)


def _run_verify(args: argparse.Namespace) -> int:
    from cg_rag.index.verify import run_verify
    from cg_rag.modes.services import make_library

    settings = _load(args).settings
    return run_verify(args, make_library(settings), settings.active_scope)


def _ask_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.modes.ask import add_ask_arguments

    _index_dir_argument(parser)
    add_ask_arguments(parser)


def _run_ask(args: argparse.Namespace) -> int:
    from cg_rag.modes.ask import run_ask
    from cg_rag.modes.services import make_services

    return run_ask(args, make_services(_load(args).settings))


def _look_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.modes.look import add_look_arguments

    _index_dir_argument(parser)
    add_look_arguments(parser)


def _run_look(args: argparse.Namespace) -> int:
    from cg_rag.modes.look import run_look
    from cg_rag.modes.services import make_services

    return run_look(args, make_services(_load(args).settings))


def _eval_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.index.evaluate import add_eval_arguments

    _index_dir_argument(parser)
    add_eval_arguments(parser)


def _run_eval(args: argparse.Namespace) -> int:
    from cg_rag.index.evaluate import run_eval
    from cg_rag.modes.services import make_library

    settings = _load(args).settings
    return run_eval(args, make_library(settings), settings.active_scope)


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.index.bench import add_bench_arguments

    _index_dir_argument(parser)
    add_bench_arguments(parser)


def _run_bench(args: argparse.Namespace) -> int:
    from cg_rag.index.bench import run_bench
    from cg_rag.modes.services import make_library

    settings = _load(args).settings
    return run_bench(args, make_library(settings), settings.active_scope)


def _eval_vision_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.modes.evaluate_vision import add_eval_vision_arguments

    _index_dir_argument(parser)
    add_eval_vision_arguments(parser)


def _run_eval_vision(args: argparse.Namespace) -> int:
    from cg_rag.modes.evaluate_vision import run_eval_vision

    return run_eval_vision(args, lambda: _load(args).settings, __version__)


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    _index_dir_argument(parser)
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def _run_doctor(args: argparse.Namespace) -> int:
    from cg_rag import prompts
    from cg_rag.core.doctor import (
        FindingLike,
        check_config,
        check_criteria,
        check_machine,
        check_mcp,
        check_pins,
        check_vision,
        report,
    )
    from cg_rag.core.upstream_probe import check_upstreams
    from cg_rag.index.doctor import check_index
    from cg_rag.modes.services import make_library
    from cg_rag.modes.upstreams import configured_upstreams
    from cg_rag.modes.vision_rules import load_criteria

    findings: list[FindingLike] = [*check_machine()]
    loaded, config_findings = check_config(lambda: _load(args))
    findings += config_findings
    findings += check_pins(prompts.verify(), loaded is not None and loaded.settings.strict_prompt_pins)
    criteria_file = loaded.settings.criteria.file if loaded else None
    findings.append(check_criteria(lambda: load_criteria(criteria_file)))
    if loaded is not None:
        findings += check_mcp(loaded.settings)
        findings += check_vision(loaded.settings)
        findings += check_upstreams(configured_upstreams(loaded.settings))
        findings += check_index(make_library(loaded.settings), loaded.settings.active_scope)
    return report(findings, as_json=args.json)


def _wheelhouse_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.core.delivery.command import add_wheelhouse_arguments

    add_wheelhouse_arguments(parser)


def _run_wheelhouse(args: argparse.Namespace) -> int:
    from cg_rag.core.delivery.command import run_wheelhouse
    from cg_rag.core.delivery.errors import DeliveryRefused
    from cg_rag.index.errors import IndexLibraryError
    from cg_rag.index.progress import TerminalProgress
    from cg_rag.index.store import current_fingerprint
    from cg_rag.index.transfer import pack_index

    loaded, progress = _load(args), TerminalProgress()
    index_dir = loaded.settings.index.dir

    def pack(folder: Path) -> dict[str, Any]:
        try:
            packed = pack_index(index_dir, folder, progress)
        except IndexLibraryError as error:
            raise DeliveryRefused(f"{error}（--no-index 不带索引）") from error
        return {"file": packed.path.name, "fingerprint": packed.fingerprint, "num_docs": packed.num_docs}

    try:
        has_index = args.index_dir is not None or current_fingerprint(index_dir) is not None
    except IndexLibraryError:
        has_index = True  # what is wrong with it is said when it is packed
    return run_wheelhouse(args, loaded, pack, has_index, progress)


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.core.config import add_check_arguments

    add_check_arguments(parser)


def _run_config_check(args: argparse.Namespace) -> int:
    from cg_rag.core.config import run_check

    return run_check(args)


def _mcp_config_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.core.mcp_config import add_mcp_config_arguments

    add_mcp_config_arguments(parser)


def _run_mcp_config(args: argparse.Namespace) -> int:
    from cg_rag.core.mcp_config import run_mcp_config

    return run_mcp_config(args, _load(args).settings)


def _pin_arguments(parser: argparse.ArgumentParser) -> None:
    from cg_rag.prompts.pin import add_pin_arguments

    add_pin_arguments(parser)


def _run_pin(args: argparse.Namespace) -> int:
    from cg_rag.prompts.pin import run_pin

    return run_pin(args)


COMMANDS: Mapping[str, Command | Mapping[str, Command]] = {
    "serve": Command("启动服务", _serve_arguments, _run_serve),
    "demo": Command("准备示例索引并启动服务，初次试用从这里开始", _demo_arguments, _run_demo),
    "search": Command("在命令行检索条文", _search_arguments, _run_search),
    "ask": Command("在命令行提问：检索条文，并选出直接相关的", _ask_arguments, _run_ask),
    "look": Command("在命令行看图识别隐患", _look_arguments, _run_look),
    "verify": Command("核对文中引用的法规与条文", _verify_arguments, _run_verify),
    "doctor": Command(
        "检查配置、索引、模型服务、提示词与运行环境，并给出处理办法", _doctor_arguments, _run_doctor
    ),
    "index": {
        "build": Command("从文件构建索引", *_on_index_dir("add_build_arguments", "run_build")),
        "info": Command("显示当前索引", *_on_index_dir("add_info_arguments", "run_info")),
        "verify": Command("逐字节校验当前索引", *_on_index_dir("add_verify_arguments", "run_verify")),
        "pack": Command("把当前索引打包成一个文件", *_on_index_dir("add_pack_arguments", "run_pack")),
        "install": Command(
            "安装打包的索引，不停服务", *_on_index_dir("add_install_arguments", "run_install")
        ),
        "rollback": Command(
            "换回上一份索引，不停服务", *_on_index_dir("add_rollback_arguments", "run_rollback")
        ),
        "push": Command("把当前索引的向量推送到 Milvus", _push_arguments, _run_push),
    },
    "eval": {
        "retrieval": Command("以已知答案的题目评测检索质量与速度", _eval_arguments, _run_eval),
        "vision": Command(
            "以标注过的照片评测看图识别隐患，比较视觉版本", _eval_vision_arguments, _run_eval_vision
        ),
    },
    "bench": Command("测本机检索的速度：一人与几人同时", _bench_arguments, _run_bench),
    "wheelhouse": Command(
        "制作离线交付件：程序、依赖、模型、索引与安装脚本", _wheelhouse_arguments, _run_wheelhouse
    ),
    "mcp-config": Command("显示 MCP 客户端的配置", _mcp_config_arguments, _run_mcp_config),
    "prompts": {"pin": Command("把提示词文件的现状记入 pins.json", _pin_arguments, _run_pin)},
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
            # Some of these sentences have commas and lists of their own.
            summary = "；".join(entry.help for entry in command.values())
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

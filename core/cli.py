"""argparse that speaks Chinese.

Rule: a wrong argument is one Chinese line and exit code 2; docs/commands.md lists the codes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

EXIT_USAGE = 2

# argparse looks its texts up through gettext; these are all that a user of ours can meet.
_TEXTS: Mapping[str, str] = {
    "usage: ": "用法：",
    "positional arguments": "参数",
    "options": "选项",
    "show this help message and exit": "显示帮助",
    "%(prog)s: error: %(message)s\n": "%(prog)s：%(message)s\n",
    "the following arguments are required: %s": "缺少参数：%s",
    "unrecognized arguments: %s": "不认识的参数：%s",
    "expected one argument": "需要一个值",
    "expected at least one argument": "至少需要一个值",
    "expected at most one argument": "至多一个值",
    "argument %(argument_name)s: %(message)s": "参数 %(argument_name)s：%(message)s",
    "invalid %(type)s value: %(value)r": "值不合法：%(value)r",
    "invalid choice: %(value)r (choose from %(choices)s)": "不支持 %(value)r，可选：%(choices)s",
    "invalid choice: %(value)r, maybe you meant %(suggestion)r? (choose from %(choices)s)": (
        "不支持 %(value)r，是否想用 %(suggestion)r？可选：%(choices)s"
    ),
    "not allowed with argument %s": "不能与 %s 同时使用",
    "ignored explicit argument %r": "不接受值 %r",
    "ambiguous option: %(option)s could match %(matches)s": "%(option)s 不明确，可能是 %(matches)s",
}


def speak_chinese() -> None:
    """Make argparse look its texts up here; an unknown one stays as it is."""
    argparse._ = lambda text: _TEXTS.get(text, text)  # type: ignore[attr-defined]


# How `type=` of an argument reads in a message; others are only "不合法".
_KINDS: Mapping[str, str] = {"int": "须为整数", "float": "须为数字"}


class _Formatter(argparse.HelpFormatter):
    """The title above the commands says what they are; argparse repeats it as a row of its own above them."""

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(map(self._format_action, action._get_subactions()))
        return super()._format_action(action)


class Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": _Formatter, **options})

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """A number that is none is told with the rule and the value, as every other wrong value is."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            rule = _KINDS.get(getattr(action.type, "__name__", ""))
            if rule is None:
                raise
            raise argparse.ArgumentError(action, f"{rule}，收到 {arg_string!r}") from error

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}：{message}\n")


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="文件", help="配置文件；缺省依次为 CG_RAG_CONFIG、程序自带的 config.yaml"
    )


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument("--host", metavar="地址", help="监听地址，覆盖 server.host")
    parser.add_argument(
        "--port", metavar="端口", type=int, help="监听端口，覆盖 server.port；0 为任意空闲端口"
    )

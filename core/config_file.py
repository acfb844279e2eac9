"""A configuration file: its text, the YAML in it as plain values, and the line of every key.

Rule: built from parser events, so that nothing is resolved behind our back. PyYAML's own loader turns `yes`
into True and `12:30:45` into 45045, and lets the last of two equal keys win.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

import yaml

Loc = tuple[str | int, ...]

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32

_READ_FAILURES: dict[type[Exception], str] = {
    FileNotFoundError: "文件不存在",
    PermissionError: "没有读取权限",
    IsADirectoryError: "是文件夹",
}
_TYPE_WORDS = {bool: "布尔值", int: "整数", float: "小数", str: "文字"}

_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# YAML 1.2 core without octal, hexadecimal and leading zeros: a number is the one that a reader sees.
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")


class ConfigError(Exception):
    """One Chinese line: where, which key, what is allowed, what was found."""


def dotted(loc: Loc) -> str:
    """("profiles", "full", "include", 0) -> `profiles.full.include[0]`."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{one_line(p)}" for p in loc).removeprefix(".")


def one_line(text: str) -> str:
    """`text` on one line and of bounded length, whatever characters it holds."""
    cut = text if len(text) <= 120 else text[:120] + "…"
    return cut if cut.isprintable() else repr(cut)[1:-1]


def shown(value: Any) -> str:
    """A refused value as an error quotes it, with its type."""
    if value is None:
        return "空值"
    if isinstance(value, dict | list | tuple):
        return "映射" if isinstance(value, dict) else "列表"
    if isinstance(value, bool):
        return "true（布尔值）" if value else "false（布尔值）"
    words = _TYPE_WORDS.get(type(value), "路径")
    return f"{one_line(repr(value) if isinstance(value, str) else str(value))}（{words}）"


def read_text(path: Path, name: str) -> str:
    """The UTF-8 text of `path`, without BOM. Raises ConfigError, which calls the file `name`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = _READ_FAILURES.get(type(error), "读取失败")
        raise ConfigError(f"{name}: {reason}。") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{name}: 文件超过上限 {MAX_FILE_BYTES} 字节。")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
    # Raised outside the handler: the decoding error holds the bytes of the file, keys too.
    raise ConfigError(f"{name}:{line}: 不是 UTF-8 编码，请另存为 UTF-8（不能用 GBK）。")


def plain_scalar(text: str) -> Any:
    """What unquoted text means: null, a boolean, a number, else the text itself."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


class YamlReader:
    """One YAML document. `lines` holds the line of each key; keys below a `hidden` one are not quoted in errors."""

    def __init__(self, name: str, text: str, hidden: Collection[Loc]) -> None:
        self.lines: dict[Loc, int] = {}
        self._name, self._text, self._hidden = name, text, hidden
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=yaml.SafeLoader))

    def read(self) -> Any:
        """The document as dict, list, str, int, float, bool, None; None when empty. Raises ConfigError."""
        try:
            return self._document()
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            problem = "含不可打印的字符。"
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            problem = "YAML 语法错误，请检查此处的缩进（不能用 Tab）、引号和冒号后的空格。"
        except (yaml.YAMLError, ValueError, OverflowError):
            # e.g. the escape "\UFFFFFFFF", which the scanner hands to chr()
            line, problem = 1, "YAML 语法错误。"
        raise ConfigError(f"{self._name}:{line}: {problem}")

    def _document(self) -> Any:
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), ())
        next(self._events)
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._refuse(after, "只能有一个 YAML 文档，请删去多余的 ---。")
        return value

    def _value(self, event: Any, loc: Loc) -> Any:
        self._check_plain(event)
        if len(loc) > MAX_DEPTH:
            self._refuse(event, f"嵌套超过 {MAX_DEPTH} 层。")
        if isinstance(event, yaml.ScalarEvent):
            return plain_scalar(event.value) if event.style is None else event.value
        return self._mapping(loc) if isinstance(event, yaml.MappingStartEvent) else self._sequence(loc)

    def _check_plain(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            self._refuse(event, "不支持锚点（&）与别名（*）；以这些符号开头的文字请加引号。")
        if event.tag is not None:
            self._refuse(event, "不支持标签（!）；以 ! 开头的文字请加引号。")

    def _sequence(self, loc: Loc) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item_loc = (*loc, len(items))
            self.lines[item_loc] = event.start_mark.line + 1
            items.append(self._value(event, item_loc))
        return items

    def _mapping(self, loc: Loc) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            key_loc = (*loc, key)
            if key in items:
                is_hidden = any(loc[: len(hidden)] == hidden for hidden in self._hidden)
                quoted = "" if is_hidden else f" {dotted(key_loc).removeprefix('cg_rag.')} "
                self._refuse(event, f"键{quoted}重复，首次出现在第 {self.lines[key_loc]} 行。")
            self.lines[key_loc] = event.start_mark.line + 1
            items[key] = self._value(next(self._events), key_loc)
        return items

    def _key(self, event: Any) -> str:
        """A key is the text as written: no key of ours is a number, and a name such as `no` is a name."""
        self._check_plain(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._refuse(event, "键须为一个词。")
        if event.value == "<<" and event.style is None:
            self._refuse(event, "不支持合并键（<<）。")
        if not event.value.isprintable():
            self._refuse(event, "键中含不可见的字符。")
        return str(event.value)

    def _refuse(self, event: Any, problem: str) -> NoReturn:
        raise ConfigError(f"{self._name}:{event.start_mark.line + 1}: {problem}")

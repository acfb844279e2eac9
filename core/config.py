"""The effective configuration: read, laid over each other, checked, printed.

Rules: default < preset < file < environment < flag. The shipped config.yaml repeats the defaults, so of that
file only what differs from them counts as written by somebody. A refusal is one line that names the place,
the key, the rule and the value; the value of a secret is never shown.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from cg_rag.core.cli import add_config_argument
from cg_rag.core.config_file import (
    ConfigError,
    Loc,
    YamlReader,
    dotted,
    one_line,
    plain_scalar,
    read_text,
    shown,
)
from cg_rag.core.config_layers import KEY_FILES, ROWS, Key, Layer, key_pairs, overlay, read_key_files
from cg_rag.core.settings import TAG_ALL, TAG_LIST, Settings, default_index_dir
from cg_rag.core.settings_table import INDEX_DIR, Setting

__all__ = ["ConfigError", "Loaded", "Settings", "add_check_arguments", "load", "plain", "render", "run_check"]

MASK = "******"
ENV_PREFIX, ENV_CONFIG = "CG_RAG_", "CG_RAG_CONFIG"

ROWS_BY_ENV = {row.env: row for row in ROWS.values() if row.env}
SECTIONS = dict.fromkeys(path[:n] for path in ROWS if path[0] != "profiles" for n in range(1, len(path)))

_ENV_BOOLS = dict.fromkeys(("1", "true", "yes", "on"), True)
_ENV_BOOLS |= dict.fromkeys(("0", "false", "no", "off"), False)
_ENV_NULLS = {"null", "none", "~"}

_ORIGIN_WORDS = {"default": "默认", "file": "配置文件", "env": "环境变量", "preset": "预设", "flag": "命令行"}


@dataclass(frozen=True)
class Loaded:
    """`origins` says for each key which layer set it: default, preset, file, env or flag."""

    settings: Settings
    origins: dict[str, str]
    path: Path | None
    warnings: list[str]


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    presets: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded:
    """The settings in force.

    The file is `path`, else CG_RAG_CONFIG, else config.yaml beside the program. `presets` and `flags` map
    keys ("server.port", or nested) to values; a flag that is None was not given. Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    shipped = Path(__file__).parent.parent / "config.yaml"
    source: Path | None = path or (Path(environ[ENV_CONFIG]).absolute() if environ.get(ENV_CONFIG) else None)
    layers = [_given_layer("preset", presets or {}, "预设")]
    if source is not None:
        layers.append(_file_layer(source))
    elif shipped.is_file():
        source = shipped
        layers.append(_written_part(_file_layer(shipped)))
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    layers += [_env_layer(environ), _given_layer("flag", given, "命令行参数")]
    values, sources = overlay(layers)
    read_key_files(values, sources)
    _set_index_dir(values, environ)
    settings = _checked(values, sources)
    origins = {
        row.key: sources[row.path].origin if row.path in sources else "default"
        for row in ROWS.values()
        if "<scope>" not in row.path
    }
    return Loaded(settings, origins, source, _unknown_variables(environ))


def _given_layer(origin: str, given: Mapping[str, Any], words: str) -> Layer:
    def place(loc: Loc) -> str:
        return words

    values = {
        path: _from_text(ROWS[path], value) if isinstance(value, str) else value
        for path, value in _flat(given, (), place, is_dotted=True)
    }
    return Layer(origin, _absolute_paths(values, Path.cwd(), place), place)


def _env_layer(environ: Mapping[str, str]) -> Layer:
    def place(loc: Loc) -> str:
        row = ROWS.get(_generic(loc))
        return f"环境变量 {row.env}" if row else "环境变量"

    values = {
        row.path: _from_text(row, environ[name].strip())
        for name, row in ROWS_BY_ENV.items()
        if environ.get(name, "").strip()
    }
    return Layer("env", _absolute_paths(values, Path.cwd(), place), place)


def _file_layer(path: Path) -> Layer:
    name = one_line(str(path))
    reader = YamlReader(name, read_text(path, name), hidden=[("cg_rag", *key) for key in KEY_FILES])
    top = reader.read()

    def place(loc: Loc) -> str:
        full: Loc = ("cg_rag", *loc)
        while full and full not in reader.lines:
            full = full[:-1]
        return f"{name}:{reader.lines[full]}" if full else name

    if not isinstance(top, dict) or "cg_rag" not in top:
        raise ConfigError(f"{name}: 缺少顶层键 cg_rag，所有设置都写在它下面。")
    for key in top:
        if key != "cg_rag":
            line = reader.lines[(key,)]
            raise ConfigError(f"{name}:{line}: 未知的顶层键 {one_line(key)}，顶层只能有 cg_rag。")
    root = {} if top["cg_rag"] is None else top["cg_rag"]
    if not isinstance(root, dict):
        raise ConfigError(f"{place(())}: cg_rag 须为一组“键: 值”（冒号为半角，后跟空格）。")
    values = dict(_flat(root, (), place))
    return Layer("file", _absolute_paths(values, path.absolute().parent, place), place)


def _written_part(layer: Layer) -> Layer:
    defaults = {path: (type(row.default), row.default) for path, row in ROWS.items()}
    written = {path: v for path, v in layer.values.items() if (type(v), v) != defaults[path]}
    return Layer(layer.origin, written, layer.place)


def _flat(
    node: Mapping[str, Any], prefix: Key, place: Callable[[Loc], str], is_dotted: bool = False
) -> Iterator[tuple[Key, Any]]:
    """(path, value) of each setting in `node`; raises ConfigError for a key that is none."""
    for name, value in node.items():
        path = (*prefix, *(name.split(".") if is_dotted else (name,)))
        if path in SECTIONS:
            if value is None:
                continue  # a section whose every line is commented out
            if not isinstance(value, Mapping):
                raise ConfigError(f"{place(path)}: {dotted(path)} 须为一组“键: 值”（冒号为半角，后跟空格）。")
            yield from _flat(value, path, place, is_dotted)
        elif path not in ROWS:
            raise ConfigError(f"{place(path)}: {_unknown_key(path)}")
        elif value is not None or ROWS[path].kind not in ("keys", "map"):
            yield path, value


def _absolute_paths(values: dict[Key, Any], base: Path, place: Callable[[Loc], str]) -> dict[Key, Any]:
    """`values` with each path made absolute: ~ is the home directory, a relative one starts at `base`."""
    for path, value in values.items():
        if ROWS[path].kind != "path" or not isinstance(value, str):
            continue
        if not value:
            values[path] = ROWS[path].default
            continue
        try:
            values[path] = base / Path(value).expanduser()
        except RuntimeError:
            raise ConfigError(f"{place(path)}: {dotted(path)} 中 ~ 所指的用户目录不存在。") from None
    return values


def _from_text(row: Setting, text: str) -> Any:
    """The value that a variable or an argument means; what is unreadable stays text, refused by its type."""
    if row.optional and text.lower() in _ENV_NULLS and text not in row.choices:
        return None
    if row.kind == "bool":
        return _ENV_BOOLS.get(text.lower(), text)
    if row.kind in ("int", "float"):
        return plain_scalar(text)
    if row.kind == "keys":
        return key_pairs(text.split(","))
    if row.kind == "list":
        return [part.strip() for part in text.split(",")]
    return text


def _set_index_dir(values: dict[Key, Any], environ: Mapping[str, str]) -> None:
    if values.get(INDEX_DIR, "") != "":
        return
    try:
        values[INDEX_DIR] = default_index_dir(environ)
    except RuntimeError:
        raise ConfigError("index.dir: 无法确定用户目录，请用 index.dir 指定索引所在文件夹。") from None


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    warnings = []
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name != ENV_CONFIG and name not in ROWS_BY_ENV:
            near = difflib.get_close_matches(name[:100], [*ROWS_BY_ENV, ENV_CONFIG], 1)
            hint = f"；是否想写 {near[0]}？" if near else "。"
            warnings.append(f"未知的环境变量 {one_line(name)}，已忽略{hint}")
    return warnings


def _checked(values: Mapping[Key, Any], sources: Mapping[Key, Layer]) -> Settings:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value
    try:
        return Settings.model_validate(tree)
    except ValidationError as failure:
        errors = failure.errors(include_url=False)
    # Raised outside the handler: the pydantic error holds the input, secrets too, and must not ride along.
    more = f"（另有 {len(errors) - 1} 处）" if len(errors) > 1 else ""
    raise ConfigError(_explained(errors[0], sources) + more)


def _explained(error: Any, sources: Mapping[Key, Layer]) -> str:
    loc: Loc = tuple(part for part in error["loc"] if part not in (TAG_ALL, TAG_LIST))
    context = error.get("ctx", {})
    if context.get("key"):
        loc = tuple(context["key"].split(".", 1))
    source = next((sources[path] for path in sources if path == loc[: len(path)]), None)
    place = source.place(loc) if source else "默认值"
    if error["type"] == "extra_forbidden":
        return f"{place}: {_unknown_key(loc)}"
    row = ROWS.get(_generic(loc))
    problem = context.get("problem") or _rule_broken(row, error)
    return f"{place}: {dotted(loc)} {problem}"


def _rule_broken(row: Setting | None, error: Any) -> str:
    if row and error["type"] == "missing":
        return f"未给出（{row.description}）。"
    value = error["input"]
    rule = f" {row.rule}" if row else "一组“键: 值”"
    found = f"收到 {shown(value)}" if row is None or row.is_quoted else "内容不予显示"
    is_text = row is not None and row.kind in ("text", "secret")
    quote = "文字请加引号。" if is_text and isinstance(value, int | float) else ""
    return f"须为{rule}，{found}。{quote}"


def _generic(loc: Loc) -> Key:
    """The path in the table of settings that `loc` is an instance of."""
    path = tuple("[]" if isinstance(part, int) else part for part in loc)
    if path[-1:] == ("[]",) and path[:-1] in ROWS and ROWS[path[:-1]].kind == "list":
        return path[:-1]
    return (path[0], "<scope>", *path[2:]) if len(path) > 1 and path[0] == "profiles" else path


def _unknown_key(loc: Loc) -> str:
    generic = _generic(loc)
    known = [path for path in (*ROWS, *SECTIONS) if not path[-1].startswith(("[", "<"))]
    siblings = [path[-1] for path in known if path[:-1] == generic[:-1]]
    # A sibling first (a slip of the pen), then the same name elsewhere (a wrong indentation).
    shown_as = {path[-1]: ".".join(path) for path in reversed(known)}
    shown_as |= {name: dotted((*loc[:-1], name)) for name in siblings}
    word = generic[-1][:100]
    near = difflib.get_close_matches(word, siblings, 1) or difflib.get_close_matches(word, shown_as, 1)
    hint = f"是否想写 {shown_as[near[0]]}？" if near else f"此处可用的键：{'、'.join(siblings)}。"
    return f"未知的键 {dotted(loc)}，{hint}"


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as JSON-able values, secrets masked at every depth."""
    return {name: _plain(getattr(settings, name)) for name in Settings.model_fields}


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def render(loaded: Loaded, reveal_origins: bool = True) -> str:
    """The effective configuration as a configuration file, each line with its origin, secrets masked."""
    head = f"# 配置文件：{one_line(str(loaded.path)) if loaded.path else '无'}"
    return "\n".join(
        [head, "cg_rag:", *_lines(plain(loaded.settings), (), loaded.origins, reveal_origins), ""]
    )


def _lines(node: Mapping[str, Any], prefix: Key, origins: Mapping[str, str], reveal: bool) -> Iterator[str]:
    for name, value in node.items():
        path = (*prefix, name)
        indent = "  " * len(path)
        if path in SECTIONS:
            yield f"{indent}{name}:"
            yield from _lines(value, path, origins, reveal)
            continue
        origin = origins[".".join(path)]
        words = f"环境变量 {ROWS[path].env}" if origin == "env" else _ORIGIN_WORDS[origin]
        yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}" + (f"  # {words}" if reveal else "")


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="输出 JSON")


def run_check(args: argparse.Namespace) -> int:
    """`cg-rag config check`: prints what is in force; 0, or 2 with one line on stderr."""
    try:
        loaded = load(Path(args.config) if args.config else None)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        body: dict[str, Any] = {"path": loaded.path and str(loaded.path), "cg_rag": plain(loaded.settings)}
        body |= {"origins": loaded.origins, "warnings": loaded.warnings}
        print(json.dumps(body, ensure_ascii=False, indent=2))
        return 0
    print(render(loaded), end="")
    for warning in loaded.warnings:
        print(f"警告：{warning}", file=sys.stderr)
    return 0

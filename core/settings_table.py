"""The table of settings, read from the models: one row for each, in their order."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, PlainSerializer, PlainValidator, SecretStr

from cg_rag.core.setting_types import Rule, Section, or_null
from cg_rag.core.settings import Profile, Selector, Settings

INDEX_DIR = ("index", "dir")

Kind = Literal["bool", "int", "float", "text", "path", "choice", "secret", "keys", "map", "list"]
_TEXTS: dict[Any, Kind] = {str: "text", Path: "path", SecretStr: "secret"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings.

    `path` is its place under `cg_rag` (("profiles", "<scope>", "include", "[]", "law") for what repeats),
    `env` its environment variable or None for what only a file can say, `rule` the values allowed in words,
    `choices` the same as texts where they are few, `is_quoted` whether a refusal may show the value,
    `default` as YAML would write it.
    """

    path: tuple[str, ...]
    env: str | None
    kind: Kind
    optional: bool
    rule: str
    choices: tuple[str, ...]
    is_quoted: bool
    default: Any
    required: bool
    description: str

    @property
    def key(self) -> str:
        return ".".join(self.path).replace(".[]", "[]")


@cache
def settings_table() -> tuple[Setting, ...]:
    """Every setting in the order of the models. Sections are no rows; `profiles` and what is below it are."""
    return tuple(_rows(Settings, ()))


def _rows(model: type[BaseModel], prefix: tuple[str, ...]) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _rows(field.annotation, path)
            continue
        yield _row(path, field)
        if path == ("profiles",):
            yield from _rows(Profile, (*path, "<scope>"))
        if path == ("profiles", "<scope>", "include"):
            yield from _rows(Selector, (*path, "[]"))


def _row(path: tuple[str, ...], field: Any) -> Setting:
    value = _describe(field.annotation, field.metadata)
    default: Any = None
    if not field.is_required():
        default = "" if path == INDEX_DIR else _plain_default(field.get_default(call_default_factory=True))
    return Setting(
        path=path,
        env=None if path[0] == "profiles" else "CG_RAG_" + "_".join(path).upper(),
        kind=value.kind,
        optional=value.optional,
        rule=or_null(value.words) if value.optional else value.words,
        choices=value.choices,
        is_quoted=value.is_quoted,
        default=default,
        required=field.is_required(),
        description=field.description,
    )


def _plain_default(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, Mapping):
        return value
    return {name: item.model_dump() if isinstance(item, Section) else item for name, item in value.items()}


@dataclass(frozen=True, slots=True)
class _Values:
    """What an annotated type allows; `optional` is whether null is allowed."""

    kind: Kind
    words: str
    optional: bool = False
    choices: tuple[str, ...] = ()
    is_quoted: bool = True


def _describe(annotation: Any, metadata: list[Any]) -> _Values:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType) and type(None) in arguments:
        return replace(_describe(next(a for a in arguments if a is not type(None)), metadata), optional=True)
    if origin is Annotated:
        return _describe(arguments[0], [*metadata, *arguments[1:]])
    if origin is Literal:
        return _Values("choice", " 或 ".join(arguments), choices=arguments)
    if origin is tuple:
        item = _describe(arguments[0], [])
        return replace(item, kind="list", words=f"{item.words}的列表")
    if annotation is bool:
        return _Values("bool", "true 或 false")
    if annotation in (int, float):
        low = next(m.ge for m in metadata if hasattr(m, "ge"))
        high = next(m.le for m in metadata if hasattr(m, "le"))
        is_int = annotation is int
        return _Values("int" if is_int else "float", f"{low}..{high} 的{'整数' if is_int else '数'}")
    if annotation in _TEXTS:
        rule = next(m for m in metadata if isinstance(m, Rule))
        return _Values(_TEXTS[annotation], rule.words, is_quoted=rule.is_quoted)
    if PlainSerializer in map(type, metadata):
        is_keys = any(isinstance(m, PlainValidator) for m in metadata)
        words = "名称到密钥的映射" if is_keys else "名称到范围的映射"
        return _Values("keys" if is_keys else "map", words, is_quoted=not is_keys)
    return _Values("map", "all 或选择器列表")

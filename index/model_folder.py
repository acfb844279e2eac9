"""A model folder: `cg_rag_model.json` says what the model expects, and the digests of its files.

Rule: what differs between models stands in the folder, never in code. Every key is known, every file that is
opened has a recorded SHA-256, and the fingerprint covers the whole settings file, so the files as well.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cg_rag.index.external_data import check_inside
from cg_rag.index.model_errors import ModelInvalid, ModelMissing

SETTINGS_FILE = "cg_rag_model.json"
MAX_SETTINGS_BYTES = 1 << 20
FINGERPRINT_CHARS = 16
TYPE_NAMES = {"str": "字符串", "int": "整数", "bool": "true 或 false", "NoneType": "null"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """`raw` is the settings file without the key sha256; `digests` maps file names to hex SHA-256. A file that the
    folder lacks may lie in `shared`, the folder of another bundled model."""

    path: Path
    raw: Mapping[str, Any]
    digests: Mapping[str, str]
    fingerprint: str
    shared: Path | None = None

    @classmethod
    def open(cls, path: Path, kind: str, shared: Path | None = None) -> ModelFolder:
        """Read the settings of a folder made for `kind` ("embedder", "reranker"). ModelMissing, ModelInvalid."""
        place = path / SETTINGS_FILE
        raw = _read_object(place)
        if raw.get("kind") != kind:
            raise ModelInvalid(str(place), f"kind 须为 {kind!r}，实为 {raw.get('kind')!r}")
        digests = raw.get("sha256")
        if not isinstance(digests, dict) or not all(isinstance(value, str) for value in digests.values()):
            raise ModelInvalid(str(place), "缺少 sha256：各模型文件的摘要")
        canonical = json.dumps(raw, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        try:
            encoded = canonical.encode()
        except UnicodeEncodeError as error:
            raise ModelInvalid(str(place), "含有孤立的代理字符") from error
        fingerprint = hashlib.sha256(encoded).hexdigest()[:FINGERPRINT_CHARS]
        rest = {key: value for key, value in raw.items() if key != "sha256"}
        return cls(path, rest, digests, fingerprint, shared)

    def find_file(self, name: str) -> Path:
        """The file `name` inside the folder. ModelMissing, ModelInvalid (it leads out of the folder)."""
        try:
            return check_inside(self.path, name)
        except ModelMissing:
            if self.shared is None:
                raise
            return check_inside(self.shared, name)

    def check_digests(self, files: Sequence[Path]) -> None:
        """Raise ModelInvalid for the first file that has no recorded digest, or another one.

        About 25 ms for 31 MB; a server calls it in a thread.
        """
        for file in files:
            is_shared = self.shared is not None and file.is_relative_to(self.shared)
            name = file.name if is_shared else file.relative_to(self.path).as_posix()
            expected = self.digests.get(name, "未记录")
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != expected.lower():
                raise ModelInvalid(str(file), f"SHA-256 应为 {expected}，实为 {found}")


def parse_settings(kind: type[T], raw: Mapping[str, Any], place: str) -> T:
    """`raw` as the dataclass `kind`: unknown or missing keys and wrong types are ModelInvalid with the key.

    Bounds are the dataclass's own: a ValueError of its __post_init__ becomes the reason.
    """
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(raw.keys() - fields.keys()):
        raise ModelInvalid(place, f"未知的设置项 {'、'.join(unknown)}")
    for name, field in fields.items():
        if name not in raw and field.default is dataclasses.MISSING:
            raise ModelInvalid(place, f"缺少设置项 {name}")
        if name in raw and not _fits(raw[name], hints[name]):
            raise ModelInvalid(place, f"设置项 {name} 须为{_describe(hints[name])}，实为 {raw[name]!r}")
    try:
        return kind(**raw)
    except ValueError as exc:
        raise ModelInvalid(place, str(exc)) from exc


def check_range(name: str, value: int, low: int, high: int) -> None:
    """For bounds in a __post_init__."""
    if not low <= value <= high:
        raise ValueError(f"{name} 须在 {low}..{high} 之间，收到 {value}。")


@dataclass(frozen=True, slots=True)
class Template:
    """Text with {names}. Values are put in as they are: braces inside a value mean nothing."""

    parts: tuple[tuple[str, str], ...]  # (literal text, name after it or "")

    @classmethod
    def parse(cls, text: str, names: Sequence[str]) -> Template:
        """Raises ValueError (Chinese) for a broken template, a name not in `names`, a format spec."""
        parts = []
        for literal, name, spec, conversion in _split(text):
            if name is not None and (name not in names or spec or conversion):
                raise ValueError(f"模板 {text!r} 中只能使用 {'、'.join('{' + item + '}' for item in names)}")
            parts.append((literal, name or ""))
        return cls(tuple(parts))

    def render(self, values: Mapping[str, str]) -> str:
        return "".join(literal + (values[name] if name else "") for literal, name in self.parts)

    def uses(self, name: str) -> bool:
        return any(name == used for _, used in self.parts)


def _split(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(text))
    except ValueError as exc:
        raise ValueError(f"模板 {text!r} 的花括号不成对") from exc


def _read_object(place: Path) -> dict[str, Any]:
    try:
        with place.open("rb") as file:
            data = file.read(MAX_SETTINGS_BYTES + 1)
    except OSError as exc:
        raise ModelMissing(str(place)) from exc
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ModelInvalid(str(place), "不是有效的 JSON") from exc
    if not isinstance(value, dict):
        raise ModelInvalid(str(place), "须为一个 JSON 对象")
    return value


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    return type(value) is hint  # exactly: true is no integer here


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " " + " / ".join(get_args(hint))
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return "或".join(TYPE_NAMES[option.__name__] for option in options)

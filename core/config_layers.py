"""What each source says, laid over each other; keys that are in files of their own.

Rule: a key has a second way to be given, the setting of its name with `_file`. One layer gives one of the two,
and whichever a higher layer gives takes the place of both below it. What such a file holds is never quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cg_rag.core.config_file import ConfigError, Loc, YamlReader, dotted, one_line, read_text
from cg_rag.core.settings_table import settings_table

Key = tuple[str, ...]

ROWS = {row.path: row for row in settings_table()}
# Each setting that is a key or holds keys -> the setting that names its file.
KEY_FILES = {
    path: (*path[:-1], f"{path[-1]}_file") for path, row in ROWS.items() if row.kind in ("secret", "keys")
}
# Whoever gives the left side takes back what a lower layer said of the right side: keys come from one place,
# and a preset's active scope means nothing in the profiles of a site.
TAKES_BACK = {**KEY_FILES, **{file: key for key, file in KEY_FILES.items()}, ("profiles",): ("active_scope",)}

_KEY_LINE = re.compile(r"[A-Za-z0-9._-]+\s*=")


@dataclass(frozen=True)
class Layer:
    """What one source says: `values` by path, `place` names the source of one of them in an error."""

    origin: str
    values: dict[Key, Any]
    place: Callable[[Loc], str]


def key_pairs(entries: Iterable[str]) -> list[tuple[str, str]]:
    """`name=key` texts -> (name, key) pairs, unchecked."""
    parts = [entry.partition("=") for entry in entries]
    return [(name.strip(), key.strip()) for name, _, key in parts]


def overlay(layers: Iterable[Layer]) -> tuple[dict[Key, Any], dict[Key, Layer]]:
    """The value of each setting that a layer gives, and that layer; `layers` from lowest to highest."""
    values: dict[Key, Any] = {}
    sources: dict[Key, Layer] = {}
    for layer in layers:
        _check_one_way(layer)
        for path, other in TAKES_BACK.items():
            if layer.values.get(path):
                values.pop(other, None)
                sources.pop(other, None)
        values.update(layer.values)
        sources.update(dict.fromkeys(layer.values, layer))
    return values, sources


def _check_one_way(layer: Layer) -> None:
    for key, file in KEY_FILES.items():
        if layer.values.get(key) and layer.values.get(file):
            raise ConfigError(f"{layer.place(file)}: {dotted(key)} 与 {dotted(file)} 只能给出一个。")


def read_key_files(values: dict[Key, Any], sources: dict[Key, Layer]) -> None:
    """Put what each `…_file` holds in the place of its key. Raises ConfigError for a file that holds none."""
    for key, file in KEY_FILES.items():
        path = values.get(file)
        if not isinstance(path, Path):
            continue
        name = one_line(str(path))
        origin = sources[file]
        place = f"{origin.place(file)}: {dotted(file)} {name}"
        text = read_text(path, place)
        values[key] = _parse_keys(name, text) if ROWS[key].kind == "keys" else _only_line(place, text)
        sources[key] = Layer(origin.origin, {}, _placed_in(name))


def _placed_in(name: str) -> Callable[[Loc], str]:
    return lambda loc: name


def _parse_keys(name: str, text: str) -> Any:
    entries = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    is_lines = entries and _KEY_LINE.match(entries[0])
    keys = key_pairs(entries) if is_lines else YamlReader(name, text, hidden=[()]).read()
    if not keys:
        raise ConfigError(f"{name}: 密钥文件中没有任何密钥。")
    return keys


def _only_line(place: str, text: str) -> str:
    lines = text.strip().splitlines()
    if len(lines) != 1:
        raise ConfigError(f"{place}: {'密钥文件须只有一行' if lines else '密钥文件是空的'}。")
    return lines[0]

"""Prompt files, closed vocabularies, and the pins that hold them.

Rule: a file here is used byte for byte. `pins.json` holds the SHA-256 of each; a file that differs is reported at
start, and with strict pins the service refuses to start.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
PINS = "pins.json"


@dataclass(frozen=True, slots=True)
class Prompt:
    """`name` is the path below prompts/, `sha256` of the bytes of the file."""

    name: str
    text: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`found` is "" for a file that is missing, `expected` is "" for one that is not pinned."""

    name: str
    expected: str
    found: str


def load(name: str, directory: Path = DIRECTORY) -> Prompt:
    """Read one file. Raises OSError when it is missing."""
    data = (directory / name).read_bytes()
    return Prompt(name, data.decode("utf-8"), hashlib.sha256(data).hexdigest())


def pinned_files(directory: Path = DIRECTORY) -> list[str]:
    """Every file that has to be pinned, as paths below `directory`."""
    paths = [*directory.rglob("*.txt"), *directory.rglob("*.json")]
    return sorted(path.relative_to(directory).as_posix() for path in paths if path.name != PINS)


def verify(directory: Path = DIRECTORY) -> list[Mismatch]:
    """Compare the files with the pins; an empty list means that all is as it was reviewed. Pins that cannot be read
    are a mismatch of pins.json itself."""
    try:
        pins: dict[str, str] = json.loads((directory / PINS).read_bytes())
    except (OSError, ValueError):
        return [Mismatch(PINS, "", "")]
    found = {name: load(name, directory).sha256 for name in pinned_files(directory)}
    names = sorted(pins.keys() | found.keys())
    return [
        Mismatch(name, pins.get(name, ""), found.get(name, ""))
        for name in names
        if pins.get(name) != found.get(name)
    ]


def write_pins(directory: Path = DIRECTORY) -> None:
    """Take the files as they are for the reviewed ones; the diff of pins.json is reviewed like code."""
    pins = {name: load(name, directory).sha256 for name in pinned_files(directory)}
    (directory / PINS).write_text(json.dumps(pins, indent=2, ensure_ascii=False) + "\n", "utf-8")


@cache
def taxonomy_version() -> str:
    """The version string of the hazard categories, for health and for every vision report."""
    version: str = json.loads(load("taxonomy.json").text)["version"]
    return version

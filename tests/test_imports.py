"""Who may import whom: the arrows of the design, read from the syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("core", "index", "modes", "prompts")
ALLOWED = {
    "core": {"core"},
    "index": {"index"},
    "prompts": {"prompts"},
    "modes": {"modes", "core", "index", "prompts"},
}
# Third-party packages a directory may use.
PACKAGES = {
    "core": {"aiohttp", "multidict", "orjson", "pydantic", "pydantic_core", "yaml"},
    "index": {"numpy", "orjson", "tokenizers"},
    "prompts": set(),
    "modes": {"aiohttp", "numpy", "pydantic"},
}
# A mode knows no other mode but these.
MODE_EDGES = {
    ("health", "retrieve"),
    ("http_app", "health"),
    ("rag", "retrieve"),
    ("rag", "generate"),
    ("ask", "rag"),
}


def modules() -> list[Path]:
    return [path for name in DIRECTORIES for path in sorted((ROOT / name).rglob("*.py"))]


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write cg_rag.…, not a relative import"
            base = node.module or ""
            found |= {f"{base}.{alias.name}" for alias in node.names} if base.startswith("cg_rag") else {base}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_downwards_only(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    for name in imports_of(path):
        if name == "cg_rag" or not name.startswith("cg_rag."):
            continue
        assert name.split(".")[1] in ALLOWED[layer], f"{path} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_named_packages_are_used(path: Path) -> None:
    import sys

    layer = path.relative_to(ROOT).parts[0]
    for name in imports_of(path):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top == "cg_rag":
            continue
        assert top in PACKAGES[layer], f"{path} imports {top}"


def test_modes_know_each_other_only_where_it_is_written_down() -> None:
    names = {path.stem for path in (ROOT / "modes").glob("*.py")} - {
        "__init__",
        "services",
        "upstreams",
        "http_app",
    }
    edges = set()
    for path in (ROOT / "modes").glob("*.py"):
        if path.stem == "__init__":
            continue
        for name in imports_of(path):
            parts = name.split(".")
            if parts[:2] == ["cg_rag", "modes"] and parts[2] in names and parts[2] != path.stem:
                edges.add((path.stem, parts[2]))
    assert edges <= MODE_EDGES

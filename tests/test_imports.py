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
    "modes": {"aiohttp", "numpy", "orjson", "pydantic"},
}
# What one file alone may use: it is run by hand, with more installed than the service needs, or imported only when
# its part of the service is wanted (mcp takes a second and 30 MB).
BY_HAND = {"index/models/train_statute_ce_6l.py": {"torch"}}
OWN_PACKAGES = BY_HAND | {
    "core/mcp_http.py": {"anyio", "mcp", "mcp_types"},
    "index/milvus.py": {"grpc", "pymilvus"},
    "core/metrics.py": {"prometheus_client"},
    "core/shared_counts.py": {"prometheus_client"},
    "core/steady_counts.py": {"prometheus_client"},
    "core/answers.py": {"typing_extensions"},
    "core/health_answer.py": {"typing_extensions"},
    "core/vision_answers.py": {"typing_extensions"},
}
OWN_PACKAGES |= {f"core/delivery/{name}.py": {"packaging"} for name in ("closure", "make", "wheels")}
# A mode knows no other mode but these.
MODE_EDGES = {
    ("evaluate_vision", "evaluated_service"),
    ("evaluate_vision", "vision_measure"),
    ("evaluate_vision", "vision_page"),
    ("evaluate_vision", "vision_tables"),
    ("health", "retrieve"),
    ("http_app", "health"),
    ("http_app", "answers"),
    ("http_app", "mcp_tools"),
    ("http_app", "metrics"),
    ("mcp_tools", "health"),
    ("rag", "retrieve"),
    ("rag", "generate"),
    ("verify", "retrieve"),
    ("vision_page", "vision_measure"),
    ("vision_page", "vision_tables"),
    ("vision_tables", "vision_measure"),
    ("vision_agentic", "retrieve"),
    ("vision_search", "retrieve"),
    ("vision_hybrid", "retrieve"),
    ("vision_hybrid", "vision_answer"),
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
    allowed = PACKAGES[layer] | OWN_PACKAGES.get(path.relative_to(ROOT).as_posix(), set())
    for name in imports_of(path):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top == "cg_rag":
            continue
        assert top in allowed, f"{path} imports {top}"


def test_nothing_imports_the_scripts_that_are_run_by_hand() -> None:
    scripts = {f"cg_rag.{path.removesuffix('.py').replace('/', '.')}" for path in BY_HAND}
    for path in modules():
        assert not scripts & {name.rpartition(".")[0] for name in imports_of(path)} | scripts & imports_of(
            path
        )


def test_mcp_is_imported_by_a_service_that_offers_it_and_by_nobody_else() -> None:
    importers = {
        (str(path.relative_to(ROOT)), isinstance(node, ast.Module))
        for path in modules()
        for outer in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node := outer, ast.Module | ast.FunctionDef)
        for inner in node.body
        if isinstance(inner, ast.ImportFrom) and inner.module == "cg_rag.core.mcp_http"
    }
    assert importers == {("modes/http_app.py", False)}


def test_pymilvus_is_imported_when_it_is_used_and_not_before() -> None:
    tree = ast.parse((ROOT / "index" / "milvus.py").read_text("utf-8"))
    at_the_top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert not at_the_top & {"grpc", "pymilvus"}


def test_modes_know_each_other_only_where_it_is_written_down() -> None:
    names = {path.stem for path in (ROOT / "modes").glob("*.py")} - {
        "__init__",
        "services",
        "once",
        "upstreams",
        "http_app",
        "vision_intake",
        "vision_search",
        "vision_rules",
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


def test_both_tables_of_reasons_are_the_same_and_nobody_shows_the_system_s_own_words() -> None:
    """index/ imports nothing of core/, so the table is there twice. prompts/ has its one message for developers."""

    def table(path: str) -> str:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        (found,) = [
            node
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and node.simple and ast.unparse(node.target) == "_REASONS"
        ]
        assert found.value is not None
        return ast.unparse(found.value)

    assert table("core/os_words.py") == table("index/os_words.py")
    files = [
        ROOT / "cg_rag.py",
        *(path for folder in ("core", "index", "modes") for path in (ROOT / folder).rglob("*.py")),
    ]
    assert [path.name for path in files if "strerror" in path.read_text("utf-8")] == []

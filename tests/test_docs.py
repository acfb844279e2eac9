"""The documents are held to the code in both directions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from cg_rag.core.errors import ERRORS
from cg_rag.modes import MODES, STREAMS

ROOT = Path(__file__).resolve().parent.parent


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_every_error_code_is_documented_with_its_status_and_no_other() -> None:
    rows = re.findall(r"^\| ([a-z_.]+) \| (\d{3}) \|", read("docs/errors.md"), re.MULTILINE)
    assert {code: int(status) for code, status in rows} == {
        code: kind.status for code, kind in ERRORS.items()
    }


def test_every_error_code_is_raised_somewhere() -> None:
    raised = set()
    for path in [ROOT / "cg_rag.py", *(p for d in ("core", "modes") for p in (ROOT / d).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CgError" and node.args:
                first = node.args[0]
                assert isinstance(first, ast.Constant | ast.Name | ast.Attribute), path
                if isinstance(first, ast.Constant):
                    assert first.value in ERRORS, f"{path}: {first.value}"
                    raised.add(first.value)
    assert raised == set(ERRORS)


def test_every_route_is_documented_and_no_other() -> None:
    documented = set(
        re.findall(r"^\| `(GET|POST) /cg-rag(/[a-z./-]+)` \|", read("docs/http.md"), re.MULTILINE)
    )
    gets = {("GET", path) for path in ("/health", "/ready", "/profiles", "/openapi.json")}
    streams = {("POST", f"{path}/stream") for path in STREAMS}
    assert documented == gets | {("POST", path) for path in MODES} | streams


def test_every_request_field_is_documented() -> None:
    text = read("docs/http.md")
    for path, mode in MODES.items():
        section = text.split(f"## POST /cg-rag{path}")[1].split("\n## ")[0]
        fields = set(re.findall(r"^\| (\w+) \| (?:string|integer|boolean|array)", section, re.MULTILINE))
        assert fields == set(mode.Request.model_fields)


def test_both_readmes_show_the_two_commands() -> None:
    for name in ("README.md", "README.zh.md"):
        text = read(name)
        assert "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/cg-rag demo" in text
        assert (
            "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/python -m pytest" in text
        )
        first = next(
            number for number, line in enumerate(text.splitlines(), 1) if line.startswith("python3 -m venv")
        )
        assert first <= 15


def test_links_between_documents_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} -> {target}"

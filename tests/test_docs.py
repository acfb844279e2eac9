"""The documents are held to the code in both directions."""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path
from typing import get_args

from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from cg_rag import COMMANDS, Command
from cg_rag.core import json_rpc, mcp_channel
from cg_rag.core.agentic_report import ResetReason
from cg_rag.core.citation_precision import SUPPORT_SHARE
from cg_rag.core.delivery.command import add_wheelhouse_arguments
from cg_rag.core.errors import ERRORS, CgError
from cg_rag.core.evidence import MIN_CAP
from cg_rag.core.hybrid_report import NOTHING_FOUND, NUM_BASES
from cg_rag.core.hybrid_text import DOCUMENTS_A_ROUND
from cg_rag.core.mcp_config import KEY_PLACEHOLDER, client_configuration
from cg_rag.core.photo_asking import MAX_FAILURES
from cg_rag.core.photo_client import SETTLED, STOPS
from cg_rag.core.photo_labels import FIELDS
from cg_rag.core.photo_verdict import MATCHES
from cg_rag.core.profile import PROFILES
from cg_rag.core.report import HAZARD_WORDS, SCENE_WORDS
from cg_rag.core.requests import RequestModel, parse_request
from cg_rag.core.search_calls import MAX_CALLS, TOOL_NAME
from cg_rag.core.tools import OPERATION_FAILED, failed
from cg_rag.core.vision_settings import MIN_PHOTO_BODY_BYTES
from cg_rag.index.metrics import RESAMPLES
from cg_rag.modes import MODES, STREAMS, evaluate_vision, vision_agentic, vision_answer, vision_hybrid
from cg_rag.modes.http_app import LARGE_ANSWER_BYTES
from cg_rag.modes.mcp_tools import ENTRIES
from cg_rag.modes.once import REASONS
from cg_rag.modes.vision_rules import load_vision_taxonomy

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
    gets = {
        ("GET", path) for path in ("/console", "/health", "/ready", "/profiles", "/metrics", "/openapi.json")
    }
    streams = {("POST", f"{path}/stream") for path in STREAMS}
    assert documented == gets | {("POST", path) for path in (*MODES, "/mcp/")} | streams


def test_every_command_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| `cg-rag ([a-z -]*[a-z])\b[^`]*` \|", read("docs/commands.md"), re.MULTILINE)
    commands = []
    for name, entry in COMMANDS.items():
        commands += [name] if isinstance(entry, Command) else [f"{name} {below}" for below in entry]
    assert sorted(documented) == sorted(commands)


def test_every_request_field_is_documented() -> None:
    text = read("docs/http.md") + "\n" + read("docs/vision.md")
    for path, mode in MODES.items():
        section = text.split(f"## POST /cg-rag{path}")[1].split("\n## ")[0]
        fields = set(re.findall(r"^\| (\w+) \| (?:string|integer|boolean|array)", section, re.MULTILINE))
        assert fields == set(mode.Request.model_fields)


def test_every_mcp_tool_is_documented_with_its_parameters_and_no_other() -> None:
    rows = re.findall(r"^\| `(cg_\w+)` \| ([^|]*) \|", read("docs/mcp.md"), re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", parameters) for name, parameters in rows}
    assert documented == {entry.name: list(entry.parameters) for entry in ENTRIES}
    for entry in ENTRIES:
        fields = MODES[entry.mode].Request.model_fields if entry.mode is not None else {}
        assert set(entry.parameters) <= set(fields)
        assert f"{entry.mode}`" in read("docs/mcp.md") or entry.mode is None


def test_mcp_document_shows_what_the_code_says() -> None:
    text = read("docs/mcp.md")
    shown = json.dumps(client_configuration("127.0.0.1", 8864, False), ensure_ascii=False, indent=2)
    assert shown in text
    assert KEY_PLACEHOLDER in text
    assert f"每 {mcp_channel.PING_SECONDS:.0f} 秒" in text
    assert f"每 {mcp_channel.PROGRESS_SECONDS:.0f} 秒" in text
    assert f"最近 {mcp_channel.MAX_UNSENT_MESSAGES} 条" in text
    assert f"错误码 {json_rpc.REQUEST_CANCELLED}" in text
    assert f"至多 {MIN_PHOTO_BODY_BYTES // 1024**2} MiB" in text
    assert f"超过 {LARGE_ANSWER_BYTES // 1024} KiB" in text
    assert OPERATION_FAILED in text
    versions = re.findall(r"`(20\d\d-\d\d-\d\d)`", text)
    assert tuple(versions) == KNOWN_PROTOCOL_VERSIONS
    example = re.search(r"失败的例子：\n\n```json\n(.*?)```", text, re.DOTALL)
    assert example is not None
    wrong = failed("cg_rag", invalid(MODES["/rag"].Request, {"query": "x", "topk": 0}))
    assert json.loads(example[1]) == wrong


def invalid(model: type[RequestModel], body: dict[str, object]) -> CgError:
    try:
        parse_request(model, body)
    except CgError as error:
        return error
    raise AssertionError("the body is valid")


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


def test_deploy_document_shows_the_files_and_options_that_there_are() -> None:
    text = read("docs/deploy.md")
    assert f"```nginx\n{read('core/delivery/files/nginx.conf')}```" in text
    limits = re.findall(r"^Memory(?:High|Max)=.*$", read("core/delivery/files/cg-rag.service"), re.MULTILINE)
    assert all(f"`{limit}`" in text for limit in limits)
    parser = argparse.ArgumentParser()
    add_wheelhouse_arguments(parser)
    options = {word for action in parser._actions for word in action.option_strings if word.startswith("--")}
    scripted = set(re.findall(r"--[a-z-]+", read("core/delivery/files/install.sh").split("fail()")[0]))
    section = text.split("## 制作离线交付件")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE)) == options - {"--help"}
    section = text.split("## 安装")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE)) == scripted - {"--help"}


def test_links_between_documents_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} -> {target}"


def test_the_vision_page_tells_the_closed_lists_the_reasons_and_the_codes_as_they_are() -> None:
    text = read("docs/vision.md")
    section = text.split("## 隐患分类与标签")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\S+) \| (\S+) \|$", section, re.MULTILINE)[1:]
    taxonomy = load_vision_taxonomy()
    assert tuple(category for category, _ in rows if set(category) != {"-"}) == taxonomy.categories
    labels = [label for _, row in rows for label in row.split("、") if set(label) != {"-"}]
    assert sorted(labels) == sorted(taxonomy.labels)
    codes = re.findall(r"^\| ([a-z_.]+) \| (\d{3}) \|", text, re.MULTILINE)
    assert {code for code, _ in codes} >= {*vision_answer.CODES, *vision_agentic.CODES}
    assert all(ERRORS[code].status == int(status) for code, status in codes)
    assert {code for code, _ in codes} >= set(vision_hybrid.CODES)
    told = re.findall(r"^\| (correction|format|level|salvage|thinking) \|", text, re.MULTILINE)
    assert set(told) == {"correction", "thinking", *get_args(ResetReason)} == set(REASONS)
    for word in HAZARD_WORDS:
        assert word in text.split("### 报告还是直接回答")[1].split("\n#")[0]
    for words in SCENE_WORDS.values():
        assert f"场景：{words}" in text


def test_the_section_on_hybrid_tells_its_bounds_and_words_as_they_are() -> None:
    section = read("docs/vision.md").split("## POST /cg-rag/vision/hybrid")[1].split("\n## ")[0]
    assert f"null 为 {vision_hybrid.DEFAULT_ROUNDS}，" in section
    assert f"每轮固定 {DOCUMENTS_A_ROUND} 条" in section
    assert f"每轮至多 {MAX_CALLS} 次" in section
    assert f"恰为 {NUM_BASES} 条" in section
    assert f"至多 {MIN_CAP} 条" in section
    for word in (vision_hybrid.MATCH_TYPE, NOTHING_FOUND, f"`{TOOL_NAME}(query)`"):
        assert word in section


def test_the_page_of_the_vision_evaluation_tells_options_columns_and_numbers_as_they_are() -> None:
    text = read("docs/vision-eval.md")
    parser = argparse.ArgumentParser(add_help=False)
    evaluate_vision.add_eval_vision_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    section = text.split("## 选项")[1].split("\n## ")[0]
    rows = "".join(row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `"))
    assert set(re.findall(r"--[a-z-]+", rows)) == options | {"--config", "--index-dir"}
    for words in FIELDS.values():
        assert any(all(word in row for word in words) for row in text.splitlines() if row.startswith("|"))
    for name in evaluate_vision.LABEL_FILES:
        assert f"`{name}`" in text
    for match in MATCHES:
        assert f"| `{match}`" in text
    for code in SETTLED:
        assert f"`{code}`" in text.split("## 中断与继续")[1]
    assert set(ERRORS) >= SETTLED | STOPS - {"unreachable"}
    assert f"至少有 {SUPPORT_SHARE:.0%}" in text
    assert f"连续 {MAX_FAILURES} 张" in text
    assert f"重抽样 {RESAMPLES} 次" in text
    assert set(PROFILES) <= set(re.findall(r"^\| `(\w+)` \| [\d.]+% \|", text, re.MULTILINE))

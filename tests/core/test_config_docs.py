"""config.yaml, docs/config.md and the models say the same, in both directions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from cg_rag.core.config import load
from cg_rag.core.settings import Settings
from cg_rag.core.settings_table import Setting, settings_table

ROOT = Path(__file__).parents[2]
ROWS = {row.key: row for row in settings_table()}
FILE_ONLY = "只能写在文件中"


def yaml_text(value: Any) -> str:
    """`value` as config.yaml and the table write it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return json.dumps(value)
    if isinstance(value, str) and (not value or value[0] == "{"):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def config_lines() -> dict[str, tuple[str, str]]:
    """key -> (the line above it, the value written) for every line of config.yaml that is a setting."""
    found: dict[str, tuple[str, str]] = {}
    stack: list[str] = []
    above = ""
    for line in (ROOT / "config.yaml").read_text("utf-8").splitlines():
        match = re.fullmatch(r"( *)([a-z_]+):(?: (.*))?", line)
        if match:
            stack[len(match[1]) // 2 :] = [match[2]]
            key = ".".join(stack[1:]).replace("profiles.full", "profiles.<scope>")
            if key in ROWS or match[3] is not None:
                found[key] = (above.strip(), match[3] or "")
        above = line
    return found


def doc_rows() -> dict[str, list[str]]:
    table = re.findall(r"^\| (`.*) \|$", (ROOT / "docs" / "config.md").read_text("utf-8"), re.M)
    rows = [line.split(" | ") for line in table]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0].strip("`"): row[1:] for row in rows}


def where(row: Setting) -> str:
    return f"环境变量：{row.env}" if row.env else FILE_ONLY


def test_config_yaml_lists_exactly_the_settings_each_with_its_comment() -> None:
    lines = config_lines()
    expected = {key: row for key, row in ROWS.items() if "[]" not in key}
    assert list(lines) == list(expected)
    for key, row in expected.items():
        assert lines[key][0] == f"# {row.description}。取值：{row.rule}。{where(row)}"


def test_config_yaml_shows_every_key_of_a_selector_in_its_example() -> None:
    text = (ROOT / "config.yaml").read_text("utf-8")
    example = text[text.index("# include:") :]
    for row in ROWS.values():
        if "[]" in row.key:
            assert f"{row.path[-1]}: " in example


def test_values_in_config_yaml_are_the_defaults() -> None:
    for key, (_, written) in config_lines().items():
        if not key.startswith("profiles"):
            assert written == yaml_text(ROWS[key].default), key
    loaded = load(ROOT / "config.yaml", environ={"XDG_DATA_HOME": "/data"})
    default = load(environ={"XDG_DATA_HOME": "/data"}, flags={}).settings
    assert loaded.settings == default
    assert default.model_copy(update={"index": Settings().index}) == Settings()


def test_document_lists_exactly_the_settings_with_names_defaults_bounds_and_meaning() -> None:
    rows = doc_rows()
    assert list(rows) == list(ROWS)
    for key, row in ROWS.items():
        default = "（必填）" if row.required else f"`{yaml_text(row.default)}`"
        if key == "profiles":
            default = "`full`（全库）"
        env = f"`{row.env}`" if row.env else FILE_ONLY
        assert rows[key] == [env, default, row.rule, row.description], key


def test_every_variable_named_in_the_document_exists() -> None:
    known = {row.env for row in ROWS.values()} | {"CG_RAG_CONFIG"}
    text = (ROOT / "docs" / "config.md").read_text("utf-8")
    assert set(re.findall(r"CG_RAG_[A-Z_]*[A-Z]", text)) == known - {None}


def test_every_example_of_a_configuration_in_the_document_loads(tmp_path: Path) -> None:
    (tmp_path / "api_keys.txt").write_text("site=0123456789abcdef\n")
    for name in ("embedding.key", "rerank.key", "generation.key", "vision.key", "hybrid.key", "milvus.token"):
        (tmp_path / name).write_text("0123456789abcdef\n")
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "config.md").read_text("utf-8"), re.S)
    assert len(blocks) == 7
    for block in blocks:
        (tmp_path / "example.yaml").write_text(block, "utf-8")
        assert load(tmp_path / "example.yaml", environ={}).settings


def test_every_setting_has_its_own_variable_bounds_and_a_chinese_sentence() -> None:
    variables = [row.env for row in ROWS.values() if row.env]
    assert len(set(variables)) == len(variables)
    for row in ROWS.values():
        assert re.search(r"[\u4e00-\u9fff]", row.description), row.key
        if row.kind in ("int", "float"):
            assert re.match(r"-?[0-9.]+\.\.[0-9.]+ 的(整数|数)", row.rule), row.key
        if not row.key.startswith("profiles"):
            assert row.env == "CG_RAG_" + row.key.replace(".", "_").upper()


def test_shipped_file_means_the_same_to_an_ordinary_yaml_reader() -> None:
    text = (ROOT / "config.yaml").read_text("utf-8")
    tree = yaml.safe_load(text)["cg_rag"]
    for key, row in ROWS.items():
        if key.startswith("profiles"):
            continue
        node = tree
        for name in row.path:
            node = node[name]
        assert node == row.default, key

"""load(), render() and `config check`, on real files."""

from __future__ import annotations

import argparse
import codecs
import json
import logging
import os
import pickle
import re
import traceback
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cg_rag.core import config
from cg_rag.core.config import ConfigError, Loaded, load, plain, render, run_check
from cg_rag.core.config_file import MAX_FILE_BYTES
from cg_rag.core.providers import PROVIDER_NAMES, StructuredOutput, ThinkingControl
from cg_rag.core.setting_types import is_endpoint
from cg_rag.core.settings import generation_api_key, is_loopback
from cg_rag.core.settings_table import Setting, settings_table
from cg_rag.core.upstream import UpstreamSettings

CANARY = "canary-0123456789abcdef"
OTHER = "other-key-0123456789"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a configuration file; text is put below `cg_rag:` unless it brings its own."""

    def write_file(text: str | bytes, name: str = "site.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def under_root(body: str) -> str:
    return "cg_rag:\n" + "".join(f"  {line}\n" for line in body.splitlines())


def refusal(path: Path | None = None, **layers: Any) -> str:
    layers.setdefault("environ", {})
    with pytest.raises(ConfigError) as caught:
        load(path, **layers)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    return message


# --- refusals of a file ---------------------------------------------------------------------------

REFUSED = {
    "unknown key with the nearest sibling": (
        "server:\n  prot: 1",
        ["site.yaml:3:", "server.prot", "server.port"],
    ),
    "unknown section": ("servers:\n  port: 1", ["site.yaml:2:", "servers", "是否想写 server？"]),
    "key of another section": ("port: 1", ["site.yaml:2:", "未知的键 port", "是否想写 server.port？"]),
    "unknown key that resembles nothing": ("server:\n  qqqq: 1", ["server.qqqq", "此处可用的键", "host"]),
    "unknown key in a profile": (
        "profiles:\n  full:\n    lable: x\n    label: 全库\n    include: all",
        ["site.yaml:4:", "profiles.full.lable", "profiles.full.label"],
    ),
    "unknown key in a selector": (
        "profiles:\n  full:\n    label: x\n    include:\n      - {low: 建筑法}",
        ["site.yaml:6:", "profiles.full.include[0].low", "profiles.full.include[0].law"],
    ),
    "duplicate key": ("server:\n  port: 1\n  port: 2", ["site.yaml:4:", "server.port", "重复", "第 3 行"]),
    "duplicate section": ("log: {}\nlog: {}", ["site.yaml:3:", "log", "重复", "第 2 行"]),
    "anchor": ("server: &a\n  port: 1", ["site.yaml:2:", "锚点"]),
    "alias": ("log: {level: *a}", ["site.yaml:2:", "别名"]),
    "merge key": ("server:\n  <<: {port: 1}", ["site.yaml:3:", "<<"]),
    "tag": ("server:\n  port: !!int 1", ["site.yaml:3:", "标签"]),
    "tag that would run code": ("log: !!python/object/apply:os.system [id]", ["site.yaml:2:", "标签"]),
    "key that is a list": ("? [a]\n: 1", ["键须为一个词"]),
    "key with an invisible character": ('"port\\u200b": 1', ["site.yaml:2:", "不可见"]),
    "tab for indentation": ("server:\n\tport: 1", ["site.yaml:3:", "YAML 语法错误", "Tab"]),
    "unclosed quote": ('server:\n  host: "127', ["YAML 语法错误"]),
    "escape beyond Unicode": ('log: "\\UFFFFFFFF"', ["YAML 语法错误"]),
    "section that is text": ("server：8864", ["cg_rag", "半角"]),
    "section that is a number": ("server: 8864", ["site.yaml:2:", "server", "一组“键: 值”"]),
    "text for a number": (
        'server:\n  port: "8864"',
        ["site.yaml:3:", "server.port", "0..65535 的整数", "'8864'"],
    ),
    "boolean for a number": ("server:\n  port: true", ["server.port", "true（布尔值）"]),
    "number for a boolean": ("retrieval:\n  degrade: 1", ["retrieval.degrade", "true 或 false", "1（整数）"]),
    "yes for a boolean": ("retrieval:\n  degrade: yes", ["retrieval.degrade", "'yes'（文字）"]),
    "fraction for a whole number": ("server:\n  port: 8864.0", ["server.port", "8864.0（小数）"]),
    "above the bound": ("server:\n  port: 65536", ["server.port", "0..65535 的整数", "65536"]),
    "below the bound": ("server:\n  port: -1", ["server.port", "-1（整数）"]),
    "integer of 5000 digits": ("server:\n  port: " + "9" * 5000, ["server.port", "…"]),
    "float that overflows": ("cache:\n  ttl_seconds: 1e999", ["cache.ttl_seconds", "inf"]),
    "NaN": ("retrieval:\n  min_score: .nan", ["retrieval.min_score", "'.nan'"]),
    "infinity": ("server:\n  write_timeout_seconds: .inf", ["server.write_timeout_seconds", "'.inf'"]),
    "sexagesimal": ("cache:\n  ttl_seconds: 12:30:45", ["cache.ttl_seconds", "'12:30:45'"]),
    "leading zero": ("server:\n  port: 08864", ["server.port", "'08864'"]),
    "hexadecimal": ("server:\n  port: 0x22a0", ["server.port", "'0x22a0'"]),
    "number for text": (
        "profiles:\n  full:\n    label: 1.10\n    include: all",
        ["site.yaml:4:", "profiles.full.label", "1.1（小数）", "请加引号"],
    ),
    "number for a tag": (
        "profiles:\n  full:\n    label: a\n    include: [{tag: 1.10}]",
        ["profiles.full.include[0].tag", "1.1（小数）"],
    ),
    "null where nothing is no value": ("server:\n  host:", ["server.host", "空值"]),
    "null for a folder": ("index:\n  dir:", ["index.dir", "空值"]),
    "empty host": ('server:\n  host: ""', ["server.host", "IP 地址或主机名"]),
    "host with a space": ("server:\n  host: 127.0.0.1 x", ["server.host", "IP 地址或主机名"]),
    "NUL in a path": ('index:\n  dir: "a\\0b"', ["index.dir", "文件夹路径"]),
    "unknown choice": ("log:\n  level: info", ["log.level", "INFO", "'info'"]),
    "method of a later version": (
        "profiles:\n  full:\n    label: a\n    include: all\n    retrieval_method: e5",
        ["profiles.full.retrieval_method", "auto 或 lexical", "'e5'"],
    ),
    "no profile": ("profiles: {}", ["profiles", "至少要有一个检索范围"]),
    "profile that is text": ("profiles:\n  full: all", ["profiles.full", "一组“键: 值”"]),
    "profile without label": (
        "profiles:\n  full:\n    include: all",
        ["site.yaml:3:", "profiles.full.label", "未给出"],
    ),
    "profile without include": ("profiles:\n  full:\n    label: a", ["profiles.full.include", "未给出"]),
    "include that is a word": (
        "profiles:\n  full: {label: a, include: some}",
        ["profiles.full.include", "all 或"],
    ),
    "empty include": ("profiles:\n  full: {label: a, include: []}", ["profiles.full.include", "空列表"]),
    "empty selector": (
        "profiles:\n  full: {label: a, include: [{}]}",
        ["profiles.full.include[0]", "corpus、law、tag"],
    ),
    "selector of nulls": (
        "profiles:\n  full: {label: a, include: [{law: }]}",
        ["include[0]", "corpus、law、tag"],
    ),
    "scope name with a capital": (
        "profiles:\n  Full: {label: a, include: all}",
        ["site.yaml:3:", "profiles.Full", "小写"],
    ),
    "scope name with a path": (
        "profiles:\n  ../x: {label: a, include: all}",
        ["site.yaml:3: profiles.../x 名称须以小写字母"],
    ),
    "scope name that is too long": (f"profiles:\n  {'a' * 65}: {{label: a, include: all}}", ["小写字母"]),
    "active scope without profile": (
        "active_scope: usual",
        ["site.yaml:2:", "active_scope", "full", "usual"],
    ),
    "default scope without profile": (
        "profiles:\n  usual: {label: a, include: all}",
        ["active_scope", "usual", "full"],
    ),
    "public address without keys": (
        "server:\n  host: 0.0.0.0",
        ["site.yaml:3:", "server.host", "0.0.0.0", "server.api_keys", "server.allow_anonymous"],
    ),
    "both ways to give keys": (
        f"server:\n  api_keys: {{a: {OTHER}}}\n  api_keys_file: keys.txt",
        ["site.yaml:4:", "server.api_keys_file", "只能给出一个"],
    ),
    "key file that is absent": (
        "server:\n  api_keys_file: absent.txt",
        ["site.yaml:3:", "server.api_keys_file", "absent.txt", "文件不存在"],
    ),
    "type of vectors that is not there": (
        "index:\n  dtype: float32",
        ["index.dtype", "须为 int8", "'float32'"],
    ),
    "unknown kernel": ("index:\n  kernel: cuda", ["index.kernel", "numpy 或 onnx", "'cuda'"]),
    "unknown provider": ("embedding:\n  provider: api", ["embedding.provider", "onnx 或 http 或 none"]),
    "provider http with nothing else": (
        "embedding:\n  threads: 2\n  provider: http",
        ["site.yaml:4: embedding.provider 为 http", "embedding.endpoint、embedding.model、embedding.dim"],
    ),
    "provider http without dimension": (
        "embedding: {provider: http, endpoint: 'http://h/v1', model: m}",
        ["embedding.provider 为 http 时须设置 embedding.dim。"],
    ),
    "no thread": ("embedding:\n  threads: 0", ["embedding.threads", "1..64 的整数", "0（整数）"]),
    "dimension above the bound": ("embedding:\n  dim: 8193", ["embedding.dim", "0..8192 的整数"]),
    "batch of nothing": ("embedding:\n  batch: 0", ["embedding.batch", "1..1024 的整数"]),
    "no time at all": ("embedding:\n  timeout_seconds: 0", ["embedding.timeout_seconds", "0.1..600 的数"]),
    "null for an endpoint": ("embedding:\n  endpoint:", ["site.yaml:3:", "embedding.endpoint", "不予显示"]),
    "model name on two lines": ('embedding:\n  model: "a\\nb"', ["embedding.model", "200 个可见字符"]),
    "unknown hole": (
        "embedding:\n  query_template: '{query}{text}'",
        ["site.yaml:3:", "embedding.query_template", "含 {text} 的模板", "'{query}{text}'"],
    ),
    "template that YAML takes for a mapping": (
        "embedding:\n  query_template: {text}",
        ["embedding.query_template", "含 {text} 的模板", "映射"],
    ),
    "article template without the article": (
        "embedding:\n  passage_template: '{law_name}'",
        ["embedding.passage_template", "含 {contents} 的模板", "{short_law_name}"],
    ),
    "control character in a folder of models": (
        'embedding:\n  model_dir: "a\\0b"',
        ["embedding.model_dir", "文件夹路径或 null"],
    ),
    "reranker without endpoint": (
        "rerank:\n  api_enabled: true",
        ["rerank.method 为 api（或 rerank.api_enabled 为 true）时须设置 rerank.endpoint、rerank.model。"],
    ),
    "reranker alone": ("rerank:\n  weight: 1", ["rerank.weight", "0..0.9 的数", "1"]),
    "nothing to compare": ("rerank:\n  candidates: 1", ["rerank.candidates", "2..100 的整数"]),
    "weight above one": ("retrieval:\n  dense_weight: 1.01", ["retrieval.dense_weight", "0..1 的数"]),
    "score below every cosine": ("retrieval:\n  min_score: -1.01", ["retrieval.min_score", "-1..1000000"]),
    "endpoint without model": (
        "generation:\n  provider: vllm\n  endpoint: http://h/v1",
        ["site.yaml:4: generation.endpoint 已设置而 generation.model 未设置，两者须同时给出。"],
    ),
    "model without endpoint": (
        "generation:\n  model: m",
        ["site.yaml:3: generation.model 已设置而 generation.endpoint 未设置，两者须同时给出。"],
    ),
    "unknown provider of generation": (
        "generation: {provider: qwen}",
        ["generation.provider", "auto 或 openai 或", " 或 local，收到 'qwen'"],
    ),
    "unknown way to switch thinking": (
        "generation: {thinking_control: off}",
        ["generation.thinking_control", "none 或 enable_thinking", "或 null", "'off'"],
    ),
    "unknown way to structure output": (
        "generation: {structured_output: json}",
        ["generation.structured_output", "none 或 json_object", "'json'"],
    ),
    "no time for generation": ("generation: {timeout_seconds: 0}", ["0.1..3600 的数", "0（整数）"]),
    "key of all upstreams in a section": (
        "server: {api_key: x}",
        ["未知的键 server.api_key，", "server.api_keys"],
    ),
    "negative heartbeat": (
        "vision: {sse_heartbeat_seconds: -1}",
        ["vision.sse_heartbeat_seconds", "0..3600 的数"],
    ),
    "nesting": ("log: " + "[" * 40 + "]" * 40, ["site.yaml:2:", "32 层"]),
    "very long key": ("a" * 1000 + ": 1", ["未知的键", "…"]),
}


@pytest.mark.parametrize(("body", "fragments"), REFUSED.values(), ids=REFUSED)
def test_file_is_refused_with_place_key_rule_and_value(write: Any, body: str, fragments: list[str]) -> None:
    message = refusal(write(under_root(body)))
    assert "site.yaml" in message or "默认值" in message
    for fragment in fragments:
        assert fragment in message
    assert len(message) < 600


REFUSED_WHOLE = {
    "empty file": (b"", "缺少顶层键 cg_rag"),
    "only comments": (b"# nothing\n", "缺少顶层键 cg_rag"),
    "list at the top": (b"- cg_rag\n", "缺少顶层键 cg_rag"),
    "text at the top": (b"cg_rag\n", "缺少顶层键 cg_rag"),
    "no root": (b"server: {}\n", "缺少顶层键 cg_rag"),
    "key beside the root": (b"cg_rag: {}\nserver: {}\n", "site.yaml:2: 未知的顶层键 server"),
    "root that is text": (b"cg_rag: x\n", "site.yaml:1: cg_rag 须为一组"),
    "two documents": (b"cg_rag: {}\n---\ncg_rag: {}\n", "site.yaml:2: 只能有一个 YAML 文档"),
    "GBK": ("cg_rag:\n  log: {}\n  # 全库\n".encode("gbk"), "site.yaml:3: 不是 UTF-8"),
    "UTF-16": ("cg_rag: {}\n".encode("utf-16"), "不是 UTF-8"),
    "control character": (b"cg_rag:\n  log: \x01\n", "site.yaml:2: 含不可打印的字符"),
    "too large": (b"#" * (MAX_FILE_BYTES + 1), "超过上限 1048576 字节"),
}


@pytest.mark.parametrize(("data", "fragment"), REFUSED_WHOLE.values(), ids=REFUSED_WHOLE)
def test_file_that_is_no_configuration_is_refused(write: Any, data: bytes, fragment: str) -> None:
    assert fragment in refusal(write(data))


def test_absent_file_and_folder_are_refused_by_name(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.yaml").endswith("absent.yaml: 文件不存在。")
    assert refusal(tmp_path).endswith("是文件夹。")
    assert "absent.yaml" in refusal(environ={"CG_RAG_CONFIG": str(tmp_path / "absent.yaml")})


def test_several_faults_are_counted_on_one_line(write: Any) -> None:
    message = refusal(write(under_root("server:\n  port: x\nlog:\n  level: x\n  format: x")))
    assert "server.port" in message
    assert message.endswith("（另有 2 处）")


# --- what a file may say --------------------------------------------------------------------------


def test_defaults_hold_without_any_file_value(write: Any) -> None:
    loaded = load(write("cg_rag:\n"), environ={"HOME": "/h", "XDG_DATA_HOME": "/data"})
    assert loaded.settings.server.port == 8864
    assert loaded.settings.index.dir == Path("/data/cg-rag/index")
    assert loaded.settings.profiles["full"].include == "all"
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.warnings == []


def test_byte_order_mark_and_crlf_are_tolerated(write: Any) -> None:
    path = write(codecs.BOM_UTF8 + b"cg_rag:\r\n  server:\r\n    port: 9000\r\n")
    assert load(path, environ={}).settings.server.port == 9000


def test_section_whose_lines_are_all_commented_out_is_no_value(write: Any) -> None:
    path = write(under_root("server:\n  # port: 1\n  api_keys:\nprofiles:\nlog:"))
    assert load(path, environ={}).settings.server.port == 8864


def test_words_that_yaml_1_1_would_turn_stay_words(write: Any) -> None:
    body = """profiles:
  full: {label: yes, include: [{tag: 12:30:45}, {law: 1_0}]}
  no: {label: 'on', include: all}"""
    path = write(under_root(body))
    profiles: Any = load(path, environ={}).settings.profiles
    assert profiles["full"].label == "yes"
    assert [(s.tag, s.law) for s in profiles["full"].include] == [("12:30:45", None), (None, "1_0")]
    assert profiles["no"].label == "on"


def test_whole_number_serves_as_seconds(write: Any) -> None:
    value = load(write(under_root("cache: {ttl_seconds: 60}")), environ={}).settings.cache.ttl_seconds
    assert value == 60.0
    assert isinstance(value, float)


def test_name_of_a_law_may_hold_an_ideographic_space(write: Any) -> None:
    path = write(under_root("profiles:\n  full: {label: a, include: [{law: 建筑法\u3000释义}]}"))
    assert load(path, environ={}).settings.profiles["full"].include[0].law == "建筑法\u3000释义"  # type: ignore[union-attr]


def test_settings_cannot_be_changed_afterwards(write: Any) -> None:
    loaded = load(write(under_root(f"server: {{api_keys: {{a: {OTHER}}}}}")), environ={})
    with pytest.raises(ValueError, match="frozen"):
        loaded.settings.server.port = 1
    with pytest.raises(TypeError):
        loaded.settings.server.api_keys["b"] = "x"  # type: ignore[index]
    with pytest.raises(TypeError):
        loaded.settings.profiles["b"] = loaded.settings.profiles["full"]  # type: ignore[index]


# --- precedence -----------------------------------------------------------------------------------


FILES_OF_SECRETS = [
    row for row in settings_table() if row.path[-1].endswith("_file") and row.key != "server.api_keys_file"
]


@pytest.mark.parametrize("row", FILES_OF_SECRETS, ids=lambda row: row.key)
def test_every_secret_may_come_from_a_file_and_is_masked_like_one(row: Setting, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"\n  {OTHER}-in-a-file \n", "utf-8")
    assert row.env is not None
    site = tmp_path / "site.yaml"
    site.write_text("cg_rag: {}\n", "utf-8")
    loaded = load(site, environ={row.env: str(tmp_path / "secret"), "XDG_DATA_HOME": "/data"})
    held: Any = loaded.settings
    for name in (*row.path[:-1], row.path[-1].removesuffix("_file")):
        held = getattr(held, name)
    assert held.get_secret_value() == f"{OTHER}-in-a-file"
    assert f"{OTHER}-in-a-file" not in repr(loaded)


def test_default_preset_file_environment_and_flag_win_in_that_order(write: Any) -> None:
    path = write(under_root("server: {port: 3}\ncapacity:\n  retrieval: {max: 3}\n  generation: {max: 3}"))
    presets = {"server.port": 2, "capacity": {"retrieval": {"max": 2}}, "log.level": "DEBUG"}
    environ = {"CG_RAG_SERVER_PORT": "4", "CG_RAG_CAPACITY_GENERATION_MAX": "4"}
    loaded = load(path, environ=environ, presets=presets, flags={"server.port": 5, "server.host": None})
    found = loaded.settings
    assert (found.server.port, loaded.origins["server.port"]) == (5, "flag")
    assert (found.capacity.generation.max, loaded.origins["capacity.generation.max"]) == (4, "env")
    assert (found.capacity.retrieval.max, loaded.origins["capacity.retrieval.max"]) == (3, "file")
    assert (found.log.level, loaded.origins["log.level"]) == ("DEBUG", "preset")
    assert (found.server.host, loaded.origins["server.host"]) == ("127.0.0.1", "default")


def test_file_is_the_argument_then_the_variable_then_the_shipped_one(write: Any) -> None:
    one, two = (
        write(under_root("server: {port: 1}"), "one.yaml"),
        write(under_root("server: {port: 2}"), "two.yaml"),
    )
    environ = {"CG_RAG_CONFIG": str(two)}
    assert load(one, environ=environ).settings.server.port == 1
    assert load(environ=environ).settings.server.port == 2
    shipped = load(environ={})
    assert shipped.path == Path(config.__file__).parent.parent / "config.yaml"
    assert set(shipped.origins.values()) == {"default"}


def test_presets_win_over_the_shipped_file_but_not_over_the_same_lines_in_a_site_file() -> None:
    presets = {
        "server.port": 2,
        "index.dir": "/demo",
        "profiles": {"full": {"label": "演示", "include": "all"}},
    }
    shipped = load(environ={}, presets=presets)
    assert shipped.settings.server.port == 2
    assert shipped.settings.index.dir == Path("/demo")
    assert shipped.settings.profiles["full"].label == "演示"
    assert shipped.path is not None
    site = load(shipped.path, environ={"XDG_DATA_HOME": "/data"}, presets=presets)
    assert site.settings.server.port == 8864
    assert site.settings.index.dir == Path("/data/cg-rag/index")
    assert site.settings.profiles["full"].label == "全库"


def test_line_edited_in_the_shipped_file_counts_as_written(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = (Path(config.__file__).parent.parent / "config.yaml").read_text("utf-8")
    write(shipped.replace("port: 8864", "port: 9000"), "config.yaml")
    monkeypatch.setattr(config, "__file__", str(tmp_path / "core" / "config.py"))
    loaded = load(environ={}, presets={"server.port": 2, "log.level": "DEBUG"})
    assert (loaded.settings.server.port, loaded.origins["server.port"]) == (9000, "file")
    assert (loaded.settings.log.level, loaded.origins["log.level"]) == ("DEBUG", "preset")


def test_program_without_its_shipped_file_runs_on_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "__file__", str(tmp_path / "core" / "config.py"))
    loaded = load(environ={})
    assert loaded.path is None
    assert loaded.settings.server.port == 8864


def test_profiles_of_a_site_take_back_the_active_scope_of_a_preset(write: Any) -> None:
    presets = {"active_scope": "usual", "profiles": {"usual": {"label": "常用", "include": "all"}}}
    assert load(environ={}, presets=presets).settings.active_scope == "usual"
    path = write(under_root("profiles:\n  full: {label: 全库, include: all}"))
    loaded = load(path, environ={}, presets=presets)
    assert loaded.settings.active_scope == "full"
    assert list(loaded.settings.profiles) == ["full"]


def test_faults_in_presets_and_flags_name_their_source() -> None:
    assert refusal(presets={"server.port": True}).startswith("预设: server.port 须为")
    assert refusal(flags={"server.port": "x"}).startswith("命令行参数: server.port 须为 0..65535 的整数")
    assert "是否想写 server.port？" in refusal(flags={"server.prot": 1})
    assert load(environ={}, flags={"server.port": "7"}).settings.server.port == 7


# --- paths ----------------------------------------------------------------------------------------


def test_relative_path_starts_at_the_file_or_at_the_working_directory(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = write(under_root("index: {dir: data/index}"))
    assert load(path, environ={}).settings.index.dir == tmp_path / "data" / "index"
    environ = {"CG_RAG_INDEX_DIR": "data"}
    assert load(path, environ=environ).settings.index.dir == tmp_path / "here" / "data"
    assert load(path, environ={}, flags={"index.dir": "f"}).settings.index.dir == tmp_path / "here" / "f"


@pytest.mark.parametrize("written", ["", "model_dir: ''", "model_dir: null"])
def test_no_folder_of_models_means_the_bundled_one(write: Any, written: str) -> None:
    path = write(under_root(f"embedding: {{{written}}}"))
    assert load(path, environ={}).settings.embedding.model_dir is None


def test_folder_of_models_starts_at_the_file_like_every_path(write: Any, tmp_path: Path) -> None:
    path = write(under_root("embedding: {model_dir: models/bge}"))
    assert load(path, environ={}).settings.embedding.model_dir == tmp_path / "models" / "bge"
    assert load(path, environ={"CG_RAG_EMBEDDING_MODEL_DIR": "/m"}).settings.embedding.model_dir == Path("/m")


def test_tilde_is_the_home_directory(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    assert load(write(under_root("index: {dir: ~/i}")), environ={}).settings.index.dir == Path("/h/i")
    assert load(write("cg_rag:\n"), environ={}).settings.index.dir == Path("/h/.local/share/cg-rag/index")
    environ = {"XDG_DATA_HOME": "relative"}
    assert load(write("cg_rag:\n"), environ=environ).settings.index.dir.is_relative_to("/h")
    assert "index.dir" in refusal(write(under_root("index: {dir: ~no_such_user_x/i}")))


def test_unknown_home_matters_only_when_the_index_folder_depends_on_it(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(Path, "expanduser", lambda path: no_home(path) if str(path).startswith("~") else path)
    assert "index.dir" in refusal(write("cg_rag:\n"))
    assert load(write(under_root("index: {dir: /i}")), environ={}).settings.index.dir == Path("/i")


# --- environment ----------------------------------------------------------------------------------

ENVIRONMENT = [
    ("CG_RAG_SERVER_PORT", " 9000\n", ("server", "port"), 9000),
    ("CG_RAG_SERVER_HOST", "::1", ("server", "host"), "::1"),
    ("CG_RAG_CACHE_TTL_SECONDS", "1.5", ("cache", "ttl_seconds"), 1.5),
    ("CG_RAG_CACHE_TTL_SECONDS", "60", ("cache", "ttl_seconds"), 60.0),
    ("CG_RAG_RETRIEVAL_MIN_SCORE", "2", ("retrieval", "min_score"), 2.0),
    ("CG_RAG_RETRIEVAL_MIN_SCORE", "None", ("retrieval", "min_score"), None),
    ("CG_RAG_RETRIEVAL_MIN_SCORE", "-0.5", ("retrieval", "min_score"), -0.5),
    ("CG_RAG_RETRIEVAL_DENSE_WEIGHT", "0", ("retrieval", "dense_weight"), 0.0),
    ("CG_RAG_INDEX_KERNEL", "onnx", ("index", "kernel"), "onnx"),
    ("CG_RAG_INDEX_DTYPE", "int8", ("index", "dtype"), "int8"),
    ("CG_RAG_EMBEDDING_PROVIDER", "none", ("embedding", "provider"), "none"),
    ("CG_RAG_EMBEDDING_THREADS", "2", ("embedding", "threads"), 2),
    ("CG_RAG_EMBEDDING_ENDPOINT", " http://h:1/v1 ", ("embedding", "endpoint"), "http://h:1/v1"),
    ("CG_RAG_EMBEDDING_MODEL", "1.10", ("embedding", "model"), "1.10"),
    ("CG_RAG_EMBEDDING_MODEL_DIR", "none", ("embedding", "model_dir"), None),
    ("CG_RAG_EMBEDDING_QUERY_TEMPLATE", "q: {text}", ("embedding", "query_template"), "q: {text}"),
    ("CG_RAG_EMBEDDING_API_KEY", "null", ("embedding", "api_key"), None),
    ("CG_RAG_EMBEDDING_TIMEOUT_SECONDS", "1", ("embedding", "timeout_seconds"), 1.0),
    ("CG_RAG_GENERATION_PROVIDER", "local", ("generation", "provider"), "local"),
    ("CG_RAG_GENERATION_ENABLE_THINKING", "1", ("generation", "enable_thinking"), True),
    ("CG_RAG_GENERATION_STREAMING", "off", ("generation", "streaming"), False),
    ("CG_RAG_GENERATION_THINKING_CONTROL", "none", ("generation", "thinking_control"), "none"),
    ("CG_RAG_GENERATION_THINKING_CONTROL", "null", ("generation", "thinking_control"), None),
    ("CG_RAG_GENERATION_STRUCTURED_OUTPUT", "none", ("generation", "structured_output"), "none"),
    ("CG_RAG_GENERATION_STRUCTURED_OUTPUT", "grammar", ("generation", "structured_output"), "grammar"),
    ("CG_RAG_GENERATION_TIMEOUT_SECONDS", "90", ("generation", "timeout_seconds"), 90.0),
    ("CG_RAG_VISION_SSE_HEARTBEAT_SECONDS", "0", ("vision", "sse_heartbeat_seconds"), 0.0),
    ("CG_RAG_API_KEY", "null", ("api_key",), None),
    ("CG_RAG_STRICT_PROMPT_PINS", "1", ("strict_prompt_pins",), True),
    ("CG_RAG_STRICT_PROMPT_PINS", "0", ("strict_prompt_pins",), False),
    ("CG_RAG_RETRIEVAL_DEGRADE", "No", ("retrieval", "degrade"), False),
    ("CG_RAG_RETRIEVAL_DEGRADE", "TRUE", ("retrieval", "degrade"), True),
    ("CG_RAG_LOG_FORMAT", "text", ("log", "format"), "text"),
    ("CG_RAG_CAPACITY_RETRIEVAL_MAX", "1", ("capacity", "retrieval", "max"), 1),
]


@pytest.mark.parametrize(("name", "text", "path", "expected"), ENVIRONMENT)
def test_variable_is_read_by_the_type_of_its_setting(
    name: str, text: str, path: tuple[str, ...], expected: object
) -> None:
    loaded = load(environ={name: text})
    value: Any = loaded.settings
    for part in path:
        value = getattr(value, part)
    assert value == expected
    assert type(value) is type(expected)
    assert loaded.origins[".".join(path)] == "env"
    assert loaded.warnings == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CG_RAG_SERVER_PORT", "88x"),
        ("CG_RAG_SERVER_PORT", "8_864"),
        ("CG_RAG_SERVER_PORT", "８８６４"),
        ("CG_RAG_SERVER_PORT", "none"),
        ("CG_RAG_SERVER_PORT", "true"),
        ("CG_RAG_RETRIEVAL_DEGRADE", "2"),
        ("CG_RAG_RETRIEVAL_MIN_SCORE", "nan"),
        ("CG_RAG_RETRIEVAL_MIN_SCORE", "1e999"),
        ("CG_RAG_LOG_LEVEL", "LOUD"),
        ("CG_RAG_ACTIVE_SCOPE", "../etc"),
        ("CG_RAG_SERVER_HOST", "0.0.0.0"),
        ("CG_RAG_SERVER_HOST", "a\nb"),
        ("CG_RAG_INDEX_DIR", "a\x1bb"),
        ("CG_RAG_EMBEDDING_PROVIDER", "http"),
        ("CG_RAG_EMBEDDING_ENDPOINT", "h:1/v1"),
        ("CG_RAG_GENERATION_ENDPOINT", "http://h/v1"),
        ("CG_RAG_GENERATION_MODEL", "m"),
        ("CG_RAG_GENERATION_STRUCTURED_OUTPUT", "NONE!"),
        ("CG_RAG_EMBEDDING_PASSAGE_TEMPLATE", "{contents"),
    ],
)
def test_bad_variable_is_refused_by_its_name(name: str, text: str) -> None:
    key = name.removeprefix("CG_RAG_").lower()
    assert refusal(environ={name: text}).startswith(f"环境变量 {name}: ")
    assert key.rsplit("_", 1)[-1] in refusal(environ={name: text})


def test_empty_variable_is_unset(write: Any) -> None:
    path = write(under_root("server: {port: 9000}"))
    loaded = load(
        path, environ={"CG_RAG_SERVER_PORT": " ", "CG_RAG_SERVER_API_KEYS": "", "CG_RAG_CONFIG": ""}
    )
    assert (loaded.settings.server.port, loaded.origins["server.port"]) == (9000, "file")


def test_unknown_variables_are_warnings_with_the_nearest_name() -> None:
    environ = {"CG_RAG_SERVER_PROT": CANARY, "CG_RAG_X\n": "1", "CG_RAG_CONFIG": "", "OTHER": "1"}
    warnings = load(environ=environ).warnings
    assert len(warnings) == 2
    assert warnings[0] == "未知的环境变量 CG_RAG_SERVER_PROT，已忽略；是否想写 CG_RAG_SERVER_PORT？"
    assert all(w.isprintable() for w in warnings)
    assert CANARY not in "".join(warnings)


# --- keys -----------------------------------------------------------------------------------------


def keys_of(loaded: Loaded) -> dict[str, str]:
    return {name: key.get_secret_value() for name, key in loaded.settings.server.api_keys.items()}


def test_keys_come_from_the_file_the_variable_or_a_key_file(write: Any, tmp_path: Path) -> None:
    both = {"a": CANARY, "b.c-d_e": OTHER + "=x"}
    site = write(under_root(f"server:\n  api_keys:\n    a: {CANARY}\n    b.c-d_e: {OTHER}=x"))
    assert keys_of(load(site, environ={})) == both
    pairs = f" a = {CANARY} , b.c-d_e={OTHER}=x"
    assert keys_of(load(environ={"CG_RAG_SERVER_API_KEYS": pairs})) == both
    write(f"# keys\n\na = {CANARY}\r\n  b.c-d_e={OTHER}=x\n", "lines.txt")
    write(f"a: {CANARY}\n'b.c-d_e': \"{OTHER}=x\"\n", "keys.yaml")
    for name in ("lines.txt", "keys.yaml"):
        loaded = load(write(under_root(f"server: {{api_keys_file: {name}}}")), environ={})
        assert keys_of(loaded) == both
        assert loaded.origins["server.api_keys"] == "file"
        environ = {"CG_RAG_SERVER_API_KEYS_FILE": str(tmp_path / name)}
        assert keys_of(load(environ=environ)) == both


def test_higher_layer_replaces_both_ways_to_give_keys(write: Any, tmp_path: Path) -> None:
    write(f"old={OTHER}\n", "keys.txt")
    in_file = write(under_root(f"server: {{api_keys: {{old: {OTHER}}}}}"))
    by_file = write(under_root("server: {api_keys: {}, api_keys_file: keys.txt}"), "two.yaml")
    new = {"CG_RAG_SERVER_API_KEYS": f"new={CANARY}"}
    assert keys_of(load(by_file, environ={})) == {"old": OTHER}
    assert keys_of(load(in_file, environ=new)) == keys_of(load(by_file, environ=new)) == {"new": CANARY}
    write(f"new={CANARY}\n", "new.txt")
    environ = {"CG_RAG_SERVER_API_KEYS_FILE": str(tmp_path / "new.txt")}
    assert (
        keys_of(load(in_file, environ=environ)) == keys_of(load(by_file, environ=environ)) == {"new": CANARY}
    )
    assert "只能给出一个" in refusal(environ=new | environ)


BAD_KEYS = {
    "short": "{a: tooshort}",
    "space": f"{{a: '{CANARY} x'}}",
    "comma": f"{{a: '{CANARY},x'}}",
    "not ASCII": f"{{a: {CANARY}密}}",
    "control": f'{{a: "{CANARY}\\x07"}}',
    "number": "{a: 1234567890123456}",
    "null": "{a: }",
    "nested": f"{{a: {{b: {CANARY}}}}}",
    "too long": f"{{a: {CANARY * 30}}}",
    "name and key swapped": f"{{{CANARY}: site}}",
    "name with a space": f"{{a b: {CANARY}}}",
    "name twice": f"{{{CANARY}: {CANARY}, {CANARY}: {CANARY}}}",
    "same key twice": f"{{a: {CANARY}, b: {CANARY}}}",
    "text": CANARY,
    "list": f"[{CANARY}]",
    "list of pairs": f"[[a, {CANARY}]]",
}


@pytest.mark.parametrize("keys", BAD_KEYS.values(), ids=BAD_KEYS)
def test_bad_keys_are_refused_without_a_word_of_them(write: Any, keys: str) -> None:
    write(keys + "\n", "keys.yaml")
    in_file = refusal(write(under_root(f"server:\n  api_keys: {keys}")))
    by_file = refusal(write(under_root("server: {api_keys_file: keys.yaml}"), "two.yaml"))
    assert "site.yaml:3" in in_file
    assert "keys.yaml" in by_file
    for message in (in_file, by_file):
        assert "canary" not in message
        assert "1234567890123456" not in message


@pytest.mark.parametrize(
    "text",
    [
        CANARY,
        f"a={CANARY},a={OTHER}",
        f"a={CANARY},b={CANARY}",
        f"a={CANARY},",
        f"={CANARY}",
        f"{CANARY}=a",
        ",",
    ],
)
def test_bad_keys_in_the_variable_are_refused_without_a_word_of_them(text: str) -> None:
    message = refusal(environ={"CG_RAG_SERVER_API_KEYS": text})
    assert message.startswith("环境变量 CG_RAG_SERVER_API_KEYS: server.api_keys ")
    assert "canary" not in message


@pytest.mark.parametrize("text", ["", "# none\n\n", "{}", "--- {}\n", "null"])
def test_key_file_without_keys_is_refused(write: Any, text: str) -> None:
    write(text, "keys.txt")
    assert "没有任何密钥" in refusal(write(under_root("server: {api_keys_file: keys.txt}")))


@pytest.mark.parametrize(
    "text", [f"a: *{CANARY}", f"a: &{CANARY} x", f"a: !{CANARY} x", f'a: "{CANARY}', f"a: [{CANARY}"]
)
def test_key_file_with_broken_yaml_is_refused_without_a_word_of_it(write: Any, text: str) -> None:
    write(text, "keys.txt")
    message = refusal(write(under_root("server: {api_keys_file: keys.txt}")))
    assert "keys.txt:" in message
    assert "canary" not in message


@pytest.mark.parametrize("inner", [f"{{{CANARY}: {{b: 1, b: 2}}}}", f"{{a: {{{CANARY}: 1, {CANARY}: 2}}}}"])
def test_repeated_key_below_the_keys_is_refused_without_a_word_of_them(write: Any, inner: str) -> None:
    write(inner, "keys.yaml")
    in_file = refusal(write(under_root(f"server:\n  api_keys: {inner}")))
    by_file = refusal(write(under_root("server: {api_keys_file: keys.yaml}"), "two.yaml"))
    for message in (in_file, by_file):
        assert "键重复" in message
        assert "canary" not in message


# --- one key for an upstream ----------------------------------------------------------------------

SECRETS = [pytest.param(row, id=row.key) for row in settings_table() if row.kind == "secret"]
each_secret = pytest.mark.parametrize("row", SECRETS)


def nested(path: tuple[str, ...], value: str) -> str:
    """`value` at `path` as one line of YAML."""
    text = value
    for name in reversed(path[1:]):
        text = f"{{{name}: {text}}}"
    return f"{path[0]}: {text}"


def file_of(path: tuple[str, ...]) -> tuple[str, ...]:
    return (*path[:-1], path[-1] + "_file")


def secret_of(loaded: Loaded, row: Setting) -> str | None:
    value: Any = loaded.settings
    for name in row.path:
        value = getattr(value, name)
    return value and str(value.get_secret_value())


def test_there_is_a_key_to_test_and_each_has_its_file_beside_it() -> None:
    rows = {row.path: row for row in settings_table()}
    secrets = [row.key for row in rows.values() if row.kind == "secret"]
    assert secrets == [
        "index.milvus.token",
        "embedding.api_key",
        "rerank.api_key",
        "api_key",
        "generation.api_key",
        "hybrid_generation.api_key",
        "vision.api_key",
    ]
    for row in rows.values():
        if row.kind in ("secret", "keys"):
            beside = rows[file_of(row.path)]
            assert (beside.kind, beside.optional, beside.default) == ("path", True, None)
            assert not row.is_quoted
            assert beside.env == f"{row.env}_FILE"


@each_secret
def test_key_comes_from_the_file_the_variable_or_a_file_of_its_own(
    write: Any, tmp_path: Path, row: Setting
) -> None:
    write(f"{CANARY}\n", "secret.txt")
    in_file = write(under_root(nested(row.path, CANARY)))
    by_file = write(under_root(nested(file_of(row.path), "secret.txt")), "two.yaml")
    assert row.env
    for path, environ, origin in (
        (in_file, {}, "file"),
        (by_file, {}, "file"),
        (None, {row.env: f" {CANARY} "}, "env"),
        (None, {f"{row.env}_FILE": str(tmp_path / "secret.txt")}, "env"),
    ):
        loaded = load(path, environ=environ)
        assert (secret_of(loaded, row), loaded.origins[row.key]) == (CANARY, origin)
        assert loaded.warnings == []
    assert secret_of(load(environ={}, flags={row.key: CANARY}), row) == CANARY


@each_secret
def test_higher_layer_replaces_both_ways_to_give_a_key(write: Any, tmp_path: Path, row: Setting) -> None:
    write(OTHER, "old.txt")
    write(CANARY, "new.txt")
    in_file = write(under_root(nested(row.path, OTHER)))
    by_file = write(under_root(nested(file_of(row.path), "old.txt")), "two.yaml")
    assert row.env
    new: list[dict[str, Any]] = [
        {"environ": {row.env: CANARY}},
        {"environ": {f"{row.env}_FILE": str(tmp_path / "new.txt")}},
        {"environ": {}, "flags": {row.key: CANARY}},
        {"environ": {}, "flags": {f"{row.key}_file": str(tmp_path / "new.txt")}},
    ]
    for path in (in_file, by_file):
        assert secret_of(load(path, environ={}), row) == OTHER
        assert [secret_of(load(path, **layers), row) for layers in new] == [CANARY] * len(new)
    assert secret_of(load(by_file, environ={}, presets={row.key: CANARY}), row) == OTHER


@each_secret
def test_one_layer_gives_a_key_in_one_way(write: Any, row: Setting) -> None:
    write(OTHER, "secret.txt")
    key, path = row.key, file_of(row.path)
    lines = under_root(f"{nested(row.path, CANARY)}\n{nested(path, 'secret.txt')}")
    if len(row.path) > 1:
        lines = under_root(nested(row.path[:-1], f"{{{row.path[-1]}: {CANARY}, {path[-1]}: secret.txt}}"))
    both = {key: CANARY, f"{key}_file": "secret.txt"}
    assert row.env
    for message in (
        refusal(write(lines)),
        refusal(environ={row.env: CANARY, f"{row.env}_FILE": "secret.txt"}),
        refusal(flags=both),
        refusal(presets=both),
    ):
        assert f"{key} 与 {key}_file 只能给出一个。" in message
        assert "canary" not in message


@each_secret
def test_empty_key_is_no_key(write: Any, row: Setting) -> None:
    for value in ("''", "null", ""):
        assert secret_of(load(write(under_root(nested(row.path, value))), environ={}), row) is None
    assert row.env
    site = write(under_root(nested(row.path, CANARY)))
    assert secret_of(load(site, environ={row.env: "none"}), row) is None
    assert secret_of(load(site, environ={row.env: ""}), row) == CANARY


BAD_SECRETS = {
    "space before": f"' {CANARY}'",
    "not ASCII": f"{CANARY}密",
    "control": f'"{CANARY}\\x07"',
    "line break": f'"{CANARY}\\nX-Header: 1"',
    "too long": CANARY * 200,
    "number": "1234567890123456",
    "mapping": f"{{{CANARY}: 1}}",
    "mapping with a repeated key": f"{{{CANARY}: 1, {CANARY}: 2}}",
    "list": f"[{CANARY}]",
    "what config check prints": "'******'",
}


@each_secret
@pytest.mark.parametrize("value", BAD_SECRETS.values(), ids=BAD_SECRETS)
def test_bad_key_is_refused_without_a_word_of_it(write: Any, row: Setting, value: str) -> None:
    message = refusal(write(under_root(nested(row.path, value))))
    assert "site.yaml:2: " in message
    assert "canary" not in message
    assert "123456789" not in message
    assert row.key in message or "键重复" in message


@each_secret
@pytest.mark.parametrize("text", [f"{CANARY}密", f"{CANARY}\nX: 1", CANARY * 200, "***"])
def test_bad_key_in_a_variable_is_refused_without_a_word_of_it(row: Setting, text: str) -> None:
    assert row.env
    message = refusal(environ={row.env: text})
    assert message.startswith(f"环境变量 {row.env}: {row.key} 须为 1..4096 个可打印 ASCII 字符")
    assert message.endswith("，内容不予显示。")
    assert "canary" not in message


BAD_SECRET_FILES = {
    "empty": (b"", "密钥文件是空的"),
    "blank": (b"\n \r\n\t\n", "密钥文件是空的"),
    "byte order mark alone": (codecs.BOM_UTF8, "密钥文件是空的"),
    "two lines": (f"{CANARY}\n{OTHER}\n".encode(), "密钥文件须只有一行"),
    "comment above": (f"# key\n{CANARY}\n".encode(), "密钥文件须只有一行"),
    "lines parted by a form feed": (f"{CANARY}\f{OTHER}".encode(), "密钥文件须只有一行"),
    "too long": (CANARY.encode() * 200, "1..4096 个可打印 ASCII 字符"),
    "not ASCII": (f"{CANARY}密".encode(), "1..4096 个可打印 ASCII 字符"),
    "NUL": (f"{CANARY}\0".encode(), "1..4096 个可打印 ASCII 字符"),
    "GBK": (f"{CANARY}密钥".encode("gbk"), "不是 UTF-8"),
    "UTF-16": (CANARY.encode("utf-16"), "不是 UTF-8"),
    "too large": (CANARY.encode() * MAX_FILE_BYTES, "超过上限"),
}


@each_secret
@pytest.mark.parametrize(("data", "fragment"), BAD_SECRET_FILES.values(), ids=BAD_SECRET_FILES)
def test_bad_file_of_a_key_is_refused_by_name_without_a_word_of_it(
    write: Any, tmp_path: Path, row: Setting, data: bytes, fragment: str
) -> None:
    write(data, "secret.txt")
    assert row.env
    by_file = refusal(write(under_root(nested(file_of(row.path), "secret.txt"))))
    by_variable = refusal(environ={f"{row.env}_FILE": str(tmp_path / "secret.txt")})
    for message in (by_file, by_variable):
        for part in (fragment, "secret.txt", row.key):
            assert part in message
        assert "canary" not in message


@each_secret
def test_absent_file_of_a_key_is_refused_by_place_key_and_name(write: Any, row: Setting) -> None:
    path = write(under_root(nested(file_of(row.path), "absent.txt")))
    message = refusal(path)
    assert message.startswith(f"{path}:2: {row.key}_file ")
    assert message.endswith("absent.txt: 文件不存在。")
    assert refusal(write(under_root(nested(file_of(row.path), ".")), "two.yaml")).endswith("是文件夹。")


@each_secret
@pytest.mark.parametrize(
    "data",
    [CANARY.encode(), f" \t{CANARY}\r\n\n".encode(), codecs.BOM_UTF8 + CANARY.encode() + b"\n"],
    ids=["bare", "blanks around", "byte order mark"],
)
def test_blanks_around_the_one_line_of_a_key_file_do_not_count(write: Any, row: Setting, data: bytes) -> None:
    write(data, "secret.txt")
    loaded = load(write(under_root(nested(file_of(row.path), "secret.txt"))), environ={})
    assert secret_of(loaded, row) == CANARY


@each_secret
def test_shortest_and_longest_keys_are_taken_as_they_are(write: Any, row: Setting) -> None:
    for secret in ("x", "a b", '~!"#%*', "k" * 4096):
        write(secret, "secret.txt")
        loaded = load(write(under_root(nested(file_of(row.path), "secret.txt"))), environ={})
        assert secret_of(loaded, row) == secret


# --- addresses of upstreams -----------------------------------------------------------------------

ENDPOINTS = [pytest.param(row, id=row.key) for row in settings_table() if row.path[-1] == "endpoint"]
BAD_ENDPOINTS = [
    f"http://user:{CANARY}@h/v1",
    f"http://{CANARY}@h/v1",
    f"http://h/v1?key={CANARY}",
    f"http://h/v1#{CANARY}",
    f"ftp://h/{CANARY}",
    f"//h/{CANARY}",
    f"h:8000/{CANARY}",
    f"http:///{CANARY}",
    f"http://h:x/{CANARY}",
    f"http://h /{CANARY}",
    f"http://h/{CANARY}密",
    CANARY,
]


@pytest.mark.parametrize("row", ENDPOINTS)
@pytest.mark.parametrize("text", BAD_ENDPOINTS)
def test_bad_endpoint_is_refused_without_a_word_of_it(write: Any, row: Setting, text: str) -> None:
    assert row.env
    in_file = refusal(write(under_root(nested(row.path, f'"{text}"'))))
    by_variable = refusal(environ={row.env: text})
    assert in_file.startswith(f"{write(b'')}:2: {row.key} 须为 http:// 或 https:// 开头的地址")
    assert by_variable.startswith(f"环境变量 {row.env}: {row.key} 须为 http:// 或 https:// 开头的地址")
    for message in (in_file, by_variable):
        assert "canary" not in message


def test_endpoint_model_and_dimension_make_provider_http_complete(write: Any) -> None:
    body = "embedding: {provider: http, endpoint: 'https://h/v1', model: m, dim: 8}"
    found = load(write(under_root(body)), environ={}).settings.embedding
    assert (found.endpoint, found.model, found.dim, found.api_key) == ("https://h/v1", "m", 8, None)
    environ = {"CG_RAG_EMBEDDING_PROVIDER": "http", "CG_RAG_EMBEDDING_ENDPOINT": "https://h/v1"}
    environ |= {"CG_RAG_EMBEDDING_MODEL": "m", "CG_RAG_EMBEDDING_DIM": "8"}
    assert load(environ=environ).settings.embedding == found


HOSTS = [
    "h",
    "a.b-c",
    "127.0.0.1",
    "[::1]",
    "[fe80::1%25e]",
    "a_b.",
    "a..b",
    "",
    "x:80",
    "x:0",
    "x:99999",
    "x:",
]
TAILS = [
    "",
    "/",
    "/v1",
    "/v1/chat/completions",
    "//",
    "/%20",
    "/;a=b",
    "/[",
    '/"',
    "/{}",
    "/^|`",
    "/\\",
    "/ ",
    "/é",
]
ADDRESSES = st.builds(
    "".join, st.tuples(*map(st.sampled_from, (["http://", "https://", "HTTP://"], HOSTS, TAILS)))
)


@settings(max_examples=200)
@given(text=ADDRESSES | st.text("htp:/a1.[]%?#@", max_size=20))
def test_every_endpoint_that_the_settings_take_is_one_for_the_client(text: str) -> None:
    if is_endpoint(text):
        assert UpstreamSettings(text, "m").endpoint == text


# --- generation -----------------------------------------------------------------------------------


def test_choices_of_generation_are_those_of_the_client_and_local() -> None:
    rows = {row.key: row for row in settings_table()}
    assert rows["generation.provider"].choices == (*PROVIDER_NAMES, "local")
    assert rows["generation.thinking_control"].choices == get_args(ThinkingControl)
    assert rows["generation.structured_output"].choices == get_args(StructuredOutput)
    client = UpstreamSettings("http://h", "m")
    for name in ("provider", "thinking_control", "structured_output", "enable_thinking", "streaming"):
        assert rows[f"generation.{name}"].default == getattr(client, name)


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        "{endpoint: 'http://h', model: m}",
        "{provider: local}",
        "{provider: local, model: m}",
        "{provider: vllm}",
    ],
)
def test_generation_is_complete_or_absent_and_local_needs_nothing(write: Any, body: str) -> None:
    assert load(write(under_root(f"generation: {body}")), environ={}).settings.generation


def test_endpoint_and_model_may_come_from_two_layers(write: Any) -> None:
    path = write(under_root("generation: {endpoint: 'http://h/v1'}"))
    found = load(path, environ={"CG_RAG_GENERATION_MODEL": "m"}).settings.generation
    assert (found.endpoint, found.model) == ("http://h/v1", "m")


@pytest.mark.parametrize(
    ("shared", "own", "sent"),
    [("", "", None), (OTHER, "", OTHER), (OTHER, CANARY, CANARY), ("", CANARY, CANARY)],
)
def test_generation_uses_its_own_key_then_the_shared_one(shared: str, own: str, sent: str | None) -> None:
    environ = {"CG_RAG_API_KEY": shared, "CG_RAG_GENERATION_API_KEY": own}
    key = generation_api_key(load(environ=environ).settings)
    assert (key and key.get_secret_value()) == sent
    assert load(environ=environ).settings.embedding.api_key is None


def test_template_may_hold_a_line_break_and_comes_back_as_it_was(write: Any) -> None:
    body = 'embedding: {query_template: "Instruct: 检索\\n问：{text}{{}}\\n"}'
    first = load(write(under_root(body)), environ={})
    assert first.settings.embedding.query_template == "Instruct: 检索\n问：{text}{{}}\n"
    assert load(write(render(first), "again.yaml"), environ={}).settings == first.settings


# --- who may listen to the world ------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.9", "::1", "localhost", "LocalHost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(host)
    assert load(environ={}, flags={"server.host": host}).settings.server.host == host


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "127.1", "0", "::ffff:127.0.0.1", "example.org", "localhost.x"]
)
def test_any_other_address_needs_keys_or_an_explicit_word(host: str) -> None:
    message = refusal(flags={"server.host": host})
    for fragment in ("server.host", host, "server.api_keys", "server.allow_anonymous"):
        assert fragment in message
    keys = {"CG_RAG_SERVER_API_KEYS": f"a={CANARY}"}
    assert load(environ=keys, flags={"server.host": host}).settings.server.host == host
    assert load(environ={"CG_RAG_SERVER_ALLOW_ANONYMOUS": "1"}, flags={"server.host": host})


# --- secrets --------------------------------------------------------------------------------------


def with_all_secrets() -> str:
    """A configuration in which every setting that may be secret is."""
    lines = [nested(row.path, CANARY).split(": ", 1) for row in settings_table() if row.kind == "secret"]
    lines.append(["server", f"{{api_keys: {{site: {CANARY}}}}}"])
    return under_root("\n".join(": ".join(line) for line in lines))


def test_secret_is_in_nothing_that_can_be_printed(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(write(with_all_secrets()), environ={})
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s %r", loaded, loaded.settings.server)
        logging.getLogger("test").info("%s %r", loaded.settings.embedding, loaded.settings.embedding.api_key)
    texts = [
        repr(loaded), str(loaded), repr(loaded.settings), str(loaded.settings), f"{loaded.settings.server}",
        render(loaded), json.dumps(plain(loaded.settings)), loaded.settings.model_dump_json(),
        repr(loaded.settings.model_dump()), caplog.text,
    ]  # fmt: skip
    assert not [text for text in texts if CANARY in text]
    assert '"site": "******"' in render(loaded)
    assert len(re.findall(r' (?:api_key|token): "\*{6}"', render(loaded))) == len(SECRETS)


@each_secret
def test_masked_output_read_back_is_refused_rather_than_sent_as_a_key(write: Any, row: Setting) -> None:
    masked = render(load(write(under_root(nested(row.path, CANARY))), environ={}))
    assert f"{row.key} 须为" in refusal(write(masked, "masked.yaml"))


@pytest.mark.parametrize(
    "body",
    [
        f"server:\n  host: 0.0.0.0\n  port: x\n  api_keys: {{site: {CANARY}}}",
        f"embedding:\n  provider: http\n  api_key: {CANARY}",
        f"embedding:\n  api_key: {CANARY}密",
        f"embedding:\n  endpoint: http://{CANARY}@h",
        f"api_key: {CANARY}\ngeneration:\n  endpoint: http://h\n  api_key: {CANARY}",
    ],
)
def test_traceback_of_a_refusal_holds_neither_the_secret_nor_the_error_that_does(
    write: Any, body: str
) -> None:
    for data in (under_root(body).encode(), under_root(body).encode() + b"\xff"):
        with pytest.raises(ConfigError) as caught:
            load(write(data), environ={})
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__context__ is None
        assert CANARY.encode() not in pickle.dumps(caught.value.args)


def test_masked_output_read_back_is_the_same_configuration_but_for_the_keys(write: Any) -> None:
    profile = "{label: '甲: \"乙\" # 丙', include: [{law: x}]}"
    body = f"server: {{port: 9000}}\nactive_scope: a\nprofiles:\n  a: {profile}"
    first = load(write(under_root(body)), environ={"XDG_DATA_HOME": "/data"})
    again = load(write(render(first), "again.yaml"), environ={})
    assert again.settings == first.settings
    with_keys = load(write(under_root(f"server: {{api_keys: {{site: {CANARY}}}}}")), environ={})
    assert "密钥须为" in refusal(write(render(with_keys), "masked.yaml"))


# --- cg-rag config check --------------------------------------------------------------------------


@pytest.fixture
def clean_environ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("CG_RAG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return monkeypatch


def check(*words: str) -> int:
    parser = argparse.ArgumentParser()
    config.add_check_arguments(parser)
    return run_check(parser.parse_args(words))


@pytest.mark.usefixtures("clean_environ")
def test_check_prints_values_with_their_origins_and_warnings(
    write: Any, clean_environ: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean_environ.setenv("CG_RAG_LOG_LEVEL", "DEBUG")
    clean_environ.setenv("CG_RAG_LOG_LEVLE", "DEBUG")
    path = write(with_all_secrets().replace("server: {", "server: {port: 9000, "))
    assert check("--config", str(path)) == 0
    out, err = capsys.readouterr()
    assert f"# 配置文件：{path}" in out
    assert "    port: 9000  # 配置文件\n" in out
    assert '    level: "DEBUG"  # 环境变量 CG_RAG_LOG_LEVEL\n' in out
    assert '    format: "json"  # 默认\n' in out
    assert err == "警告：未知的环境变量 CG_RAG_LOG_LEVLE，已忽略；是否想写 CG_RAG_LOG_LEVEL？\n"
    assert CANARY not in out + err


@pytest.mark.usefixtures("clean_environ")
def test_check_prints_json_for_scripts(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(with_all_secrets().replace("server: {", "server: {port: 9000, "))
    assert check("--config", str(path), "--json") == 0
    out, err = capsys.readouterr()
    body = json.loads(out)
    assert body["path"] == str(path)
    assert body["cg_rag"]["server"]["port"] == 9000
    assert body["cg_rag"]["server"]["api_keys"] == {"site": "******"}
    assert body["cg_rag"]["embedding"]["api_key"] == "******"
    assert CANARY not in out
    assert body["origins"]["server.port"] == "file"
    assert body["warnings"] == []
    assert err == ""


@pytest.mark.usefixtures("clean_environ")
def test_check_without_arguments_shows_the_shipped_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert check() == 0
    assert "config.yaml" in capsys.readouterr().out


@pytest.mark.usefixtures("clean_environ")
def test_check_ends_with_2_and_one_line_for_a_fault(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(under_root(f"server: {{prot: 1, api_keys: {{site: {CANARY}}}}}"))
    assert check("--config", str(path)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert str(path) in err
    assert "server.prot" in err
    assert CANARY not in err


# --- anything at all ------------------------------------------------------------------------------


def load_or_refuse(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    refusals: list[str] = []
    try:
        text = render(load(path, environ={}))
    except ConfigError as error:
        text = str(error)
        refusals.append(text)
    text.encode()
    assert all(refusal.isprintable() for refusal in refusals)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
@example(b"%YAML 1." + b"9" * 5000 + b"\n---\ncg_rag: {}\n")
@example(b'"\\UFFFFFFFF": 1')
@example(b"cg_rag: {? : }")
@example(b'cg_rag: {log: {level: "\\ud800"}}')
@example(b'cg_rag: {"\\ud800": 1}')
@example(b"cg_rag: {server: {api_keys: [[1, 2, 3]]}}")
def test_arbitrary_bytes_are_a_configuration_or_a_refusal(tmp_path: Path, data: bytes) -> None:
    load_or_refuse(tmp_path / "any.yaml", data)


SCALARS = st.sampled_from(
    [
        "",
        "~",
        "true",
        "yes",
        "1",
        "-1",
        "1.5",
        "1e999",
        "all",
        "full",
        "json",
        "'x'",
        "http",
        "'http://h'",
        "'{text}'",
        '"\\ud800"',
        "&a",
        "*a",
        "!t",
        "[",
        "{}",
    ]
) | st.text("aZ0-:#'\"&*![]{},\n\t 全\u3000\u202e", max_size=8)
KEYS = st.sampled_from(
    [
        "server",
        "port",
        "host",
        "api_keys",
        "api_keys_file",
        "profiles",
        "full",
        "label",
        "include",
        "law",
        "index",
        "dir",
        "embedding",
        "provider",
        "endpoint",
        "model",
        "query_template",
        "generation",
        "thinking_control",
        "api_key",
        "api_key_file",
        "<<",
    ]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.tuples(st.integers(1, 4), KEYS, SCALARS), max_size=8))
def test_nearly_right_files_are_a_configuration_or_a_refusal(
    tmp_path: Path, lines: list[tuple[int, str, str]]
) -> None:
    text = "cg_rag:\n" + "".join(f"{'  ' * depth}{key}: {value}\n" for depth, key, value in lines)
    load_or_refuse(tmp_path / "any.yaml", text.encode())


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150)
@given(tree=st.dictionaries(KEYS, TREES, max_size=4))
def test_any_values_in_flags_are_settings_or_a_refusal(tree: dict[str, Any]) -> None:
    refusals: list[str] = []
    try:
        load(environ={}, flags=tree)
    except ConfigError as error:
        refusals.append(str(error))
    assert all(refusal.isprintable() for refusal in refusals)

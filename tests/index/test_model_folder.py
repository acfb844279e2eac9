"""cg_rag_model.json: known keys only, digests of every file, templates that take no orders from values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.embedder import EmbedderSettings, OnnxEmbedder
from cg_rag.index.model_errors import ModelInvalid, ModelMissing
from cg_rag.index.model_folder import SETTINGS_FILE, ModelFolder, Template, parse_settings
from cg_rag.index.models import E5_SMALL_ZH
from tests.onnx_fixtures import edit_settings, make_bert


def test_the_bundled_folder_records_the_digest_of_each_of_its_files() -> None:
    folder = ModelFolder.open(E5_SMALL_ZH, "embedder")
    files = [path for path in E5_SMALL_ZH.iterdir() if path.name not in (SETTINGS_FILE, "MODEL_CARD.md")]
    assert {path.name for path in files} == set(folder.digests)
    folder.check_digests(files)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colour": 1}, "未知的设置项 colour"),
        ({"pooling": ...}, "缺少设置项 pooling"),
        ({"pooling": "max"}, "pooling 须为 cls / mean / last / none"),
        ({"kind": "reranker"}, "kind 须为 'embedder'"),
        ({"dim": "8"}, "dim 须为整数"),
        ({"dim": True}, "dim 须为整数"),
        ({"dim": 0}, r"dim 须在 1\.\.8192 之间，收到 0"),
        ({"dim": 9}, "输出维度为 8，设置项 dim 为 9"),
        ({"mrl_dim": 9}, r"mrl_dim 须在 1\.\.8 之间"),
        ({"mrl_dim": 4, "normalize": False}, "normalize 须为 true"),
        ({"normalize": 1}, "normalize 须为true 或 false"),
        ({"eos": 2}, "eos 须为字符串或null"),
        ({"batch": 0}, "batch 须在"),
        ({"max_tokens": 100_000}, "max_tokens 须在"),
        ({"query_template": "q {words}"}, "只能使用 {text}、{instruction}"),
        ({"query_template": "q"}, "须含 {text}"),
        ({"query_template": "{text"}, "花括号不成对"),
        ({"query_template": "{text.__class__}"}, "只能使用"),
        ({"query_template": "{text!r}"}, "只能使用"),
        ({"query_template": "{text:>9}"}, "只能使用"),
        ({"passage_template": "{law_name}"}, "须含 {contents}"),
        ({"pooling": "none"}, "与 pooling none 不符"),
        ({"file": "../model.onnx"}, "不在模型目录之内"),
        ({"tokenizer": "/etc/passwd"}, "不在模型目录之内"),
        ({"sha256": ...}, "缺少 sha256"),
        ({"sha256": []}, "缺少 sha256"),
        ({"sha256": {}}, "SHA-256 应为 未记录"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_key(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    folder = make_bert(tmp_path / "m").folder
    edit_settings(folder, **changes)
    with pytest.raises(ModelInvalid, match=words):
        OnnxEmbedder(folder)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_a_changed_file_is_found_when_the_model_is_opened(tmp_path: Path, name: str) -> None:
    folder = make_bert(tmp_path / "m", external=True).folder
    OnnxEmbedder(folder)
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(ModelInvalid, match=f"{name} 不可用：SHA-256 应为"):
        OnnxEmbedder(folder)


def test_an_external_file_without_a_digest_is_refused(tmp_path: Path) -> None:
    folder = make_bert(tmp_path / "m", external=True).folder
    digests = json.loads((folder / SETTINGS_FILE).read_text("utf-8"))["sha256"]
    edit_settings(
        folder, sha256={name: value for name, value in digests.items() if name != "model.onnx.data"}
    )
    with pytest.raises(ModelInvalid, match=r"model\.onnx\.data 不可用：SHA-256 应为 未记录"):
        OnnxEmbedder(folder)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", SETTINGS_FILE])
def test_an_absent_file_is_named(tmp_path: Path, name: str) -> None:
    folder = make_bert(tmp_path / "m").folder
    (folder / name).unlink()
    with pytest.raises(ModelMissing, match=name):
        OnnxEmbedder(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\x00"])
def test_settings_that_are_no_object_are_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / SETTINGS_FILE).write_text(text, "utf-8")
    with pytest.raises(ModelInvalid, match="JSON"):
        ModelFolder.open(tmp_path, "embedder")


@given(
    st.dictionaries(
        st.sampled_from([*EmbedderSettings.__dataclass_fields__, "x"]), st.from_type(type(None) | int)
    )
)
@settings(max_examples=100)
def test_parsing_raises_nothing_but_model_invalid(raw: dict[str, Any]) -> None:
    with pytest.raises(ModelInvalid):
        parse_settings(EmbedderSettings, raw, "place")


def test_the_fingerprint_covers_every_setting_and_no_layout(tmp_path: Path) -> None:
    folder = make_bert(tmp_path / "m").folder
    first = ModelFolder.open(folder, "embedder").fingerprint
    value = json.loads((folder / SETTINGS_FILE).read_text("utf-8"))
    (folder / SETTINGS_FILE).write_text(json.dumps(dict(reversed(value.items())), indent=4), "utf-8")
    assert ModelFolder.open(folder, "embedder").fingerprint == first
    for change in ({"query_template": "{text}"}, {"max_tokens": 16}, {"sha256": {"model.onnx": "0"}}):
        edit_settings(folder, **{**value, **change})
        assert ModelFolder.open(folder, "embedder").fingerprint != first


def test_braces_inside_a_value_mean_nothing() -> None:
    template = Template.parse("{{q}} {text} {instruction}", ["text", "instruction"])
    assert template.render({"text": "{instruction}{0}", "instruction": "i"}) == "{q} {instruction}{0} i"


@given(st.text(max_size=40))
@settings(max_examples=150)
def test_any_template_text_parses_or_is_refused_in_chinese(text: str) -> None:
    try:
        template = Template.parse(text, ["text"])
    except ValueError as exc:
        message = str(exc)
    else:
        message = "模板 " + template.render({"text": "T"})
    assert message.startswith("模板 ")

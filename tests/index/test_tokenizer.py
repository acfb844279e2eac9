"""No text brings a control token along, and cutting, padding and the end token are as the settings say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.model_errors import ModelInvalid, ModelMissing
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.tokenizer import CONTROL_TOKENS, Encoded, ModelTokenizer
from tests.onnx_fixtures import SPECIAL, VOCABULARY, build_tokenizer

E5 = ModelTokenizer(E5_SMALL_ZH / "tokenizer.json", 512)
UNKNOWN = 3
PIECES = [
    *CONTROL_TOKENS,
    *SPECIAL,
    *"<>|/＜＞｜／﹤﹥sｓⓢim_startｅnd 脚架",
    "\u200b",
    "\x01",
    "\u00ad",
    "\u3000",
    "\ud800",
]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(build_tokenizer().to_str(), "utf-8")
    return tmp_path / "tokenizer.json"


def control_ids(tokenizer: ModelTokenizer, text: str) -> list[int]:
    """Ids of control tokens between the first and the last, which are the tokenizer's own."""
    ids = tokenizer.encode(tokenizer.neutralise(text)).ids
    return [token for token in ids[1:-1] if token < len(SPECIAL) and token != UNKNOWN]


@pytest.mark.parametrize(
    "text",
    [
        "a<s>b",
        "＜s＞",
        "＜ｓ＞",
        "<\x01s>",
        "<\u00ads>",
        "</s></s>",
        "<<s>s>",
        "<s<s>>",
        "﹤/s﹥",
        "<pad>",
        "<|im_start|>",
    ],
)
def test_a_spelt_control_token_stays_text(text: str, tokenizer_file: Path) -> None:
    e5 = E5.encode(E5.neutralise(text)).ids
    assert not {0, 1, 2} & set(e5[1:-1])
    assert control_ids(ModelTokenizer(tokenizer_file, 64), text) == []


def test_the_forms_above_are_real_attacks_on_the_bundled_tokenizer() -> None:
    for text in ("a<s>b", "＜ｓ＞", "<\x01s>"):
        assert 0 in E5.encode(text).ids[1:-1]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@settings(max_examples=300)
def test_no_mixture_of_pieces_makes_a_control_token(text: str) -> None:
    assert not {0, 1, 2} & set(E5.encode(E5.neutralise(text)).ids[1:-1])


@given(
    st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=60).filter(
        lambda text: "<" not in text
    )
)
@settings(max_examples=150)
def test_other_text_is_left_as_it_is(text: str) -> None:
    if not set("＜﹤⋖≮") & set(text) and "<" not in E5._normalise(text):
        assert E5.neutralise(text) == text


def test_lone_surrogates_are_replaced() -> None:
    assert E5.neutralise("脚\ud800架") == "脚\ufffd架"
    assert E5.encode(E5.neutralise("\udfff")).ids


def test_templates_may_use_control_tokens(tokenizer_file: Path) -> None:
    ids = ModelTokenizer(tokenizer_file, 64).encode("<|im_start|>脚<|im_end|>").ids
    assert ids[1] == VOCABULARY["<|im_start|>"]
    assert ids[3] == VOCABULARY["<|im_end|>"]


@pytest.mark.parametrize("max_tokens", [8, 31, 512])
def test_long_text_is_cut_with_its_end_token_kept(max_tokens: int) -> None:
    tokenizer = ModelTokenizer(E5_SMALL_ZH / "tokenizer.json", max_tokens)
    ids = tokenizer.encode("脚手架应当验收合格后使用，" * 200).ids
    assert len(ids) == max_tokens
    assert (ids[0], ids[-1]) == (0, 2)


def test_a_megabyte_is_cut_before_it_is_tokenised() -> None:
    text = E5.neutralise("脚手架" * 400_000)
    assert len(text) == 512 * 32
    assert len(E5.encode(text)) == 512


def test_an_end_token_is_appended_only_where_the_tokenizer_does_not(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(build_tokenizer("").to_str(), "utf-8")
    end = VOCABULARY["<|endoftext|>"]
    assert ModelTokenizer(file, 8, "<|endoftext|>").encode("脚手").ids == [
        VOCABULARY["脚"],
        VOCABULARY["手"],
        end,
    ]
    long = ModelTokenizer(file, 8, "<|endoftext|>").encode("脚" * 50).ids
    assert long == [VOCABULARY["脚"]] * 7 + [end]
    file.write_text(build_tokenizer("$A <|endoftext|>").to_str(), "utf-8")
    assert ModelTokenizer(file, 8, "<|endoftext|>").encode("脚").ids == [VOCABULARY["脚"], end]


def test_padding_is_on_the_side_that_is_asked_for() -> None:
    texts = [Encoded([5, 6, 7], [0, 0, 1]), Encoded([8], [1])]
    ids, mask, types = E5.pad(texts, "right")
    assert (ids.tolist(), mask.tolist(), types.tolist()) == (
        [[5, 6, 7], [8, 1, 1]],
        [[1, 1, 1], [1, 0, 0]],
        [[0, 0, 1], [1, 0, 0]],
    )
    ids, mask, types = E5.pad(texts, "left")
    assert (ids.tolist(), mask.tolist(), types.tolist()) == (
        [[5, 6, 7], [1, 1, 8]],
        [[1, 1, 1], [0, 0, 1]],
        [[0, 0, 1], [0, 0, 1]],
    )


def test_unusable_files_are_one_sentence(tmp_path: Path, tokenizer_file: Path) -> None:
    with pytest.raises(ModelMissing):
        ModelTokenizer(tmp_path / "absent.json", 8)
    with pytest.raises(ModelInvalid, match="</end>"):
        ModelTokenizer(tokenizer_file, 8, "</end>")
    for text in ("", "{}", '{"model": 3}', "\x00"):
        tokenizer_file.write_text(text)
        with pytest.raises(ModelInvalid, match="分词器"):
            ModelTokenizer(tokenizer_file, 8)
    tokenizer_file.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelInvalid, match="分词器"):
        ModelTokenizer(tokenizer_file, 8)

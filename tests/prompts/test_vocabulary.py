"""Prompts say what the vocabularies say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cg_rag import prompts
from cg_rag.core.criteria import UNVERIFIED as COUNTED
from cg_rag.core.report_publish import read_free_form
from cg_rag.modes.vision_rules import load_criteria, load_rules, system_text
from cg_rag.prompts import vocabulary

ANSWER, OBSERVE = "vision/answer/system.txt", "vision/observe/system.txt"


def test_every_prompt_holds_the_vocabularies_as_they_are() -> None:
    wanted = vocabulary.filled_files()
    assert {ANSWER, OBSERVE, vocabulary.CRITERIA} <= wanted.keys()
    for name, text in wanted.items():
        assert prompts.load(name).text == text, f"{name}: run `make prompts pins`"


def test_a_changed_vocabulary_is_written_into_the_prompts(tmp_path: Path) -> None:
    copy = tmp_path / "prompts"
    shutil.copytree(prompts.DIRECTORY, copy)
    labels = json.loads((copy / vocabulary.LABELS).read_text("utf-8"))
    labels["labels"][0]["label"] = "新标签问题"
    (copy / vocabulary.LABELS).write_text(json.dumps(labels, ensure_ascii=False), "utf-8")
    assert vocabulary.fill_prompts(copy) == [OBSERVE]
    assert "新标签问题" in (copy / OBSERVE).read_text("utf-8")
    assert vocabulary.fill_prompts(copy) == []


def test_no_block_of_a_prompt_is_empty() -> None:
    for name in (ANSWER, OBSERVE):
        text = prompts.load(name).text
        for block in vocabulary.render_blocks():
            assert f"<{block}>\n</{block}>" not in text


def test_the_words_for_an_unverified_clause_are_those_that_are_counted() -> None:
    assert vocabulary.UNVERIFIED == COUNTED
    rows = vocabulary.load_json(vocabulary.CLAUSES)["clauses"]
    assert load_criteria(None).num_unverified == sum(not row["verified"] for row in rows)


def test_the_system_message_is_the_file_two_line_ends_and_the_criteria() -> None:
    prompt, criteria = prompts.load(ANSWER), load_criteria(None)
    assert system_text(prompt, criteria) == prompt.text + "\n\n" + prompts.load(vocabulary.CRITERIA).text


def test_the_examples_of_the_answer_prompt_are_reports_that_would_be_published() -> None:
    text = prompts.load(ANSWER).text
    examples = [part.split("）\n", 1)[1].strip() for part in text.split("\n示例")[1:]]
    examples[-1] = examples[-1].rsplit("\n\n", 1)[0]
    assert len(examples) == 4
    for example in examples:
        assert read_free_form(example, 1, load_rules(None)).text == example


def test_the_examples_of_the_observe_prompt_have_known_labels() -> None:
    text = prompts.load(OBSERVE).text
    examples = [
        json.loads(line)
        for line in text.split("\n")
        if line.startswith('{"description":"') and "…" not in line
    ]
    assert len(examples) == 3
    labels = {row["label"] for row in vocabulary.load_json(vocabulary.LABELS)["labels"]}
    assert {example["hazard_label"] for example in examples} <= labels | {""}

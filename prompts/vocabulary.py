"""The closed vocabularies as data, and the blocks of text that prompts hold between <name> and </name>.

Rule: what a prompt says about a vocabulary is written into its file by `fill_prompts` (`make prompts`), never by hand
and never at run time: a system prompt goes out as its file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cg_rag.prompts import DIRECTORY, load

TAXONOMY: Final = "taxonomy.json"
LABELS: Final = "labels.json"
CLAUSES: Final = "clauses_2024.json"
CRITERIA: Final = "vision/criteria_2024.txt"
# Rules that the prompts of several modes share, by the name that stands around them there.
_BLOCKS: Final = "vision/blocks"
_BLOCK_FILES: Final = {
    "如实判断": "honesty.txt",
    "场景规则": "scene.txt",
    "定级规则": "levels.txt",
    "引用规则": "citations.txt",
    "报告格式": "sections.txt",
    "资料": "data.txt",
}
# Said behind a clause that nobody compared with the official text. core/criteria.py counts these lines.
UNVERIFIED: Final = "（未核对原文）"


def load_json(name: str, directory: Path = DIRECTORY) -> dict[str, Any]:
    """One of the vocabulary files, parsed."""
    data: dict[str, Any] = json.loads(load(name, directory).text)
    return data


def render_criteria(clauses: Mapping[str, Any]) -> str:
    """The shipped clause list as the text that goes behind a system prompt, in the shape of the official text."""
    lines = [
        f"《{clauses['law_name']}》（{clauses['doc_no']}）",
        "以下为条款摘要，不是官方原文；标有“未核对原文”的条款，条号与内容均未经核对。",
    ]
    article = ""
    for row in clauses["clauses"]:
        mark = "" if row["verified"] else UNVERIFIED
        if row["clause"] != article:
            article = row["clause"]
            lines += ["", f"{article} {row['subject']}"]
        if row["item"]:
            lines.append(f"{row['item']}{row['digest']}{mark}")
        else:
            lines[-1] += f"：{row['digest']}{mark}"
    return "\n".join(lines) + "\n"


def render_blocks(directory: Path = DIRECTORY) -> dict[str, str]:
    """Block name to its lines: the vocabularies, and the texts in vision/blocks/."""
    taxonomy, labels = load_json(TAXONOMY, directory), load_json(LABELS, directory)
    by_category: dict[str, list[str]] = {}
    for row in labels["labels"]:
        by_category.setdefault(row["category"], []).append(row["label"])
    blocks = {
        "隐患等级": "\n".join(taxonomy["levels"]),
        "隐患分类": "\n".join(
            [f"{row['name']}：{row['covers']}" for row in taxonomy["categories"]]
            + [f"{taxonomy['none']}：只与“{taxonomy['levels'][0]}”同时使用"]
        ),
        "隐患标签": "\n".join(f"{name}：{'、'.join(rows)}" for name, rows in by_category.items()),
    }
    for name, file in _BLOCK_FILES.items():
        blocks[name] = load(f"{_BLOCKS}/{file}", directory).text.strip("\n")
    return blocks


def fill_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """`text` with what stands between <name> and </name>, each alone on a line, replaced for every known name."""
    for name, body in blocks.items():
        pattern = rf"(?m)^<{re.escape(name)}>\n(?:.*\n)*?</{re.escape(name)}>$"
        text = re.sub(pattern, lambda _, name=name, body=body: f"<{name}>\n{body}\n</{name}>", text)  # type: ignore[misc]
    return text


def filled_files(directory: Path = DIRECTORY) -> dict[str, str]:
    """Every prompt file below vision/ as it has to be, by its path below `directory`."""
    blocks = render_blocks(directory)
    files = {CRITERIA: render_criteria(load_json(CLAUSES, directory))}
    for path in sorted((directory / "vision").rglob("*.txt")):
        name = path.relative_to(directory).as_posix()
        if name != CRITERIA and not name.startswith(_BLOCKS):
            files[name] = fill_blocks(path.read_text("utf-8"), blocks)
    return files


def fill_prompts(directory: Path = DIRECTORY) -> list[str]:
    """Write the vocabularies into the prompts; the names of the files that changed. Pins are a step of their own."""
    changed = []
    for name, text in filled_files(directory).items():
        path = directory / name
        if not path.exists() or path.read_bytes() != text.encode("utf-8"):
            path.write_bytes(text.encode("utf-8"))
            changed.append(name)
    return changed

"""What is expected of each photo of a labelled folder: the label file's text, CSV or JSONL, into values. No I/O.

Rule: nothing is guessed. A level or category that is none, a photo named twice and a column that says nothing are
refused with their line, before any model is asked: a wrong label would be counted as the model's fault.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from cg_rag.core.report import SCENE_WORDS, Scene
from cg_rag.core.taxonomy import NO_HAZARD, Taxonomy, fold_value
from cg_rag.core.vision_request import MAX_QUESTION_CHARACTERS

# docs/vision-eval.md, 标注文件: every way to head a column.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "photo": ("photo", "image", "file", "filename", "图片", "照片", "文件", "文件名"),
    "level": ("level", "等级", "隐患等级"),
    "category": ("category", "分类", "隐患分类", "类别"),
    "hazards": ("hazards", "hazard", "keywords", "隐患", "隐患描述", "关键词"),
    "question": ("question", "问题"),
}
_FIELD_OF: Final = {word: field for field, words in FIELDS.items() for word in words}
_DELIMITERS: Final = ",\t;"
_GROUPS: Final = re.compile(r"[；;、，,\n]")
_ALTERNATIVES: Final = re.compile(r"[|｜/]")


@dataclass(frozen=True, slots=True)
class PhotoLabel:
    """What one photo shows. `photo` is a path below the folder, with `/`. `level` and `category` are canonical, "" when
    nothing is said; `scene` is set instead of a level where no level is to be given. Of each group in `hazards` one
    word is to be found."""

    photo: str
    line: int
    level: str = ""
    scene: Scene = ""
    category: str = ""
    hazards: tuple[tuple[str, ...], ...] = ()
    question: str = ""


class LabelInvalid(Exception):
    """`line` counts from 1, 0 where the whole file is meant; `reason` is a Chinese clause."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"第 {line} 行{reason}。" if line else f"{reason}。")


def parse_labels(text: str, taxonomy: Taxonomy, is_jsonl: bool) -> list[PhotoLabel]:
    """The labels in the order of the file. Raises LabelInvalid."""
    rows = _read_jsonl(text) if is_jsonl else _read_csv(text)
    labels = [_to_label(line, row, taxonomy) for line, row in rows]
    lines: dict[str, int] = {}
    for label in labels:
        if label.photo in lines:
            raise LabelInvalid(label.line, f"的图片 {label.photo} 在第 {lines[label.photo]} 行已经有了")
        lines[label.photo] = label.line
    if not labels:
        raise LabelInvalid(0, "没有一张图片的标注")
    return labels


def _read_jsonl(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Not splitlines(): U+2028 is text in JSON.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LabelInvalid(number, "不是 JSON") from error
        if not isinstance(row, dict):
            raise LabelInvalid(number, "不是 JSON 对象")
        yield number, _named(number, row.items())


def _read_csv(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    if not lines:
        return
    delimiter = max(_DELIMITERS, key=lines[0].count)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(rows)
        begins = rows.line_num + 1
        if "photo" not in {_FIELD_OF.get(_fold_head(name)) for name in header}:
            raise LabelInvalid(1, f"表头缺少图片一列（可写作 {'、'.join(FIELDS['photo'])}）")
        for cells in rows:
            if any(cell.strip() for cell in cells):
                if len(cells) > len(header):
                    raise LabelInvalid(begins, f"有 {len(cells)} 列，多于表头的 {len(header)} 列")
                yield begins, _named(begins, zip(header, cells, strict=False))
            begins = rows.line_num + 1
    except csv.Error as error:
        raise LabelInvalid(rows.line_num, "的引号或分隔符有误") from error


def _fold_head(name: str) -> str:
    return fold_value(name).lower()


def _named(line: int, cells: Any) -> dict[str, Any]:
    """The cells under our names; columns of other names are the site's own affair."""
    row: dict[str, Any] = {}
    for name, value in cells:
        field = _FIELD_OF.get(_fold_head(name))
        if field is None or value in (None, ""):
            continue
        if field in row:
            raise LabelInvalid(line, f"有两列都是{FIELDS[field][-1]}")
        row[field] = value
    return row


def _to_label(line: int, row: Mapping[str, Any], taxonomy: Taxonomy) -> PhotoLabel:
    level, scene = _read_level(line, _text(line, row, "level"), taxonomy)
    category = _read_category(line, _text(line, row, "category"), taxonomy)
    if level == NO_HAZARD and category not in ("", taxonomy.none):
        raise LabelInvalid(line, f"的等级是{NO_HAZARD}，分类却是{category}")
    if scene and category:
        raise LabelInvalid(line, f"的图片{SCENE_WORDS[scene]}，却写了分类{category}")
    if level == NO_HAZARD:
        category = taxonomy.none
    question = _text(line, row, "question")
    if len(question) > MAX_QUESTION_CHARACTERS:
        raise LabelInvalid(line, f"的问题有 {len(question)} 个字符，超过上限 {MAX_QUESTION_CHARACTERS} 个")
    hazards = _read_hazards(line, row.get("hazards", ""))
    return PhotoLabel(_read_photo(line, row), line, level, scene, category, hazards, question)


def _text(line: int, row: Mapping[str, Any], field: str) -> str:
    value = row.get(field, "")
    if not isinstance(value, str):
        raise LabelInvalid(line, f"的{FIELDS[field][-1]}不是字符串")
    return value.strip()


def _read_photo(line: int, row: Mapping[str, Any]) -> str:
    written = _text(line, row, "photo").replace("\\", "/")
    path = PurePosixPath(written)
    is_name = written.isprintable() and not re.search("[\ud800-\udfff]", written)
    if not path.parts or path.is_absolute() or ".." in path.parts or not is_name:
        raise LabelInvalid(line, f"的图片须为该文件夹内的相对路径，收到“{ascii(written)[1:-1][:80]}”")
    return str(path)


def _read_level(line: int, written: str, taxonomy: Taxonomy) -> tuple[str, Scene]:
    if not written:
        return "", ""
    for scene, words in SCENE_WORDS.items():
        if fold_value(written) in (scene, words):
            return "", scene  # type: ignore[return-value]
    level = taxonomy.find_level(written)
    if level is None:
        raise LabelInvalid(
            line, f"的等级“{written[:40]}”不在四个等级之中，也不是{'、'.join(SCENE_WORDS.values())}"
        )
    return level, ""


def _read_category(line: int, written: str, taxonomy: Taxonomy) -> str:
    category = taxonomy.find_category(written) if written else ""
    if category is None:
        raise LabelInvalid(line, f"的分类“{written[:40]}”不在 19 类之中，也不是{taxonomy.none}")
    return category


def _read_hazards(line: int, value: object) -> tuple[tuple[str, ...], ...]:
    if isinstance(value, str):
        value = _GROUPS.split(value)
    if not isinstance(value, list):
        raise LabelInvalid(line, "的隐患不是字符串，也不是数组")
    groups = [tuple(_words(line, group)) for group in value]
    return tuple(group for group in groups if group)


def _words(line: int, group: object) -> Sequence[str]:
    words = _ALTERNATIVES.split(group) if isinstance(group, str) else group
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise LabelInvalid(line, "的隐患数组中有不是字符串的项")
    return [word.strip() for word in words if word.strip()]

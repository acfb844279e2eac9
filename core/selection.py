"""Constrained generation without I/O: candidates, what a model is asked, and the answer made of what it picks.

Rule: a model only ever names numbers. Every word of an answer is from here or from a candidate's law and number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cg_rag.core.picks import Fault

# Read by callers; docs/http.md.
FIRST_LINE: Final = "我根据在线检索与候选筛选结果，整理出以下最相关条文："
NOTHING_FOUND: Final = "当前候选条文中未找到与问题直接相关的条文。"

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An article that may be chosen. `score` is of retrieval, None where the caller gave none; `document` is the
    article as it came."""

    law_name: str
    article_number: str
    contents: str
    score: float | None
    document: Mapping[str, Any]

    @property
    def item(self) -> str:
        """`law number` in one line: a line of an answer is one article, whatever its names hold."""
        return " ".join(f"{self.law_name} {self.article_number}".splitlines()).strip()


class AnswerLines:
    """The answer, line by line: joined, the lines of all `take` and of `finish` are the answer."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates
        self._lines: list[str] = []
        self._num_items = 0

    @property
    def text(self) -> str:
        return "".join(self._lines)

    def take(self, picks: Sequence[int]) -> list[str]:
        """What follows once these are picked too."""
        lines = [] if self._lines or not picks else [FIRST_LINE]
        for pick in picks:
            self._num_items += 1
            lines.append(f"\n{self._num_items}. {self._candidates[pick - 1].item}")
        self._lines += lines
        return lines

    def finish(self) -> list[str]:
        """What follows when nothing more is picked."""
        if self._lines:
            return []
        self._lines.append(NOTHING_FOUND)
        return [NOTHING_FOUND]


def pick_schema(num_candidates: int, max_items: int) -> dict[str, Any]:
    """The JSON schema of an answer: the strongest that can be said about it."""
    indices = {
        "type": "array",
        "items": {"type": "integer", "enum": list(range(1, num_candidates + 1))},
        "uniqueItems": True,
        "maxItems": max_items,
    }
    return {
        "type": "object",
        "properties": {"indices": indices},
        "required": ["indices"],
        "additionalProperties": False,
    }


def pick_messages(
    system_prompt: str, query: str, candidates: Sequence[Candidate], max_items: int
) -> list[Message]:
    """The system prompt byte for byte; the candidates as one line of JSON each, so that no text of an article can
    look like another one."""
    lines = ["候选条文："]
    lines += [_candidate_line(index, candidate) for index, candidate in enumerate(candidates, 1)]
    lines += [
        f"问题：{query}",
        f'最多选择 {max_items} 条。只输出一个 JSON 对象，形如 {{"indices":[编号,…]}}。',
    ]
    return [{"role": "system", "content": system_prompt}, {"role": "user", "content": "\n".join(lines)}]


def _candidate_line(index: int, candidate: Candidate) -> str:
    told = {
        "index": index,
        "law_name": candidate.law_name,
        "article_number": candidate.article_number,
        "contents": candidate.contents,
    }
    return orjson.dumps(told).decode()


MAX_QUOTED_CHARS: Final = 2000  # of a useless answer: enough for a model to see what it did


def correction_messages(raw: str, reason: str, num_candidates: int) -> list[Message]:
    """What is said after an answer without a valid selection; some servers refuse an empty assistant message."""
    said = raw.strip()[:MAX_QUOTED_CHARS] or "（空）"
    wanted = f'编号须为 1..{num_candidates} 的整数；没有直接相关的条文时输出 {{"indices":[]}}。'
    ask = f'上面的回答不能使用：{reason}。请重新作答，只输出一个 JSON 对象，形如 {{"indices":[编号,…]}}，{wanted}'
    return [{"role": "assistant", "content": said}, {"role": "user", "content": ask}]


def fault_words(fault: Fault | None, num_candidates: int) -> str:
    """Why an answer is none, for the model and for the caller; `None` is an answer without text."""
    if fault is None:
        return "回答为空"
    if fault == "no_list":
        return "回答中没有含 indices 数组的 JSON 对象"
    return f"indices 中没有 1..{num_candidates} 之间的整数"

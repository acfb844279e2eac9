"""Reads which candidates a model chose, from its answer or from as much of it as has come. No I/O.

Rule: nothing is taken at its word. Only whole numbers from 1 to the number of candidates are picks, each once, in the
order they were said, no more than were asked for. What was handed out while the answer came is what the whole answer
gives, however it was cut: the first list of `indices` with a pick in it counts, or the first one that is empty. Only an
answer without either is read as a whole, where one that is JSON may say its picks in other ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import orjson

Fault = Literal["no_list", "none_valid"]

# `excluded_indices` is another key. The longest beginning that may still become one, and the character before it: white
# space in it is bounded for this.
_KEY: Final = re.compile(r"(?<![A-Za-z0-9_])indices\\?[\"'“”]?\s{0,32}[:：]\s{0,32}\[")
_MAX_KEY_CHARS: Final = 77
# A backslash before a quote: JSON inside of a JSON string.
_ITEM: Final = re.compile(
    r"(?P<gap>[\s,，、]+)"
    r"|(?P<end>\])"
    r"|(?P<number>[-+]?\d[\d.eE+\-]{0,40})(?=[^\d.eE+\-])"
    r"|\\?[\"'](?P<quoted>[^\"'\\]{0,40})\\?[\"']"
    r"|(?P<word>[A-Za-z]{1,40})(?=[^A-Za-z])"
)
_BEGUN_ITEM: Final = re.compile(r"|[-+]?\d[\d.eE+\-]{0,40}|[-+]|\\?[\"'][^\"'\\]{0,40}\\?|\\|[A-Za-z]{1,40}")
_WHOLE: Final = re.compile(r"\s*\+?0*(\d{1,9})(?:\.0*)?\s*")
# Beyond these an answer is no selection: they bound the work on what a broken server may send.
_MAX_ITEMS: Final = 1000
_MAX_LISTS: Final = 16
_MAX_WHOLE_CHARS: Final = 4096

_FENCED: Final = re.compile(r"```\w*+(.*)```", re.DOTALL)
_NAMES: Final = (
    "indices",
    "index",
    "indexes",
    "编号",
    "序号",
)  # seen in place of `indices`; the first one counts
_BETWEEN: Final = re.compile(r"[\s,，、;；]+")


class PickReader:
    """Feed the answer's text as it comes, then `finish`. Both return the picks that are certain now and were not
    before, as numbers from 1."""

    def __init__(self, num_candidates: int, max_items: int) -> None:
        self._num_candidates = num_candidates
        self._max_items = max_items
        self._rest = ""  # what is not read yet, or may be the beginning of a key
        self._place = 0  # in the rest
        self._in_list = False
        self._done = False
        self._num_lists = 0
        self._num_items = 0  # of the list that is open
        self._picks: list[int] = []
        self._is_empty = False
        self._whole = ""  # the answer so far, one character longer than what is looked at

    @property
    def picks(self) -> tuple[int, ...]:
        return tuple(self._picks)

    @property
    def fault(self) -> Fault | None:
        """After `finish`: why there is no valid selection. An empty list is one."""
        if self._picks or self._is_empty:
            return None
        return "none_valid" if self._num_lists else "no_list"

    def feed(self, text: str) -> list[int]:
        if self._done:
            return []
        known = len(self._picks)
        self._rest += text
        self._whole += text[: _MAX_WHOLE_CHARS + 1 - len(self._whole)]
        while not self._done and (self._read_item() if self._in_list else self._find_list()):
            pass
        # One character that is read already stays: whether a key begins behind it hangs on it.
        read = max(0, self._place - 1)
        self._rest = self._rest[read:]
        self._place -= read
        return self._picks[known:]

    def finish(self, truncated: bool = False) -> list[int]:
        """`truncated`: the answer ended at a limit, so its last number may be the beginning of a longer one."""
        found = [] if truncated or self._done or not self._in_list else self.feed(" ")
        if not (truncated or self._done or self._picks or self._is_empty):
            found = self._read_whole()
        self._done = True
        return found

    def _read_whole(self) -> list[int]:
        said = _selection(self._whole.strip()) if len(self._whole) <= _MAX_WHOLE_CHARS else None
        if said is None:
            return []
        self._num_lists += 1
        self._is_empty = said == []
        for number in _numbers(said):
            if not self._done:
                self._add(number)
        return list(self._picks)

    def _find_list(self) -> bool:
        key = _KEY.search(self._rest, self._place)
        if key is None:
            self._place = max(self._place, len(self._rest) - _MAX_KEY_CHARS)
            return False
        self._place = key.end()
        self._in_list = True
        self._num_lists += 1
        self._num_items = 0
        return True

    def _read_item(self) -> bool:
        """Whether there may be more to read."""
        item = _ITEM.match(self._rest, self._place)
        if item is None:
            may_become_one = _BEGUN_ITEM.fullmatch(self._rest, self._place)
            return False if may_become_one else self._leave_list()
        self._place = item.end()
        if item["end"]:
            self._is_empty = not self._num_items
            return self._leave_list()
        if item["gap"]:
            return True
        self._num_items += 1
        self._take(item["number"] or item["quoted"] or "")
        return self._leave_list() if self._num_items >= _MAX_ITEMS else not self._done

    def _take(self, said: str) -> None:
        whole = _WHOLE.fullmatch(said)
        self._add(int(whole[1]) if whole else 0)

    def _add(self, number: int) -> None:
        if 1 <= number <= self._num_candidates and number not in self._picks:
            self._picks.append(number)
            self._done = len(self._picks) >= self._max_items

    def _leave_list(self) -> bool:
        self._in_list = False
        if self._picks or self._is_empty or self._num_lists >= _MAX_LISTS:
            self._done = True
        return not self._done


def _selection(answer: str) -> Any:
    """What an answer names that is JSON as a whole, up to a fence or words around one object: a list, or the value of
    one of `_NAMES`. None for any other."""
    fenced = _FENCED.fullmatch(answer)
    value = _loads(fenced[1].strip() if fenced else answer)
    if value is None:
        value = _loads(answer[answer.find("{") : answer.rfind("}") + 1])
    if isinstance(value, dict):
        return next((value[name] for name in _NAMES if name in value), None)
    return value


def _numbers(said: Any) -> Iterator[int]:
    """2, 2.0, "2", "1,3", {"index": 2}, and lists of these. A text that holds more than numbers says nothing certain."""
    if isinstance(said, list):
        for item in said:
            yield from _numbers(item.get("index") if isinstance(item, dict) else _leaf(item))
    elif isinstance(said, str):
        parts = [_WHOLE.fullmatch(part) for part in _BETWEEN.split(said.strip())]
        if all(parts):
            yield from (int(part[1]) for part in parts if part)
    elif type(said) in (int, float) and said == said // 1:
        yield int(said)


def _leaf(item: Any) -> Any:
    return None if isinstance(item, list) else item


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None

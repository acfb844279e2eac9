"""Whether a law is in force, and the order that follows from it.

Rule: what is no longer law, or not yet, stands behind what is. It is kept and marked, never hidden: whoever asks for
it by name gets it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Literal

Validity = Literal["in_force", "amended", "repealed", "pending"]

# Inside a window of this many places those in force come first. A fixed step and not topk: an article's place must not
# depend on how many were asked for. Behind the whole list, a repealed article that answers best would be behind a
# hundred that do not answer at all.
WINDOW = 20

_BLANKS = re.compile(r"\s+")
_SPELLINGS: tuple[tuple[Validity, re.Pattern[str]], ...] = (
    (
        "pending",
        re.compile(
            r"尚未(?:生效|施行|实施)|未(?:生效|施行)|即将(?:生效|施行|实施)|草案|征求意见|送审稿|报批稿|not yet|pending|draft",
            re.I,
        ),
    ),
    (
        "repealed",
        re.compile(
            r"(?<!不)(?<!未)(?<!没有)(?:废止|失效|作废|撤销|终止)|无效|不再有效|过期|停止(?:执行|施行|使用)"
            r"|repealed|abolished|expired|invalid|withdrawn|no longer|not in force",
            re.I,
        ),
    ),
    (
        "amended",
        re.compile(
            r"已(?:被|经)?(?:修改|修订|修正|替代|取代|代替)|被(?:替代|取代|代替)|旧版|历史版本|非现行|superseded|replaced|amended",
            re.I,
        ),
    ),
)
_IN_FORCE = re.compile(r"现行|有效|已生效|施行中|生效中|部分|in force|valid|current", re.I)
_PARTLY = re.compile(r"部分[^，。；]{0,6}(?:失效|废止|无效|修改)")
# 2026-07-01, 2026/7/1, 2026.7.1, 2026年7月1日, 20260701, each with a time behind it or not.
_DATE = re.compile(r"((?:19|2\d|99)\d\d)(?:[-/.年]([01]?\d)[-/.月]([0-3]?\d)(?!\d)|([01]\d)([0-3]\d)(?!\d))")


def read_validity(status: Any) -> Validity | None:
    """What a status as sources write it says (现行有效, 已废止, 已被修改, 旧版, 尚未生效); None where it says nothing
    that is known here."""
    if not isinstance(status, str):
        return None
    text = _BLANKS.sub("", status.casefold()) if not status.isascii() else status.casefold().strip()
    if _IN_FORCE.match(text):  # 现行有效（曾被修订）, 部分失效: the law is in force
        return "in_force"
    return next((validity for validity, spellings in _SPELLINGS if spellings.search(text)), None)


def find_validity(fields: Mapping[str, Any], today: date | None = None) -> Validity | None:
    """What the source's `status` and `effective_date` say of an article; None where they say nothing known.

    A date to come says that the law is not in force yet, unless the status says that it is over. One that has passed
    says nothing: sources keep the day on which a law first came into force.
    """
    said = read_validity(fields.get("status"))
    if said in (None, "in_force"):
        begins = read_date(fields.get("effective_date"))
        if begins is not None and begins > (today or date.today()):
            return "pending"
    return said


def is_in_force(fields: Mapping[str, Any]) -> bool:
    """Whether nothing says that the law is over, superseded, or not yet in force."""
    return find_validity(fields) in (None, "in_force")


def is_partly_repealed(fields: Mapping[str, Any]) -> bool:
    """Whether the law is in force and some articles of it are not (部分失效); which ones the source does not say."""
    status = fields.get("status")
    return isinstance(status, str) and bool(_PARTLY.search(status))


def describe_validity(fields: Mapping[str, Any]) -> str:
    """In Chinese, for an article that is not in force: what the source says of it."""
    if read_validity(fields.get("status")) in (None, "in_force"):
        return f"施行日期为 {fields.get('effective_date')}，尚未施行"
    return f"标注为“{fields['status']}”"


def read_date(value: Any) -> date | None:
    """The day that a text begins with, or that a number is (20260701)."""
    match = _DATE.match(str(value).strip()) if isinstance(value, str | int) else None
    if match is None:
        return None
    year, month, day = (int(part) for part in match.groups() if part)
    try:
        return date(year, month, day)
    except ValueError:
        return None


def order_by_validity(in_force: Sequence[bool], window: int) -> list[int]:
    """The order of items of which `in_force` tells: within each window those in force first, otherwise as they were."""
    order: list[int] = []
    for start in range(0, len(in_force), window):
        places = range(start, min(start + window, len(in_force)))
        order += sorted(places, key=lambda place: not in_force[place])
    return order

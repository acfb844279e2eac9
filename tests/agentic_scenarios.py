"""Whole conversations of the agentic mode: what the model says, turn by turn, and what the request brings along.

The evidence comes from the small index of tests/conftest.py: `LAW` 2.0.1 is evidence 1 of `PLAN`, 6.0.5(1) evidence 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fake_upstream import FinInChunk, Hang, Script, error, raw, says
from tests.pictures import jpeg, png, text_of

PICTURE = {"data": text_of(jpeg())}
BUDGET_SECONDS = 5.0  # of the scenarios that wait for its end: what comes before takes milliseconds and has to be done by then
LAW = "样例脚手架规范"
CRITERIA = "《房屋市政工程生产安全重大事故隐患判定标准（2024版）》"

INVENTORY = says("一、人员与防护\n未见\n三、脚手架与模板\n立杆底部浸在积水里。")
SEEN = "[OBSERVATION]\n1. 脚手架立杆底部浸在积水里。\n场景：assessable\n"
PLAN = f"{SEEN}[SEARCH_PLAN]\n- 脚手架地基积水 排水要求\n"
REVIEW = "[EVIDENCE_REVIEW]\n[cite^1] 对应立杆底部积水，证据足够。\n[FINAL_REASONING]\n积水为可见事实，按一般隐患定级。\n"


def report(
    basis: str = f"1. 《{LAW}》2.0.1：脚手架地基不得有积水 [cite^1]。",
    level: str = "一般隐患",
    category: str = "扣件式钢管脚手架",
    measures: str = "1. 立即排除积水，沿架体四周设排水沟。",
    head: str = "##",
) -> str:
    parts = [f"{head} 隐患等级\n{level}", f"{head} 隐患分类\n{category}"]
    parts.append(f"{head} 隐患描述\n1. 脚手架立杆底部浸在积水里。")
    parts += [f"{head} 隐患判定依据\n{basis}"] if basis else []
    parts.append(f"{head} 整改措施及建议\n{measures}")
    return "\n\n".join(parts)


SAFE = "## 隐患等级\n无隐患\n\n## 隐患分类\n无\n\n## 隐患描述\n1. 临边护栏连续完整，人员佩戴安全帽。\n\n## 整改措施及建议\n1. 无需整改。"
WRITTEN = f"{REVIEW}[ANSWER]\n{report()}\n"
FORGED = f"{REVIEW}[ANSWER]\n{report(f'1. 《{LAW}》2.0.1：脚手架地基不得有积水 [cite^9]。')}\n"
FROM_MEMORY = f"{REVIEW}[ANSWER]\n{report('1. 《建筑法》第四十七条：不得违章作业 [cite^1]。')}\n"
HALF_FORGED = (
    f"{REVIEW}[ANSWER]\n"
    + report(f"1. 《{LAW}》2.0.1：地基不得有积水 [cite^1][cite^9]。\n2. 《建筑法》第四十七条：不得违章作业。")
    + "\n"
)
CORRECTED = f"[ANSWER]\n{report()}\n"
NOTHING_FOUND = (
    "[EVIDENCE_REVIEW]\n没有证据。\n[FINAL_REASONING]\n按可见事实定级。\n[ANSWER]\n"
    + report("1. 立杆底部浸水，地基承载力可能下降。")
    + "\n"
)

OBSERVED = json.dumps(
    {
        "scene_status": "assessable",
        "facts": ["脚手架立杆底部浸在积水里。", "新进场人员未经教育。"],
        "hazards": ["脚手架地基积水"],
    },
    ensure_ascii=False,
)
SEEN_TWICE = json.dumps(
    {
        "scene_status": "assessable",
        "facts": ["脚手架立杆底部浸在积水里，未见垫板。", "动火点旁没有灭火器。"],
        "hazards": ["脚手架地基积水", "动火作业未配备灭火器"],
    },
    ensure_ascii=False,
)
PLANNED = json.dumps({"questions": ["脚手架地基积水 排水要求"]}, ensure_ascii=False)
ENOUGH = json.dumps(
    {"summary": "[cite^1] 对应积水 [cite^9]。", "enough": True, "questions": []}, ensure_ascii=False
)
MORE = json.dumps(
    {"summary": "[cite^1] 对应积水。", "enough": False, "questions": ["新进场人员安全教育培训"]},
    ensure_ascii=False,
)
COMPOSED = f"[FINAL_REASONING]\n积水为可见事实。\n[ANSWER]\n{report()}\n"


@dataclass(frozen=True)
class Scenario:
    """`ending`: "final", or the code of the error. `index`: "whole", or "broken" once it is loaded."""

    replies: Sequence[Script]
    ending: str = "final"
    profile: str = "e10"
    request: Mapping[str, Any] = field(default_factory=dict)
    index: str = "whole"
    budget_seconds: float | None = None


def of(*replies: Script | str, **options: Any) -> Scenario:
    return Scenario([says(reply) if isinstance(reply, str) else reply for reply in replies], **options)


_THINKS = {"enable_thinking": True}
_HISTORY = [{"query": "先看这张", "answer": "引用过 [cite^3]。", "turn_index": 0}]
_TWO = {"images": [PICTURE, {"data": text_of(png())}]}
_TWO_SCENES = f"## 图1\n\n{report(head='###')}\n\n## 图2\n\n场景：画面不足以判定\n\n1. 画面过暗，看不清架体。"
_BASE: dict[str, Any] = {"profile": "continuous_base"}
_CONTROLLER: dict[str, Any] = {"profile": "controller"}

SCENARIOS: dict[str, Scenario] = {
    "clean": of(INVENTORY, PLAN, WRITTEN),
    "two_rounds": of(
        INVENTORY,
        PLAN,
        "[EVIDENCE_REVIEW]\n[cite^1] 对应积水，培训未查到。\n[SEARCH_PLAN]\n- 新进场人员安全教育培训\n- 脚手架地基积水 排水要求\n",
        f"{REVIEW}[ANSWER]\n"
        + report(
            f"1. 《{LAW}》2.0.1：地基不得有积水 [cite^1]。\n2. 新进场人员应接受安全教育和培训 [cite^3]。"
        ),
    ),
    "rounds_used_up": of(INVENTORY, PLAN, PLAN, WRITTEN, request={"max_search_rounds": 1}),
    "empty_retrieval": of(
        INVENTORY, f"{SEEN}[SEARCH_PLAN]\n- zzzz\n", NOTHING_FOUND, request={"max_search_rounds": 1}
    ),
    "empty_retrieval_article_named": of(
        INVENTORY,
        f"{SEEN}[SEARCH_PLAN]\n- zzzz\n",
        NOTHING_FOUND.replace("1. 立杆底部浸水", "1. 违反《建筑法》第四十七条。\n2. 立杆底部浸水 [cite^1]"),
    ),
    "empty_retrieval_basis_cut": of(
        INVENTORY,
        f"{SEEN}[SEARCH_PLAN]\n- zzzz\n",
        NOTHING_FOUND.replace("1. 立杆底部浸水，地基承载力可能下降。", "1. 违反《建筑法》第四十七条。"),
    ),
    "failed_retrieval_strict": of(INVENTORY, PLAN, ending="retrieval.failed", index="broken"),
    "failed_retrieval_lenient": of(PLAN, NOTHING_FOUND, index="broken", **_BASE),
    "forged_citation": of(INVENTORY, PLAN, FORGED, CORRECTED),
    "article_from_memory": of(INVENTORY, PLAN, FROM_MEMORY, CORRECTED),
    "broken_protocol": of(INVENTORY, "我看到脚手架立杆泡在水里。", PLAN, WRITTEN),
    "broken_protocol_to_the_end": of(
        INVENTORY, *["我看到脚手架立杆泡在水里。"] * 3, ending="vision_response_invalid"
    ),
    "two_corrections": of(INVENTORY, PLAN, FORGED, FROM_MEMORY, CORRECTED),
    "salvage": of(INVENTORY, PLAN, HALF_FORGED, HALF_FORGED, HALF_FORGED),
    "no_salvage": of(PLAN, HALF_FORGED, HALF_FORGED, HALF_FORGED, ending="vision_response_invalid", **_BASE),
    "salvage_of_an_earlier_draft": of(INVENTORY, PLAN, FORGED, FORGED, "[ANSWER]\n无法给出。"),
    "budget_before_a_report": of(
        INVENTORY,
        PLAN,
        says(WRITTEN, cut_after=40, cut_by=(Hang(),)),
        ending="vision_budget_exceeded",
        budget_seconds=BUDGET_SECONDS,
    ),
    "budget_after_a_valid_report": of(
        INVENTORY,
        PLAN,
        HALF_FORGED,
        says(CORRECTED, cut_after=9, cut_by=(Hang(),)),
        budget_seconds=BUDGET_SECONDS,
    ),
    "upstream_fails_after_a_valid_report": of(INVENTORY, PLAN, HALF_FORGED, raw(b"{}", 400)),
    "several_images": of(INVENTORY, PLAN, f"{REVIEW}[ANSWER]\n{_TWO_SCENES}\n", request=_TWO),
    "history": of(INVENTORY, PLAN, WRITTEN, request={"history": _HISTORY, "question": "再检查一下隐患"}),
    "no_site": of(
        INVENTORY,
        "[OBSERVATION]\n1. 室内会议桌。\n场景：unsupported_scene\n[FINAL_REASONING]\n不是施工现场。\n[ANSWER]\n画面为室内会议桌，没有施工活动，不作隐患判定。\n",
    ),
    "too_little_to_see": of(
        INVENTORY,
        "[OBSERVATION]\n1. 画面过暗。\n场景：insufficient_visual_evidence\n[FINAL_REASONING]\n看不清。\n[ANSWER]\n画面过暗，只见钢管轮廓。请补拍立杆底部。\n",
    ),
    "no_hazard": of(INVENTORY, f"{SEEN}[FINAL_REASONING]\n未见隐患。\n[ANSWER]\n{SAFE}\n"),
    "hazard_without_search": of(
        INVENTORY,
        f"{SEEN}[FINAL_REASONING]\n直接定级。\n[ANSWER]\n{report('1. 立杆浸水。')}\n",
        PLAN,
        WRITTEN,
    ),
    "plain_question": of(
        "[OBSERVATION]\n画面里有两台塔吊。\n[ANSWER]\n图里有两台塔吊，属于《塔吊规范》JGJ 999 [cite^1]。\n其中一台在吊运钢筋。\n",
        request={"question": "图里有几台塔吊？"},
    ),
    "level_without_clause": of(INVENTORY, PLAN, f"{REVIEW}[ANSWER]\n{report(level='重大事故隐患')}\n"),
    "level_with_clause": of(
        INVENTORY,
        PLAN,
        f"{REVIEW}[ANSWER]\n"
        + report(
            f"1. {CRITERIA}第七条第一款：脚手架工程基础承载力不满足设计要求。\n2. 脚手架地基不得有积水 [cite^1]。",
            level="重大事故隐患",
        ),
    ),
    "label_in_the_answer": of(
        INVENTORY, PLAN, f"{REVIEW}[ANSWER]\n{report()}\n[EVIDENCE_REVIEW]\n补充说明。\n", CORRECTED
    ),
    "another_format": of(
        INVENTORY,
        PLAN,
        f"{REVIEW}[ANSWER]\n**隐患等级**：一般隐患\n**隐患分类**：扣件式钢管脚手架\n**隐患描述**：\n- 立杆浸水。\n**判定依据**：\n- 地基不得有积水【cite^１】。\n**整改措施**：\n- 排水。\n",
    ),
    "thinking": of(
        INVENTORY,
        says(PLAN, thinking="[ANSWER]\n先想一想 [cite^8]"),
        says(f"<think>想过《建筑法》第一条</think>{WRITTEN}"),
        request=_THINKS,
    ),
    "retries": of(error(503), INVENTORY, error(429), error(500), error(502), error(503), PLAN, WRITTEN),
    "retries_used_up": of(error(503), error(503), ending="vision_upstream_error", **_BASE),
    "cut_after_tokens": of(
        INVENTORY,
        PLAN,
        says(WRITTEN, cut_after=120, cut_by=(FinInChunk(),)),
        ending="vision_upstream_error",
    ),
    "controller": of(OBSERVED, PLANNED, ENOUGH, COMPOSED, **_CONTROLLER),
    "controller_two_rounds": of(
        f"好的：\n```json\n{OBSERVED}\n```", PLANNED, MORE, ENOUGH, COMPOSED, **_CONTROLLER
    ),
    "controller_alignment": of(
        OBSERVED,
        PLANNED,
        ENOUGH,
        COMPOSED.replace(
            "积水 [cite^1]。", "积水 [cite^2]。\n2. 《样例脚手架规范》6.0.5(1)：应组织验收 [cite^2]。"
        ),
        **_CONTROLLER,
    ),
    "controller_broken_json": of("我看到积水。", OBSERVED, PLANNED, ENOUGH, COMPOSED, **_CONTROLLER),
    "controller_no_site": of(
        json.dumps({"scene_status": "unsupported_scene", "facts": ["室内会议桌。"], "hazards": []}),
        "[FINAL_REASONING]\n不是施工现场。\n[ANSWER]\n画面为室内会议桌，不作隐患判定。",
        **_CONTROLLER,
    ),
    "controller_plain_question": of(
        "[ANSWER]\n两台。", request={"question": "图里有几台塔吊？"}, **_CONTROLLER
    ),
    "controller_wip": of(OBSERVED, SEEN_TWICE, PLANNED, ENOUGH, ENOUGH, COMPOSED, profile="controller_wip"),
}

"""vision/agentic: pictures in, a hazard report out whose citations are evidence. docs/vision.md, 智能生成.

Rule: nothing is published that names an article which is neither evidence of this request nor a clause of the
criteria, and no mark that names no evidence is ever sent. The workflows are core/agentic_continuous.py and
core/agentic_controller.py; which of them, and with what, is the profile's to say.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from typing import Final as Constant

from cg_rag.core.agentic_case import Brief, Case, Found, Means
from cg_rag.core.agentic_continuous import run_continuous
from cg_rag.core.agentic_controller import run_controller
from cg_rag.core.agentic_report import Task, Verdict
from cg_rag.core.errors import CgError
from cg_rag.core.events import Event, Final, Progress
from cg_rag.core.evidence import EvidenceStore
from cg_rag.core.images import image_content
from cg_rag.core.vision_request import SearchingRequest, history_messages
from cg_rag.core.vision_settings import max_photo_body_bytes
from cg_rag.modes import retrieve, vision_intake, vision_search
from cg_rag.modes.services import Services
from cg_rag.modes.vision_intake import Intake
from cg_rag.modes.vision_rules import make_references, system_text
from cg_rag.modes.vision_search import old_law_warnings, scope_of, search_round

SUMMARY = "看图识别隐患：智能生成，自行检索法规并引用"
CODES = (*vision_intake.CODES, *retrieve.CODES)
Request = SearchingRequest
max_body_bytes = max_photo_body_bytes
default_scope = vision_search.default_scope
check_configured = vision_intake.check_configured

_WORKFLOWS: Constant = {"continuous": run_continuous, "controller": run_controller}


async def run(request: SearchingRequest, services: Services, request_id: str) -> AsyncGenerator[Event, None]:
    """Yields Progress, Trace, Agent, Token, AnswerReset and Final. Raises CgError: CODES, invalid_request (unknown
    scope), capacity.exceeded."""
    scope = scope_of(request, services)
    retrieve.get_usable_scope(scope, services.library.snapshot)
    intake = await vision_intake.take_in(request, services, request.enable_thinking)
    case = _open_case(request, scope, intake, services)
    yield Progress("vision", "正在结合法规识别图片隐患", "running")
    yield case.note("图片接收", "done", f"已接收并校验 {len(intake.images)} 张图片。")
    async with intake.slot(services), aclosing(_work(case)) as events:
        async for event in events:
            yield event
    verdict = case.verdict
    assert verdict is not None, "the work ended without a verdict"
    for event in (*case.begin_final(), *case.channel.settle(verdict.text, verdict.reason)):
        yield event
    num_citations = len(verdict.citations)
    draft = "" if verdict.passes else "回答是按规则修正后的草稿。"
    yield case.note("证据化结论生成", "done", f"已生成最终回答，使用 {num_citations} 条服务器引用。{draft}")
    for event in case.end_final():
        yield event
    yield Progress("vision", "图片隐患识别完成", "done")
    yield Final(_payload(request_id, scope, intake, services, case, verdict))


async def _work(case: Case) -> AsyncGenerator[Event, None]:
    workflow = _WORKFLOWS[case.brief.profile.workflow]
    try:
        async with aclosing(workflow(case)) as events:
            async for event in events:
                yield event
    except CgError as error:
        case.rescue(error)
        for ended in case.end_retry("更正没有完成"):
            yield ended


def _open_case(request: SearchingRequest, scope: str, intake: Intake, services: Services) -> Case:
    settings, texts = services.settings.vision, services.vision_texts
    profile = services.vision_profile
    topk = request.topk or settings.topk
    rules = texts.rules
    brief = Brief(
        Task(request.question, len(intake.images), rules, profile.aligns_citations),
        profile,
        image_content(intake.images),
        history_messages(request.history),
        {step: system_text(prompt, rules.criteria) for step, prompt in texts.agentic_systems.items()},
        texts.agentic_instructions,
        request.max_search_rounds or settings.max_search_rounds,
        topk,
    )

    async def search(questions: Sequence[str]) -> Found:
        started = time.perf_counter()
        budget = intake.calls.budget
        found = await search_round(questions, scope, topk, services, budget, "法规检索")
        spent = (time.perf_counter() - started) * 1000
        intake.stats["retrieval_ms"] = intake.stats.get("retrieval_ms", 0.0) + spent
        return found

    means = Means(intake.calls, search, lambda items: make_references(items, rules), services.in_thread)
    return Case(brief, means, texts.criteria_alone, EvidenceStore.for_topk(topk))


def _payload(
    request_id: str, scope: str, intake: Intake, services: Services, case: Case, verdict: Verdict
) -> dict[str, Any]:
    documents = case.store.documents
    status = "cited" if verdict.citations else "uncited"
    case.warn(*verdict.warnings, *old_law_warnings(documents, verdict.citations))
    return {
        "ok": True,
        "request_id": request_id,
        "mode": "agentic",
        "question": intake.request.question,
        "answer": verdict.text,
        "reasoning_stages": case.stages,
        "citations": list(verdict.citations),
        "retrieval_docs": documents,
        "evidence_status": status if documents else "none",
        "pipeline_trace": case.trace,
        "scene_status": verdict.scene,
        "scope": scope,
        "profile": services.vision_profile.name,
        "thinking_enabled": intake.calls.thinks,
        "warnings": case.warnings,
        "hazard_categories": list(verdict.categories),
        "hazard_taxonomy_version": services.vision_texts.rules.taxonomy.version,
        **intake.common(),
        "runtime_stats": intake.runtime_stats(),
    }

"""vision/hybrid: one model looks, another one searches and writes bases and measures. docs/vision.md, 垂域+RAG.

Rule: the description stays word for word, with its level and its category; the text model reads that text alone and
never a picture. What was described is never lost to a text model that fails.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any
from typing import Final as Constant

from cg_rag.core.answer_channel import AnswerChannel
from cg_rag.core.claims import unsupported
from cg_rag.core.errors import CgError
from cg_rag.core.events import Agent, AnswerReset, Event, Final, Progress, Token, Trace
from cg_rag.core.evidence import Evidence, EvidenceStore
from cg_rag.core.free_form import Verdict
from cg_rag.core.hybrid_report import HybridWriter, describe, hazard_places, retake_warnings, scene_status
from cg_rag.core.hybrid_text import DOCUMENTS_A_ROUND, FINAL_LABEL, Found, Means, TextHalf
from cg_rag.core.report import Report, Section, unfounded_warnings
from cg_rag.core.search_talk import SearchTalk
from cg_rag.core.vision_calls import VisionCalls
from cg_rag.core.vision_errors import check_hybrid_configured, hybrid_failure
from cg_rag.core.vision_request import SearchingRequest
from cg_rag.core.vision_settings import max_photo_body_bytes
from cg_rag.modes import retrieve, vision_answer, vision_intake, vision_search
from cg_rag.modes.services import Services
from cg_rag.modes.vision_intake import Intake
from cg_rag.modes.vision_rules import make_references, system_text
from cg_rag.modes.vision_search import ask_all, old_law_warnings, public_warnings, scope_of

SUMMARY = "看图识别隐患：垂域+RAG，看图模型描述，文本模型检索并撰写依据与措施"
CODES = (
    *vision_intake.CODES,
    "hybrid_generation_not_configured",
    "hybrid_generation_upstream_error",
    *retrieve.CODES,
)
Request = SearchingRequest
max_body_bytes = max_photo_body_bytes
default_scope = vision_search.default_scope

DEFAULT_ROUNDS: Constant = 2  # docs/vision.md: 未传入 max_search_rounds 时最多检索 2 轮，与服务配置无关
MATCH_TYPE: Constant = "hybrid_vision_agentic"  # a name that callers of old know
OBSERVATION_LABEL: Constant = "正在描述图片隐患"


def check_configured(services: Services) -> None:
    """Raises vision_not_configured, then hybrid_generation_not_configured."""
    check_hybrid_configured(services.vision is not None, services.hybrid is not None)


@dataclass(slots=True)
class _Case:
    """One request. `verdict` is the description, `text` the published answer."""

    intake: Intake
    services: Services
    scope: str
    calls: VisionCalls
    store: EvidenceStore = field(default_factory=lambda: EvidenceStore.for_topk(DOCUMENTS_A_ROUND))
    channel: AnswerChannel = field(default_factory=AnswerChannel)
    verdict: Verdict = field(default_factory=Verdict)
    text: str = ""
    citations: tuple[int, ...] = ()
    warnings: list[str] = field(default_factory=list)
    stages: list[dict[str, str]] = field(default_factory=list)
    trace: list[dict[str, str]] = field(default_factory=list)

    @property
    def num_images(self) -> int:
        return len(self.intake.images)


async def run(request: SearchingRequest, services: Services, request_id: str) -> AsyncGenerator[Event, None]:
    """Yields Progress, Trace, Agent, Retrieval, Token, AnswerReset and Final. Raises CgError: CODES, invalid_request
    (unknown scope), capacity.exceeded."""
    check_configured(services)
    scope = scope_of(request, services)
    retrieve.get_usable_scope(scope, services.library.snapshot)
    intake = await vision_intake.take_in(request, services, request.enable_thinking)
    case = _Case(intake, services, scope, _text_calls(services, intake))
    async with aclosing(_work(case)) as events:
        async for event in events:
            if isinstance(event, Trace):
                case.trace.append({"name": event.name, "status": event.status, "summary": event.summary})
            yield event
    yield Final(_payload(case, request_id))


def _note(name: str, summary: str) -> Trace:
    return Trace(name, "done", summary)


def _text_calls(services: Services, intake: Intake) -> VisionCalls:
    hybrid = services.hybrid
    assert hybrid is not None, "checked before"
    return VisionCalls(hybrid.chat(), intake.calls.budget, hybrid.settings.enable_thinking, hybrid_failure)


async def _work(case: _Case) -> AsyncGenerator[Event, None]:
    yield Progress("vision", "正在结合法规识别图片隐患", "running")
    yield _note("图片接收", f"已接收并校验 {case.num_images} 张图片。")
    async with case.intake.slot(case.services):
        async with aclosing(_look(case)) as events:
            async for event in events:
                yield event
        report = case.verdict.report
        if report is None or not hazard_places(report):
            await _publish_description(case)
            yield Agent("vision.final", "final", "running", FINAL_LABEL)
        else:
            async with aclosing(_write(case, report)) as events:
                async for event in events:
                    yield event
    async with aclosing(_finish(case)) as events:
        async for event in events:
            yield event


async def _look(case: _Case) -> AsyncGenerator[Event, None]:
    """The description, as in free form. Its tokens stay here: what goes out are the sections made of it."""
    yield Agent("vision.observation", "observation", "running", OBSERVATION_LABEL)
    description = vision_answer.describe(case.intake, case.services, verbatim=True)
    async with aclosing(description.run()) as events:
        async for event in events:
            if not isinstance(event, Token | AnswerReset):
                yield event
    case.verdict = description.verdict
    case.warnings += description.verdict.warnings
    case.stages.append({"label": "OBSERVATION", "content": description.verdict.text})
    yield Agent("vision.observation", "observation", "done", OBSERVATION_LABEL)


async def _publish_description(case: _Case) -> None:
    """Nothing is looked up: no hazard is visible, or the question asks for no report."""
    report = case.verdict.report
    if report is None:
        case.text = case.verdict.text
        return
    case.text = _writer(case, report, ()).description
    case.warnings += await case.services.in_thread(lambda: _doubts(case, report))


async def _write(case: _Case, report: Report) -> AsyncGenerator[Event, None]:
    """Searches, bases and measures by the text model."""
    half = _text_half(case, report)
    started = time.perf_counter()
    try:
        async with aclosing(half.run()) as events:
            async for event in events:
                yield event
    except CgError as error:
        partial = case.channel.text or _writer(case, report, ()).description
        raise CgError(
            error.code, error.message, {**error.details, "partial_answer": partial}, error.headers
        ) from error
    finally:
        case.stages += half.stages
        case.intake.stats["text_ms"] = (time.perf_counter() - started) * 1000
    assert half.reading is not None, "the text model's half ended without a reading"
    case.text, case.citations = half.reading.text, half.reading.citations
    published = half.reading.report
    doubts = await case.services.in_thread(lambda: _doubts(case, published))
    case.warnings += [*half.warnings, *half.reading.warnings, *doubts]


def _text_half(case: _Case, report: Report) -> TextHalf:
    services, hybrid = case.services, case.services.hybrid
    assert hybrid is not None, "checked before"
    request = case.intake.request
    assert isinstance(request, SearchingRequest)
    texts = services.vision_texts
    talk = SearchTalk(
        system_text(texts.hybrid, texts.rules.criteria),
        describe(report, case.num_images),
        [item for place in hazard_places(report) for item in report.blocks[place].description.items],
        max_rounds=request.max_search_rounds or DEFAULT_ROUNDS,
        uses_tools=hybrid.tools.known is not False,
        returns_thoughts=hybrid.chat().provider.wants_thoughts_back,
    )
    means = Means(
        case.calls,
        hybrid.tools,
        lambda questions: _search(case, questions),
        lambda evidence: _writer(case, report, evidence),
        services.in_thread,
        services.vision_profile.strict_retrieval_failure,
    )
    return TextHalf(means, talk, case.store, case.channel)


def _writer(case: _Case, report: Report, evidence: Sequence[Evidence]) -> HybridWriter:
    texts = case.services.vision_texts
    references = make_references(evidence, texts.rules) if evidence else texts.criteria_alone
    return HybridWriter(report, case.num_images, references, texts.rules.taxonomy)


async def _search(case: _Case, questions: Sequence[str]) -> Found:
    """One round, all its questions at once. Raises vision_budget_exceeded."""
    intake, started = case.intake, time.perf_counter()
    bodies = await ask_all(
        questions, case.scope, DOCUMENTS_A_ROUND, case.services, intake.calls.budget, "法规检索"
    )
    spent = (time.perf_counter() - started) * 1000
    intake.stats["retrieval_ms"] = intake.stats.get("retrieval_ms", 0.0) + spent
    found = [body for body in bodies if body is not None]
    documents = [None if body is None else body["retrieval_docs"] for body in bodies]
    is_cached = bool(found) and all(body["cache"]["hit"] for body in found)
    return Found(dict(zip(questions, documents, strict=True)), is_cached, public_warnings(found))


def _doubts(case: _Case, report: Report) -> list[str]:
    """What stands in the description, which nobody changes, and is not founded on what was looked up."""
    rules = case.services.vision_texts.rules
    founding = [
        replace(block, basis=Section((*block.description.items, *block.basis.items)))
        for block in report.blocks
    ]
    warnings = unfounded_warnings(
        replace(report, blocks=tuple(founding)), "sectioned", rules.find_clause, rules.criteria.name
    )
    references = make_references(case.store.items, rules)
    said = "\n".join(item for block in report.blocks for item in block.description.items)
    names = list(dict.fromkeys(claim.raw[:40] for claim in unsupported(references.check(said))))
    if names:
        told = "、".join(f"“{name}”" for name in names[:5])
        warnings.append(f"隐患描述照原样保留，其中的{told}未经检索核对。")
    return warnings


async def _finish(case: _Case) -> AsyncGenerator[Event, None]:
    for event in case.channel.settle(case.text, "format"):
        yield event
    report = case.verdict.report
    if report is not None:
        case.warnings += retake_warnings(report)
    case.warnings += old_law_warnings(case.store.documents, case.citations)
    yield _note("证据化结论生成", f"已生成最终回答，使用 {len(case.citations)} 条服务器引用。")
    yield Agent("vision.final", "final", "done", FINAL_LABEL)
    yield Progress("vision", "图片隐患识别完成", "done")


def _payload(case: _Case, request_id: str) -> dict[str, Any]:
    intake, services, verdict = case.intake, case.services, case.verdict
    documents = case.store.documents
    status = "cited" if case.citations else "uncited"
    hybrid = services.hybrid
    assert hybrid is not None, "checked before"
    common = intake.common()
    return {
        "ok": True,
        "request_id": request_id,
        "mode": "hybrid",
        "question": intake.request.question,
        "answer": case.text,
        "description": verdict.text,
        "reasoning_stages": case.stages,
        "citations": list(case.citations),
        "retrieval_docs": documents,
        "evidence_status": status if documents else "none",
        "pipeline_trace": case.trace,
        "scene_status": scene_status(verdict.report) if verdict.report else "not_assessed",
        "scope": case.scope,
        "thinking_enabled": intake.calls.thinks,
        "warnings": list(dict.fromkeys(case.warnings)),
        "hazard_categories": verdict.categories,
        "hazard_taxonomy_version": services.vision_texts.rules.taxonomy.version,
        "generation_model": hybrid.settings.model,
        "match_type": MATCH_TYPE,
        **common,
        "usage": _sum(common["usage"], case.calls.usage),
        "runtime_stats": intake.runtime_stats(),
    }


def _sum(first: dict[str, int] | None, second: dict[str, int] | None) -> dict[str, int] | None:
    if first is None or second is None:
        return first or second
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}

"""vision/answer: pictures in, a free-form hazard report out. docs/vision.md, 自由生成.

Rule: nothing is retrieved and nothing is cited. A report keeps its contract or is `vision_response_invalid`; a
question that is not about hazards is answered as it is asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from cg_rag.core.events import Event, Final, Progress
from cg_rag.core.free_form import FreeForm, Task
from cg_rag.core.vision_request import AnswerRequest
from cg_rag.core.vision_settings import max_photo_body_bytes
from cg_rag.modes import vision_intake
from cg_rag.modes.services import Services
from cg_rag.modes.vision_intake import Intake
from cg_rag.modes.vision_rules import system_text

SUMMARY = "看图识别隐患：自由生成，不检索法规"
CODES = vision_intake.CODES
Request = AnswerRequest
max_body_bytes = max_photo_body_bytes
check_configured = vision_intake.check_configured


async def run(request: AnswerRequest, services: Services, request_id: str) -> AsyncGenerator[Event, None]:
    """Yields Progress, Token, AnswerReset and Final. Raises CgError: CODES, capacity.exceeded."""
    intake = await vision_intake.take_in(request, services, request.enable_thinking)
    yield Progress("vision", "正在识别图片隐患", "running")
    async with intake.slot(services):
        description = describe(intake, services)
        async with aclosing(description.run()) as events:
            async for event in events:
                yield event
    yield Progress("vision", "图片隐患识别完成", "done")
    yield Final(_payload(intake, services, description, request_id))


def describe(intake: Intake, services: Services, verbatim: bool = False) -> FreeForm:
    """The conversation that ends in a checked description; it has to be run while a vision slot is held.

    `verbatim`: the description as it was written, for hybrid.
    """
    texts = services.vision_texts
    request = intake.request
    task = Task(request.question, len(intake.images), texts.rules, texts.criteria_alone, verbatim)
    system = system_text(texts.answer, texts.rules.criteria)
    return FreeForm(intake.calls, intake.messages(system), task, services.in_thread)


def _payload(intake: Intake, services: Services, description: FreeForm, request_id: str) -> dict[str, Any]:
    verdict = description.verdict
    return {
        "ok": True,
        "request_id": request_id,
        "mode": "free_form",
        "question": intake.request.question,
        "answer": verdict.text,
        "reasoning": description.reasoning,
        "thinking_enabled": intake.calls.thinks,
        "citations": [],
        "retrieval_docs": [],
        "hazard_categories": verdict.categories,
        "hazard_taxonomy_version": services.vision_texts.rules.taxonomy.version,
        "warnings": list(verdict.warnings),
        **intake.common(),
        "runtime_stats": intake.runtime_stats(),
    }

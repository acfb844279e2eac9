"""vision/observe: pictures in, one structured observation out. docs/vision.md, 观察.

Rule: one call and no second one. The label is one of the 62 or empty; an observation that cannot be read is an answer
too, and says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from cg_rag.core.events import Event, Final, Progress
from cg_rag.core.observation import PROFILE_ID, observation_schema, read_observation
from cg_rag.core.vision_errors import invalid_response
from cg_rag.core.vision_request import PhotoRequest
from cg_rag.core.vision_settings import max_photo_body_bytes
from cg_rag.modes import vision_intake
from cg_rag.modes.services import Services

SUMMARY = "看图做一次结构化观察，给出隐患标签"
CODES = vision_intake.CODES
Request = PhotoRequest
max_body_bytes = max_photo_body_bytes
check_configured = vision_intake.check_configured


async def run(request: PhotoRequest, services: Services, request_id: str) -> AsyncIterator[Event]:
    """Yields Progress and Final. Raises CgError: CODES, capacity.exceeded."""
    intake = await vision_intake.take_in(request, services)
    texts = services.vision_texts
    taxonomy = texts.rules.taxonomy
    yield Progress("vision", "正在观察图片", "running")
    async with intake.slot(services):
        messages = intake.messages(texts.observe.text)
        result = await intake.calls.complete(messages, "看图", observation_schema(taxonomy))
        seen = await services.in_thread(lambda: read_observation(result.text, taxonomy, texts.criteria_alone))
    if not seen.text:
        raise invalid_response("回答为空", intake.calls.attempts)
    yield Progress("vision", "图片观察完成", "done")
    yield Final(
        {
            "ok": True,
            "request_id": request_id,
            "mode": "observe",
            "text": seen.text,
            "hazard_label": seen.label,
            "hazard_description": seen.hazard_description,
            "is_non_scene": seen.is_non_scene,
            "parse_status": "failed" if seen.error else "succeeded",
            "parse_error": seen.error,
            "profile_id": PROFILE_ID,
            "system_prompt_sha256": texts.observe.sha256,
            **intake.common(),
            "elapsed_ms": intake.elapsed_ms,
        }
    )

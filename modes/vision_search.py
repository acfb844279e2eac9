"""Retrieval inside a vision request: the questions of one round at once, through the cache and the slots of all.

Rule: a question that cannot be asked is counted and never fails the round; what that means is the mode's to say. The
wait for a slot ends with the budget, because the request holds a vision slot that others wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cg_rag.core.agentic_case import Found
from cg_rag.core.budget import Budget
from cg_rag.core.errors import CgError
from cg_rag.core.log import log_event
from cg_rag.core.vision_request import SearchingRequest
from cg_rag.index.ranking import WITHOUT_VECTORS
from cg_rag.index.validity import describe_validity, is_in_force
from cg_rag.modes.retrieve import retrieve
from cg_rag.modes.services import Services

PREFERRED_SCOPE: Final = "full"  # docs/vision.md: 缺省 full


async def search_round(
    questions: Sequence[str], scope: str, topk: int, services: Services, budget: Budget, stage: str
) -> Found:
    """Raises vision_budget_exceeded."""
    bodies = await ask_all(questions, scope, topk, services, budget, stage)
    found = [body for body in bodies if body is not None]
    return Found([body["retrieval_docs"] for body in found], len(bodies) - len(found), public_warnings(found))


async def ask_all(
    questions: Sequence[str], scope: str, topk: int, services: Services, budget: Budget, stage: str
) -> list[dict[str, Any] | None]:
    """The body of each question's retrieval, None for one that failed. Raises vision_budget_exceeded."""
    async with budget.bounding(stage), asyncio.TaskGroup() as group:
        tasks = [group.create_task(_ask(question, scope, topk, services, budget)) for question in questions]
    return [task.result() for task in tasks]


def public_warnings(bodies: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of the warnings of retrieval a caller is told: the others are about the wording of a question, which nobody
    here chose."""
    told = {warning for body in bodies for warning in body["warnings"]}
    return [WITHOUT_VECTORS] if WITHOUT_VECTORS in told else []


def old_law_warnings(documents: Sequence[Mapping[str, Any]], citations: Sequence[int]) -> list[str]:
    """For each article that a report cites and that is not in force: it is kept, and said."""
    cited = [(number, documents[number - 1]) for number in citations]
    return [
        f"引用的第 {number} 条证据“{document['law_name']} {document['article_number']}”{describe_validity(document)}，请核对现行规定。"
        for number, document in cited
        if not is_in_force(document)
    ]


def scope_of(request: SearchingRequest, services: Services) -> str:
    """The scope asked for; "" is one that does not exist, not the default."""
    return request.scope if "scope" in request.model_fields_set else default_scope(services)


def default_scope(services: Services) -> str:
    """`full` where there is one, else the active scope."""
    return PREFERRED_SCOPE if PREFERRED_SCOPE in services.library.profiles else services.settings.active_scope


async def _ask(
    question: str, scope: str, topk: int, services: Services, budget: Budget
) -> dict[str, Any] | None:
    try:
        return await retrieve(
            question, scope, topk, False, services, slot_wait_seconds=budget.remaining() + 1
        )
    except CgError as error:
        log_event(logging.WARNING, "vision_retrieval_failed", code=error.code)
        return None

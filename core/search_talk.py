"""The conversation with the text model of hybrid up to its draft: what to ask next, and what its answer means. No I/O.

    talk = SearchTalk(system, description, items, max_rounds=2, uses_tools=True)
    while True:
        result = … send talk.request() …
        step = talk.take(result)
        if isinstance(step, Draft): …
        if isinstance(step, Search): … search step.queries …; talk.tell(found)

Rule: it ends. Each answer is a round of searches, a draft, or the one change from tools to a plan; rounds are counted,
and when they are used up neither tools nor a plan are offered any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from cg_rag.core.evidence import Evidence
from cg_rag.core.search_calls import (
    MAX_CALLS,
    PLAN_SCHEMA,
    SEARCH_TOOL,
    TOOL_NAME,
    evidence_text,
    is_search,
    read_call,
    read_queries,
    tidy,
)
from cg_rag.core.tool_calls import ToolCall
from cg_rag.core.upstream import ChatRequest, ChatResult

Message = dict[str, Any]

MAX_ROUNDS: Final = 3
_NUM_OPENING: Final = 2  # messages before the first answer: system and user
_MAX_ECHOED: Final = 8  # calls of one answer that go back to the model with a result
_MAX_QUOTED: Final = 4000  # of an answer that is put before the model again
_USE_TOOL: Final = f"请先调用 {TOOL_NAME} 检索，再写判定依据和整改措施。"
_ASK_PLAN: Final = (
    "本次不能调用工具。请写出要检索的问题，至多 3 个，各写明设备或部位与违规情形。"
    '只输出一个 JSON 对象，形如 {"queries": ["脚手架立杆基础积水 排水措施", "落地式脚手架 垫板"]}。'
)
_ASK_MORE: Final = (
    '如还需补充检索，只输出一个 JSON 对象，形如 {"queries": ["……"]}；已经足够则输出 {"queries": []}。'
)
_WRITE: Final = "检索到此为止。请根据以上编号条文，按规定格式写出判定依据和整改措施，不要再检索。"
_WRITE_WITHOUT: Final = (
    "检索到此为止，没有检索到可引用的条文。不写判定依据，不写任何法规、标准的名称与条号，只写整改措施。"
)
_TOO_MANY: Final = f"每轮最多 {MAX_CALLS} 次检索，本次未执行。"
_KNOWN: Final = "与前面的检索相同，未重复执行，结果见前。"
_RESULT: Final = "检索“{query}”的结果：\n{text}"
_NOT_SEARCHED: Final = "检索失败，没有结果。"
_SAID_NOTHING: Final = "（空）"
_CALL_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Search:
    """One round. `queries` are to be searched; empty when no call could be carried out. `num_refused`: calls that are
    not. `is_servers`: the model gave none, so they are items of the description."""

    queries: tuple[str, ...]
    num_refused: int = 0
    is_servers: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """What the model wrote: bases and measures, hopefully."""

    text: str


@dataclass(frozen=True, slots=True)
class Again:
    """Nothing to be done but to send the next request."""


@dataclass(slots=True)
class _Round:
    """What the answer asked for, until `tell`; no calls where it was a plan."""

    calls: list[tuple[str, str]] = field(default_factory=list)  # (id, question or "")
    refusals: dict[str, str] = field(default_factory=dict)  # id -> why the call is not carried out
    queries: tuple[str, ...] = ()


class SearchTalk:
    """`description` is all that the model reads of the pictures, `items` are its points. `uses_tools` False: this
    upstream knows no tools. `returns_thoughts`: thinking goes back with tool calls (deepseek)."""

    def __init__(
        self,
        system: str,
        description: str,
        items: Sequence[str],
        *,
        max_rounds: int,
        uses_tools: bool,
        returns_thoughts: bool = False,
    ) -> None:
        self.num_rounds = 0
        self.uses_tools = uses_tools
        self._max_rounds = min(max_rounds, MAX_ROUNDS)
        self._items = items
        self._returns_thoughts = returns_thoughts
        self._messages: list[Message] = [{"role": "system", "content": system}]
        self._pending = [description]
        self._asked: list[str] = []
        self._told: set[int] = set()
        self._round = _Round()
        self._plans = not uses_tools
        self._writes = False
        if uses_tools:
            self._pending.append(_USE_TOOL)

    @property
    def has_begun(self) -> bool:
        """Whether the model has answered anything."""
        return len(self._messages) > _NUM_OPENING

    @property
    def has_searched(self) -> bool:
        return bool(self._asked)

    @property
    def may_write(self) -> bool:
        """Whether the next answer may be the draft."""
        return self.is_writing or (self.has_searched and not self._plans)

    @property
    def is_writing(self) -> bool:
        """Whether the next answer is the draft, whatever it says."""
        return self._writes or not self._may_search

    @property
    def _may_search(self) -> bool:
        return self.num_rounds < self._max_rounds

    def request(self) -> ChatRequest:
        """The next request. To be taken once for each `take`."""
        tools: Sequence[Mapping[str, Any]] = ()
        schema = None
        if self._plans and not self.is_writing:
            self._pending.append(_ASK_MORE if self.has_searched else _ASK_PLAN)
            schema = PLAN_SCHEMA
        elif not self.is_writing:
            tools = (SEARCH_TOOL,)
        elif self._plans:
            self._pending.append(self._writing_words())
        self._flush()
        return ChatRequest(list(self._messages), schema=schema, tools=tools)

    def take(self, result: ChatResult) -> Search | Draft | Again:
        """What the answer to the last request means."""
        if self.is_writing:
            return Draft(result.text)
        if self._plans:
            return self._take_plan(result.text)
        if result.tool_calls:
            return self._take_calls(result)
        queries = read_queries(result.text)
        if self.has_searched and not queries:
            return Draft(result.text)
        # A text in place of a call: whatever it claims was looked up by nobody. From here on by plan.
        self._plans = True
        if queries:
            return self._take_plan(result.text)
        self._say_as_model(result.text)
        return Again()

    def without_tools(self) -> None:
        """The server refuses tools: ask for a plan instead. Only before the first answer."""
        assert not self.has_begun, "a conversation with tool calls cannot go on without them"
        description, _ = self._messages.pop()["content"].rsplit(f"\n\n{_USE_TOOL}", 1)
        self._pending = [description]
        self._plans = True
        self.uses_tools = False

    def tell(self, found: Mapping[str, Sequence[Evidence] | None]) -> None:
        """The results of a round by question, None for a search that failed."""
        texts = {
            query: _NOT_SEARCHED if (items := found.get(query)) is None else evidence_text(items, self._told)
            for query in self._round.queries
        }
        if not self._round.calls:
            self._pending += [_RESULT.format(query=query, text=text) for query, text in texts.items()]
            return
        results = []
        for ident, query in self._round.calls:
            results.append((ident, self._round.refusals.get(ident) or texts.pop(query)))
        # Behind a tool's result some templates take nobody's turn but the model's, so all else goes into the last one.
        more = [_RESULT.format(query=query, text=text) for query, text in texts.items()]
        more += [] if self._may_search else [self._writing_words()]
        ident, last = results[-1]
        results[-1] = (ident, "\n\n".join([last, *more]))
        self._messages += [
            {"role": "tool", "tool_call_id": ident, "content": text} for ident, text in results
        ]

    def correct(self, draft: str, ask: str) -> ChatRequest:
        """The request for the one correction of a draft."""
        self._say_as_model(draft)
        self._pending.append(ask)
        self._writes = True
        self._flush()
        return ChatRequest(list(self._messages))

    def _take_calls(self, result: ChatResult) -> Search:
        self.num_rounds += 1
        self._round = _Round()
        echoed: list[Message] = []
        queries: list[str] = []
        for number, call in enumerate(result.tool_calls[:_MAX_ECHOED]):
            question, refusal = read_call(call)
            if question in self._asked or question in queries:
                refusal = _KNOWN
            elif question and len(queries) == MAX_CALLS:
                refusal = _TOO_MANY
            ident = self._ident(call, number)
            self._round.calls.append((ident, question))
            if refusal:
                self._round.refusals[ident] = refusal
            else:
                queries.append(question)
            echoed.append(_echo(ident, call, question))
        num_refused = len(result.tool_calls) - len(queries)
        is_servers = not (queries or self.has_searched or self._may_search)
        self._round.queries = tuple(self._own_queries() if is_servers else queries)
        self._asked += self._round.queries
        message: Message = {"role": "assistant", "content": result.text or None, "tool_calls": echoed}
        if self._returns_thoughts and result.thinking:
            message["reasoning_content"] = result.thinking
        self._messages.append(message)
        return Search(self._round.queries, num_refused, is_servers)

    def _own_queries(self) -> list[str]:
        """What is searched when the model has said nothing that can be: the points of the description."""
        return list(dict.fromkeys(filter(None, map(tidy, self._items))))[:MAX_CALLS]

    def _ident(self, call: ToolCall, number: int) -> str:
        """The call's own id where it can name its result, which two calls with one id cannot."""
        taken = {ident for ident, _ in self._round.calls}
        return (
            call.id
            if _CALL_ID.fullmatch(call.id) and call.id not in taken
            else f"call{self.num_rounds}{number}"
        )

    def _take_plan(self, text: str) -> Search | Again:
        queries = [query for query in read_queries(text) if query not in self._asked]
        is_servers = not queries and not self.has_searched
        num_refused = max(0, len(queries) - MAX_CALLS)
        queries = self._own_queries() if is_servers else queries[:MAX_CALLS]
        self._say_as_model(text)
        if not queries:
            self._writes = True
            return Again()
        self.num_rounds += 1
        self._round = _Round(queries=tuple(queries))
        self._asked += queries
        return Search(self._round.queries, num_refused, is_servers)

    def _writing_words(self) -> str:
        return _WRITE if self._told else _WRITE_WITHOUT

    def _say_as_model(self, text: str) -> None:
        self._flush()
        self._messages.append({"role": "assistant", "content": text.strip()[:_MAX_QUOTED] or _SAID_NOTHING})

    def _flush(self) -> None:
        if self._pending:
            self._messages.append({"role": "user", "content": "\n\n".join(self._pending)})
            self._pending = []


def _echo(ident: str, call: ToolCall, question: str) -> Message:
    """The call as it goes back: templates read the arguments as JSON and names as those of tools, so both are ours
    where the model's are not."""
    name = TOOL_NAME if is_search(call.name) else "unknown_tool"
    arguments = orjson.dumps({"query": question} if question else {}).decode()
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}

"""The MCP endpoint: Streamable HTTP over aiohttp, around the kernel of the official SDK. docs/mcp.md.

Rule: nothing outlives its request. A session id is a name without state behind it, so that a restart harms nobody and
a client that never says goodbye costs nothing; whoever leaves, or cancels, ends the work done for him.

This module alone imports `mcp`. That takes a second, so it is imported, in a thread, when the first request comes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import anyio
import orjson
from aiohttp import web
from mcp.server.caching import CacheHint
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import modern_error_data, serve_one
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    HEADER_MISMATCH,
    CallToolRequestParams,
    ListToolsResult,
    PaginatedRequestParams,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from cg_rag.core.capacity import Lease, Limiter
from cg_rag.core.errors import CgError
from cg_rag.core.json_rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    call_key,
    cancelled,
    error_response,
    params_fault,
    refuse_entry,
    refused,
    shape_fault,
    without_arguments,
)
from cg_rag.core.mcp_calls import CallsInFlight
from cg_rag.core.mcp_channel import PING_SECONDS, PROGRESS_SECONDS, Channel
from cg_rag.core.sse_stream import OPEN_STREAMS, STREAM_CODE, shutdown_error
from cg_rag.core.tools import ENVELOPE_SCHEMA, Tool, call_tool, failed
from cg_rag.core.web import REQUEST_ID
from cg_rag.core.worker import Link

# What a client may remember of the list of tools: it changes with a restart only.
TOOLS_LIST_HINT = CacheHint(ttl_ms=60_000, scope="public")
# Where a client that sends no version stands (MCP 2025-06-18, Protocol Version Header).
ASSUMED_VERSION = "2025-03-26"

Read = Callable[[web.Request], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class McpOptions:
    """`ping_seconds` and `progress_seconds` are shorter in tests only. Answers of more than `large_answer_bytes` take
    room from `answer_bytes` until they are sent."""

    version: str
    instructions: str
    allowed_origins: Collection[str]
    answer_bytes: Limiter
    large_answer_bytes: int
    link: Link | None = None
    """To the other processes that serve the same port: a cancellation may reach another than the call."""
    ping_seconds: float = PING_SECONDS
    progress_seconds: float = PROGRESS_SECONDS


class McpEndpoint:
    """`handle` answers every request to the endpoint. `read` reads and limits a body; it raises CgError."""

    def __init__(self, tools: Mapping[str, Tool], read: Read, options: McpOptions) -> None:
        self._tools = tools
        self._read = read
        self._options = options
        self.calls = CallsInFlight()
        if options.link is not None:
            options.link.hear(lambda words: self.calls.cancel(tuple(words)))
        listed = ListToolsResult(tools=[_listed(tool) for tool in tools.values()])

        async def list_tools(_context: Any, _params: PaginatedRequestParams | None) -> ListToolsResult:
            return listed

        self._server: Server[None] = Server(
            "CG_RAG",
            version=options.version,
            instructions=options.instructions,
            cache_hints={"tools/list": TOOLS_LIST_HINT, "server/discover": TOOLS_LIST_HINT},
            on_list_tools=list_tools,
            on_call_tool=_hand_over,
        )
        self._server.middleware.clear()  # spans of OpenTelemetry, which nobody collects here

    async def handle(self, request: web.Request) -> web.StreamResponse:
        refusal = refuse_entry(request, self._options.allowed_origins)
        if refusal is not None:
            return refusal
        try:
            body = await self._read(request)
        except CgError as error:
            request[STREAM_CODE] = error.code
            return refused(error, request[REQUEST_ID])
        taken = self._take(request, body)
        if isinstance(taken, web.Response):
            return taken
        del body  # the exchange keeps of it what it needs
        key = call_key(request, taken.request_id)
        streams = request.app[OPEN_STREAMS]
        self.calls.add(key, taken)
        streams.add(taken)
        try:
            return await taken.run(self._server)
        finally:
            streams.remove(taken)
            self.calls.remove(key, taken)

    def _take(self, request: web.Request, body: dict[str, Any]) -> web.Response | Exchange:
        """The answer where there is nothing to do, else what there is to do."""
        fault = shape_fault(body)
        if fault:
            return error_response(None, INVALID_REQUEST, fault, 400)
        if "id" not in body or "method" not in body:
            return self._take_notification(request, body)
        route = _route(request, body)
        if isinstance(route, InboundLadderRejection):
            status = ERROR_CODE_HTTP_STATUS.get(route.code, 400)
            return error_response(body["id"], route.code, route.message, status, route.data)
        return Exchange(request, body, route, self._tools, self._options)

    def _take_notification(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        version = request.headers.get("MCP-Protocol-Version", ASSUMED_VERSION)
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            rejection = unsupported_protocol_version_rejection(version)
            if rejection is not None:
                return error_response(None, rejection.code, rejection.message, 400, rejection.data)
        if body.get("method") == "notifications/cancelled":
            key = call_key(request, (body.get("params") or {}).get("requestId"))
            if key is not None and not self.calls.cancel(key) and self._options.link is not None:
                self._options.link.tell(list(key))
        return web.Response(status=202)


class Exchange:
    """One JSON-RPC request and the way its answer goes out; the SDK's kernel sees it as its DispatchContext."""

    # One per call: what a call keeps while it waits is what thousands at once keep.
    __slots__ = (
        "_arguments",
        "_channel",
        "_code",
        "_is_legacy",
        "_is_stopping",
        "_lease",
        "_method",
        "_options",
        "_params",
        "_request",
        "_route",
        "_tools",
        "_work",
        "request_id",
        "result",
    )

    can_send_request = False
    transport = TransportContext(kind="streamable-http", can_send_request=False)

    def __init__(
        self,
        request: web.Request,
        body: dict[str, Any],
        route: InboundModernRoute,
        tools: Mapping[str, Tool],
        options: McpOptions,
    ) -> None:
        self.request_id = body["id"]
        self._request = request
        self._route = route
        self._method: str = body["method"]
        # The kernel checks and copies what it is given: pictures go past it.
        self._params, self._arguments = without_arguments(body.get("params"))
        self._is_legacy = route.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        self._tools = tools
        self._options = options
        self._work: asyncio.Task[dict[str, Any]] | None = None
        self._is_stopping = False
        self._code = ""
        self.result: dict[str, Any] = {}  # of the tool, once it is there
        self._lease: Lease | None = None
        self._channel = Channel(
            request,
            progress_token_from_params(self._params),
            self._headers(),
            options.ping_seconds,
            options.progress_seconds,
        )

    # What the kernel asks of a dispatch context.

    @property
    def message_metadata(self) -> ServerMessageMetadata:
        """The way back from the kernel's handler to this exchange."""
        return ServerMessageMetadata(request_context=self)

    @property
    def cancel_requested(self) -> anyio.Event:
        return anyio.Event()  # cancelled work is never told so: it is gone

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        self._channel.queue({"jsonrpc": "2.0", "method": method, "params": dict(params or {})})

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self._channel.report(message or "正在处理")

    async def _call(self) -> None:
        """Does the work before the kernel has the request: while a tool works, what the kernel needs for a request
        (10 KiB) would lie idle. The kernel is then handed the result."""
        validate_client_request(self._method, self._route.protocol_version, self._params)
        name: str = (self._params or {})["name"]
        try:
            envelope = await call_tool(
                self._tools, name, self._arguments, self._request[REQUEST_ID], self._channel.report
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # At the shutdown limit alone the answer still goes out; a client that has left takes none.
            if not self._is_stopping or task is None or task.uncancel():
                raise
            envelope = failed(name, shutdown_error())
        try:
            self.result = self._result(envelope, await self._take_room(envelope))
        except CgError as error:
            envelope = failed(name, error)
            self.result = self._result(envelope, orjson.dumps(envelope))

    async def _take_room(self, envelope: dict[str, Any]) -> bytes:
        text = orjson.dumps(envelope)
        # The answer holds it twice: as text, and as a structure.
        if 2 * len(text) > self._options.large_answer_bytes:
            limiter = self._options.answer_bytes
            self._lease = await limiter.take(min(2 * len(text), limiter.max_units))
        return text

    def _result(self, envelope: dict[str, Any], text: bytes) -> dict[str, Any]:
        self._code = envelope["error"]["code"] if "error" in envelope else ""
        return {
            "content": [{"type": "text", "text": text.decode()}],
            "structuredContent": envelope,
            "isError": not envelope["ok"],
            "resultType": "complete",  # of 2026-07-28; the kernel drops what an older version does not have
        }

    # How it ends before its time.

    def cancel(self) -> None:
        """The client says that it no longer wants the answer."""
        if self._work is not None:
            self._work.cancel()

    def stop(self) -> None:
        """The service ends: the answer is that it does."""
        self._is_stopping = True
        if self._work is not None:
            self._work.cancel()

    # The way out.

    async def run(self, server: Server[None]) -> web.StreamResponse:
        """Does the work and sends the answer; whatever ends this ends the work before it returns."""
        self._work = work = asyncio.create_task(self._serve(server))
        try:
            await self._channel.follow(work)
            answer = cancelled(self.request_id) if work.cancelled() else work.result()
            return await self._channel.send(orjson.dumps(answer), self._status(answer), self._code)
        except ConnectionError:
            return self._channel.abandoned()
        finally:
            work.cancel()
            await asyncio.wait([work])
            if self._lease is not None:
                self._lease.release()

    async def _serve(self, server: Server[None]) -> dict[str, Any]:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": self.request_id}
        try:
            if self._method == "tools/call":
                await self._call()
            route = self._route
            connection = Connection.from_envelope(
                route.protocol_version, route.client_info, route.client_capabilities
            )
            result = await serve_one(
                server, self, self._method, self._params, connection=connection, lifespan_state=None
            )
        except ValidationError as error:
            return answer | {
                "error": {"code": INVALID_PARAMS, "message": params_fault(self._method, self._params, error)}
            }
        except Exception as error:
            data = modern_error_data(error)
            return answer | {"error": data.model_dump(mode="json", exclude_none=True)}
        return answer | {"result": result}

    def _headers(self) -> dict[str, str]:
        headers = {"X-Request-ID": self._request[REQUEST_ID]}
        if self._method == "initialize":
            headers["Mcp-Session-Id"] = uuid.uuid4().hex
        return headers

    def _status(self, answer: dict[str, Any]) -> int:
        if self._is_legacy or "error" not in answer:
            return 200
        return ERROR_CODE_HTTP_STATUS.get(answer["error"]["code"], 200)


_HANDSHAKE_ROUTES = {
    version: InboundModernRoute(version, None, None) for version in HANDSHAKE_PROTOCOL_VERSIONS
}


async def _hand_over(context: ServerRequestContext[None, Any], _params: CallToolRequestParams) -> Any:
    # Plain values: the kernel checks what it sends, and a model in between would be one copy more.
    return cast(Exchange, context.request).result


def _listed(tool: Tool) -> ListedTool:
    return ListedTool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        output_schema=dict(ENVELOPE_SCHEMA),
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=True,
            destructive_hint=False,
            idempotent_hint=True,
            open_world_hint=tool.open_world,
        ),
    )


def _route(request: web.Request, body: dict[str, Any]) -> InboundModernRoute | InboundLadderRejection:
    """The version that a request speaks: the one agreed in a handshake, or the one that each newer request names."""
    version = request.headers.get("MCP-Protocol-Version", ASSUMED_VERSION)
    if version in HANDSHAKE_PROTOCOL_VERSIONS:
        return _HANDSHAKE_ROUTES[version]
    raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers]
    duplicate = find_duplicated_routing_header(raw)
    if duplicate is not None:
        return InboundLadderRejection(HEADER_MISMATCH, f"{duplicate} header appears more than once")
    headers = {name.lower(): value for name, value in request.headers.items()}
    return classify_inbound_request(body, headers=headers)

"""An async client as functions for threads without a loop: one loop and one session in a thread of their own."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import aiohttp

from cg_rag.core.upstream_errors import UpstreamUnreachable
from cg_rag.core.upstream_session import Reachable, open_session

_CLOSE_SECONDS: Final = 5.0  # for saying goodbye on connections that nobody uses any more

Answer = TypeVar("Answer")


class Stopper(Protocol):
    """A cancel token: within `watch`, cancelling sets `terminate` of what it was handed."""

    def watch(self, running: Any) -> AbstractContextManager[None]: ...


class _Request:
    """What a cancel token stops: setting `terminate` cancels the call."""

    def __init__(self, call: concurrent.futures.Future[Any]) -> None:
        self._call = call

    def __setattr__(self, name: str, value: object) -> None:
        if name == "terminate" and value:
            self._call.cancel()
        else:
            object.__setattr__(self, name, value)


class BlockingClient:
    """Runs calls of many threads at once on a loop and a session of its own.

    The loop runs in a daemon thread from the first call on. Never call it from a thread whose own loop has to go on:
    it blocks. `close()`, `with` or the end of the program ends the thread; calls that go on then fail.
    """

    def __init__(self, settings: Reachable, name: str) -> None:
        """`name` is the thread's."""
        self._settings = settings
        self._name = name
        self._lock = threading.Lock()  # what is submitted after the end would be waited for for ever
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    def run(
        self,
        call: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, Answer]],
        token: Stopper | None = None,
    ) -> Answer:
        """What `call` gives and raises; an UpstreamUnreachable once closed.

        The request id of the calling context goes along. KeyboardInterrupt and the like, raised in the waiting
        thread, cancel the request; so does `token`, from any thread.
        """
        running = self._submit(call)
        try:
            with token.watch(_Request(running)) if token is not None else nullcontext():
                return running.result()
        except concurrent.futures.CancelledError:
            raise UpstreamUnreachable("disconnected") from None
        except BaseException:
            running.cancel()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what goes on, closes the session, ends the thread. May be called twice and from any thread but
        not from within a call; takes milliseconds, five seconds at most."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
            if loop is None:
                return
            ending = asyncio.run_coroutine_threadsafe(self._end(), loop)
        atexit.unregister(self.close)
        concurrent.futures.wait([ending], timeout=_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        assert self._thread is not None
        self._thread.join(_CLOSE_SECONDS)
        # Look-ups of names that hang are left behind; waiting for them is what asyncio.run would do here.
        if not self._thread.is_alive():
            loop.close()

    def _submit(
        self, call: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, Answer]]
    ) -> concurrent.futures.Future[Answer]:
        with self._lock:
            if self._is_closed:
                raise UpstreamUnreachable("disconnected")
            if self._loop is None:
                self._loop = self._start()
            return asyncio.run_coroutine_threadsafe(self._call(call), self._loop)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
        self._thread.start()
        atexit.register(self.close)
        return loop

    # Below here everything runs in the thread.

    async def _call(self, call: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, Answer]]) -> Answer:
        if self._session is None:
            self._session = open_session(self._settings)
        return await call(self._session)

    async def _end(self) -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

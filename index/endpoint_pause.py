"""Some seconds of rest after an endpoint has failed, so that not everybody waits for its time-out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cg_rag.index.errors import EngineFailed
from cg_rag.index.model_errors import ModelFailed
from cg_rag.index.onnx import CancelToken

PAUSE_SECONDS = 5.0


class EndpointPause:
    """Watches the calls to one model or engine; for one of this machine (`is_remote` false) it does nothing. `failure`
    is what its calls raise."""

    def __init__(
        self, name: str, is_remote: bool, failure: type[ModelFailed] | type[EngineFailed] = ModelFailed
    ) -> None:
        self._name = name
        self._failure = failure
        self._is_remote = is_remote
        self._ends = 0.0

    @contextmanager
    def watch(self, token: CancelToken | None) -> Iterator[None]:
        """Around one call. `failure` at once during the rest; a `failure` or OSError inside begins one."""
        if time.monotonic() < self._ends:
            raise self._failure(self._name, "接口刚刚失败，稍后再试")
        try:
            yield
        except (self._failure, OSError):
            if token is not None:
                token.check()  # the caller left: nothing is known of the endpoint
            if self._is_remote:
                self._ends = time.monotonic() + PAUSE_SECONDS
            raise

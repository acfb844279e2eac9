"""What counting and logging cost: microseconds of a request, milliseconds and bytes of a scrape, in processor time.

    python tests/bench/metrics.py [--requests 20000]

Needs no data. One thread, no sockets: only the work that is done beside a request's own. Prints one table.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from cg_rag.core import account
from cg_rag.core.access import finish
from cg_rag.core.account import Account, account_var
from cg_rag.core.errors import ERRORS
from cg_rag.core.log import setup_logging
from cg_rag.core.metrics import Metrics
from cg_rag.core.settings import Settings
from cg_rag.core.web import json_response
from cg_rag.modes import MODES
from cg_rag.modes.metrics import readings
from cg_rag.modes.services import make_services

REPEATS = 5
TIMINGS_MS = dict.fromkeys(
    ("exact_ms", "embed_ms", "lexical_ms", "dense_ms", "fuse_ms", "rerank_ms", "read_ms"), 1.0
)
USAGE = {"prompt_tokens": 800, "completion_tokens": 10}


def one_request(metrics: Metrics | None, with_model: bool) -> None:
    """All notes of one search, or of one search and one call of a model, and the end of the request."""
    made = Account(metrics)
    token = account_var.set(made)
    if metrics is not None:
        metrics.begin()
    account.note_timings(TIMINGS_MS)
    account.note_cache(False)
    if with_model:
        with account.noting_call("generation") as note:
            note.done(USAGE)
    if metrics is not None:
        metrics.end()
    finish(REQUEST, RESPONSE, made, status=200, code="", key="site-a")
    account_var.reset(token)


def microseconds(work: Callable[[], object], num_requests: int) -> float:
    """The least of some repeats, as `timeit` has it: what is above that is somebody else's."""
    return min(_timed(work, num_requests) for _ in range(REPEATS)) / num_requests * 1e6


def _timed(work: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - began


def logging_at(level: int) -> None:
    logging.getLogger("cg_rag").setLevel(level)


def rows(num_requests: int) -> Iterator[tuple[str, str]]:
    services = make_services(Settings())
    metrics = Metrics(lambda: readings(services, "0"))
    for words, with_model in (("search", False), ("search and model", True)):
        logging_at(logging.WARNING)
        bare = microseconds(lambda: one_request(None, with_model), num_requests)  # noqa: B023
        counted = microseconds(lambda: one_request(metrics, with_model), num_requests)  # noqa: B023
        logging_at(logging.INFO)
        logged = microseconds(lambda: one_request(metrics, with_model), num_requests)  # noqa: B023
        yield f"{words}: account alone", f"{bare:.1f} µs"
        yield f"{words}: metrics", f"{counted - bare:.1f} µs"
        yield f"{words}: log line to a file", f"{logged - counted:.1f} µs"
    for path in MODES:
        for code, kind in ERRORS.items():
            metrics.request(path, kind.status, code, 0.1)
        metrics.traffic(path, 1, 1)
    times = [_timed(lambda: metrics.render(""), 1) * 1000 for _ in range(20)]
    yield "scrape, every route with every code", f"{statistics.median(times):.1f} ms"
    yield "its size", f"{len(metrics.render('')[0])} bytes"


async def _answer(_request: web.Request) -> web.Response:
    return web.Response()


REQUEST = make_mocked_request("POST", "/cg-rag/rag")
REQUEST._match_info = web.UrlMappingMatchInfo({}, web.Application().router.add_post("/cg-rag/rag", _answer))
RESPONSE = json_response(b"{}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        setup_logging("INFO", "json", Path(folder) / "cg-rag.log")
        print("| what | cost |\n|---|---|")
        for words, cost in rows(arguments.requests):
            print(f"| {words} | {cost} |", flush=True)


if __name__ == "__main__":
    main()

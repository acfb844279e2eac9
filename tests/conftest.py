"""Fixtures: a small index, and the service as a real process on a free port."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.server_process import ServerProcess

# An example that takes long tells of the machine; what is slow is found by the benchmarks.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

# Written for the tests; names and numbers are of no real law.
ARTICLES: list[dict[str, Any]] = [
    {
        "law_name": "GB99001-2025样例脚手架规范",
        "article_number": "6.0.5(1)",
        "contents": "脚手架搭设至设计高度后应组织验收，未经验收不得投入使用。",
        "chapter": "6 检查与验收",
        "status": "现行有效",
    },
    {
        "law_name": "GB99001-2025样例脚手架规范",
        "article_number": "2.0.1",
        "contents": "脚手架地基应平整坚实，四周设排水沟，基础处不得有积水。",
    },
    {
        "law_name": "中华人民共和国样例安全法",
        "article_number": "第二十八条",
        "contents": "生产经营单位应当对新进场人员进行安全教育和培训，考核合格后方可上岗。",
        "effective_date": "2025-01-01",
    },
    {
        "law_name": "中华人民共和国样例安全法",
        "article_number": "第二十八条之一",
        "contents": "劳务派遣人员适用前条关于教育培训的规定。",
    },
    {
        "law_name": "中华人民共和国样例消防法",
        "article_number": "第三条",
        "contents": "动火作业须办理动火证，配备灭火器，并设专人监护。",
    },
]

PROFILES = """
  profiles:
    full: {label: 全库, include: all}
    usual: {label: 常用规范, include: [{corpus: codes}]}
    usual_plus_law: {label: 常用规范与法律, include: [{corpus: codes}, {law: 中华人民共和国样例安全法}]}
"""


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return path


@pytest.fixture(scope="session")
def small_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of two corpora, `codes` and `laws`. Not to be changed: copy it first."""
    from cg_rag.index.build import SourceSpec, build_index

    folder = tmp_path_factory.mktemp("small_index")
    codes = write_jsonl(folder / "codes.jsonl", ARTICLES[:2])
    laws = write_jsonl(folder / "laws.jsonl", ARTICLES[2:])
    index_dir = folder / "index"
    build_index([SourceSpec(codes, "codes", ()), SourceSpec(laws, "laws", ())], index_dir, None)
    return index_dir


StartServer = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory, small_index: Path) -> Iterator[StartServer]:
    """`start_server(settings="…YAML below cg_rag:…", index_dir=…, environ={…})`; all are stopped at the end.

    Without MCP unless `settings` have a section of it."""
    started: list[ServerProcess] = []

    def start(settings: str = "", index_dir: Path = small_index, **options: Any) -> ServerProcess:
        config = tmp_path_factory.mktemp("server") / "config.yaml"
        if "mcp:" not in settings:
            settings += "\n  mcp: {enabled: false}\n"
        config.write_text(
            f"cg_rag:\n  index: {{dir: {json.dumps(str(index_dir))}, poll_seconds: 0.1}}\n{PROFILES}{settings}",
            "utf-8",
        )
        server = ServerProcess(config, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> ServerProcess:
    """One ready service for tests that do not change it."""
    server = start_server()
    server.wait_ready()
    return server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")

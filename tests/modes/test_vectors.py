"""Vectors in the service: fused answers, what happens without them, the same list under load. In this process, with the
bundled model over a small index."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cg_rag.core.config import load
from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.embedder import OnnxEmbedder
from cg_rag.index.models import E5_SMALL_ZH
from cg_rag.index.onnx import CURRENT_TOKEN, CancelToken
from cg_rag.modes.services import make_embedder
from tests.conftest import StartServer
from tests.fake_upstream import Hang, Reply, raw, upstream_in_thread
from tests.modes.conftest import RERANK_OFF, ask, health, leave_while_asked


async def test_answer_is_found_by_meaning_and_shows_both_scores(start: Callable[..., Any]) -> None:
    _, url = await start()
    status, body = await ask(url, "洞口边上没有装栏杆", include_debug=True, topk=3)
    assert status == 200
    stages = body["retrieval_docs"][0]["debug"]["stages"]
    assert 0.5 < stages["dense"] <= 1
    assert "fused" in stages
    assert body["debug"]["retrieval_method"] == "e5-small-zh"
    assert {"embed_ms", "dense_ms", "lexical_ms", "fuse_ms"} <= body["runtime_stats"].keys()
    assert body["warnings"] == []
    described = (await health(url))["index"]
    assert (described["embedding_model"], described["dim"], described["dtype"]) == (
        "e5-small-zh",
        384,
        "int8+int16",
    )


async def test_scores_never_rise_and_depth_does_not_move_an_article(start: Callable[..., Any]) -> None:
    _, url = await start()
    short = (await ask(url, "配电箱和开关箱的距离", topk=5))[1]["retrieval_docs"]
    long = (await ask(url, "配电箱和开关箱的距离", topk=200))[1]["retrieval_docs"]
    assert [one["doc_id"] for one in long[:5]] == [one["doc_id"] for one in short]
    assert len(long) == 71
    scores = [one["score"] for one in long]
    assert scores == sorted(scores, reverse=True)
    assert len({one["doc_id"] for one in long}) == 71


async def test_named_article_comes_first_also_with_vectors(start: Callable[..., Any]) -> None:
    _, url = await start()
    body = (await ask(url, "Q/YANGLI101-2025 3.0.1"))[1]
    assert body["retrieval_docs"][0]["article_number"].startswith("3.0.1")
    assert "Q/YANGLI101" in body["retrieval_docs"][0]["law_name"]


async def test_same_list_alone_and_among_32(start: Callable[..., Any]) -> None:
    _, url = await start("  cache: {max_bytes: 0}\n  capacity: {retrieval: {max: 32}}\n")
    queries = [f"第{number}次检查脚手架、配电箱和吊篮" for number in range(32)]
    alone = [(await ask(url, query))[1]["retrieval_docs"] for query in queries]
    together = await asyncio.gather(*(ask(url, query) for query in queries))
    assert [body["retrieval_docs"] for _, body in together] == alone


async def test_scope_may_be_searched_by_words_only(start: Callable[..., Any]) -> None:
    profiles = "  profiles: {full: {label: 全库, include: all}, plain: {label: 字面, include: all, retrieval_method: lexical}}\n"
    _, url = await start(profiles)
    body = (await ask(url, "脚手架", scope="plain", include_debug=True))[1]
    assert body["debug"]["retrieval_method"] == "lexical"
    assert "dense" not in body["retrieval_docs"][0]["debug"]["stages"]
    assert body["warnings"] == []


async def test_min_score_is_a_cosine_where_there_are_vectors(start: Callable[..., Any]) -> None:
    _, url = await start("  retrieval: {min_score: 0.99}\n")
    assert (await ask(url, "今天天气不错"))[1]["num_docs"] == 0


async def test_missing_model_degrades_with_a_warning_and_nothing_is_cached(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    services, url = await start(f"  embedding: {{model_dir: '{tmp_path / 'none'}'}}\n")
    status, body = await ask(url, "脚手架")
    assert (status, body["warnings"]) == (200, ["向量检索暂不可用，本次只按字面检索。"])
    assert services.retrieval_cache.snapshot()["entries"] == 0
    described = (await health(url))["index"]
    assert described["state"] == "degraded"
    assert "嵌入模型无法使用" in described["faults"][0]


def test_milvus_that_is_away_degrades_with_a_warning_and_nothing_is_cached(
    start_server: StartServer, vector_index: Path
) -> None:
    away = {"BACKEND": "milvus", "MILVUS_URI": "http://127.0.0.1:1", "MILVUS_TIMEOUT_SECONDS": "0.5"}
    environ = {f"CG_RAG_INDEX_{name}": value for name, value in away.items()}
    server = start_server(RERANK_OFF, index_dir=vector_index, environ=environ)
    server.wait_ready()
    body = server.post("/retrieve-rerank", {"query": "脚手架"}).json
    assert body["warnings"] == ["向量检索暂不可用，本次只按字面检索。"]
    assert body["num_docs"] > 0
    described = server.get("/health").json
    assert (described["index"]["backend"], described["index"]["state"]) == ("milvus", "degraded")
    assert any("向量引擎 Milvus 不可用" in fault for fault in described["index"]["faults"])
    assert described["cache"]["entries"] == 0


async def test_missing_model_without_degrade_is_index_not_ready(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    _, url = await start(
        f"  embedding: {{model_dir: '{tmp_path / 'none'}'}}\n  retrieval: {{degrade: false}}\n"
    )
    status, body = await ask(url, "脚手架")
    assert (status, body["error"]["code"]) == (503, "index.not_ready")


class Broken:
    """An embedder whose queries fail; everything else is the real one."""

    def __init__(self, real: OnnxEmbedder) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def embed_query(self, text: str, cancel: object = None) -> Any:
        raise OSError("the model's file system is gone")


async def test_both_texts_of_a_question_are_embedded_by_the_thread_whose_token_cancels_them(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint is asked for one after the other; a model here may have help, which is handed the token."""
    found: list[tuple[str, object, object]] = []
    real = OnnxEmbedder.embed_query

    def noted(self: OnnxEmbedder, text: str, cancel: CancelToken | None = None) -> Any:
        found.append((text, cancel, CURRENT_TOKEN.get()))
        return real(self, text, cancel)

    monkeypatch.setattr(OnnxEmbedder, "embed_query", noted)
    _, url = await start()
    assert (await ask(url, "脚手架没有护栏"))[0] == 200
    assert len(found) == 2
    assert len({token for _, *tokens in found for token in tokens}) == 1
    assert found[0][1] is not None


@pytest.mark.parametrize("degrade", [True, False])
async def test_failing_embedder_degrades_or_fails_as_configured(
    vector_index: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, degrade: bool
) -> None:
    monkeypatch.setattr("cg_rag.modes.services.OnnxEmbedder", lambda *args: Broken(OnnxEmbedder(E5_SMALL_ZH)))
    services, url = await start(f"  retrieval: {{degrade: {str(degrade).lower()}}}\n")
    status, body = await ask(url, "脚手架")
    if degrade:
        assert (status, body["warnings"]) == (200, ["向量检索暂不可用，本次只按字面检索。"])
    else:
        assert (status, body["error"]["code"]) == (502, "retrieval.failed")
    assert services.retrieval_slots.in_use == 0
    assert services.retrieval_cache.snapshot()["entries"] == 0


async def test_index_of_another_model_is_refused_with_both_names(
    vector_index: Path, start: Callable[..., Any], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(E5_SMALL_ZH, model)
    described = json.loads((model / "cg_rag_model.json").read_text("utf-8"))
    described["max_tokens"] = 100
    described["name"] = "other-model"
    (model / "cg_rag_model.json").write_text(json.dumps(described), "utf-8")
    _, url = await start(f"  embedding: {{model_dir: '{model}'}}\n")
    fault = (await health(url))["index"]["faults"][0]
    assert "e5-small-zh" in fault
    assert "other-model" in fault
    assert (await ask(url, "脚手架"))[1]["warnings"] == ["向量检索暂不可用，本次只按字面检索。"]


async def test_flipped_byte_in_a_vector_file_takes_its_scope_down(
    vector_index: Path, start: Callable[..., Any], tmp_path: Path
) -> None:
    index_dir = tmp_path / "index"
    shutil.copytree(vector_index, index_dir)
    scan = next(index_dir.glob("*/scan.i8"))
    data = bytearray(scan.read_bytes())
    data[0] ^= 1
    scan.write_bytes(bytes(data))
    _, url = await start(index_dir=index_dir)
    status, body = await ask(url, "脚手架")
    assert (status, body["error"]["code"]) == (503, "index.not_ready")
    assert "scan.i8" in (await health(url))["index"]["faults"][0]


async def test_vectors_that_cannot_be_read_any_more_degrade_to_words(
    vector_index: Path, start: Callable[..., Any], tmp_path: Path
) -> None:
    index_dir = tmp_path / "index"
    shutil.copytree(vector_index, index_dir)
    services, url = await start(index_dir=index_dir)
    os.truncate(next(index_dir.glob("*/full.i16")), 1000)
    status, body = await ask(url, "脚手架")
    assert (status, body["warnings"]) == (200, ["向量检索暂不可用，本次只按字面检索。"])
    assert body["num_docs"] > 0
    assert services.retrieval_cache.snapshot()["entries"] == 0


@pytest.mark.parametrize(
    ("query", "num_answered"), [("脚手架", 0), ("脚手架没有护栏", 1)], ids=["its_words", "with_law_words"]
)
async def test_client_leaving_cancels_the_call_to_an_embeddings_endpoint(
    start: Callable[..., Any], tmp_path: Path, query: str, num_answered: int
) -> None:
    vectors = [{"index": index, "embedding": [1.0, index, 0.5]} for index in range(2)]
    source = tmp_path / "two.jsonl"
    source.write_text(
        '{"law_name":"样例","article_number":"第一条","contents":"脚手架"}\n'
        '{"law_name":"样例","article_number":"第二条","contents":"配电箱"}\n',
        "utf-8",
    )
    answer, of_one = (json.dumps({"data": vectors[:count]}).encode() for count in (2, 1))
    with upstream_in_thread(raw(answer), *[raw(of_one)] * num_answered, Reply(before=[Hang()])) as server:
        settings = f"  embedding: {{provider: http, endpoint: '{server.url}', model: m, dim: 3, timeout_seconds: 30}}\n"
        config = tmp_path / "endpoint.yaml"
        config.write_text(f"cg_rag:\n{settings}", "utf-8")
        embedder = make_embedder(load(config, {}).settings)
        assert embedder is not None
        build_index([SourceSpec(source, "two", ())], tmp_path / "index", None, embedder=embedder)
        embedder.close()
        services, url = await start(settings, tmp_path / "index")
        await leave_while_asked(query, url, services, server, 2 + num_answered)

"""The console as the service hands it out."""

from __future__ import annotations

from cg_rag.core.console import load_page
from tests.conftest import StartServer
from tests.server_process import ServerProcess

KEY = "a-key-for-the-console"


def test_page_comes_with_its_policy_and_is_typed_as_html(server: ServerProcess) -> None:
    answer = server.get("/console")
    page = load_page()
    assert (answer.status, answer.body) == (200, page.body)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert {name: answer.headers[name] for name in page.headers} == dict(page.headers)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert "X-Request-ID" in answer.headers


def test_page_is_open_without_a_key_and_nothing_behind_it_is(start_server: StartServer) -> None:
    server = start_server(f"  server: {{api_keys: {{phone: {KEY}}}}}\n")
    answer = server.get("/console")
    assert answer.status == 200
    assert KEY.encode() not in answer.body
    for path in ("/console/", "/console/style.css", "/profiles"):
        assert server.get(path).status == 401
    assert "capacity" not in server.get("/health").json, "this is how the page knows that a key is wanted"
    assert "capacity" in server.get("/health", X_API_Key=KEY).json


def test_page_takes_no_other_method_and_has_no_other_address(server: ServerProcess) -> None:
    assert server.post("/console", {}).code == "method_not_allowed"
    assert server.get("/console/").code == "not_found"


def test_openapi_says_that_it_is_html(server: ServerProcess) -> None:
    operation = server.get("/openapi.json").json["paths"]["/cg-rag/console"]["get"]
    assert list(operation["responses"]["200"]["content"]) == ["text/html"]
    assert "security" not in operation

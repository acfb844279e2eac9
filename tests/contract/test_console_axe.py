"""The console under axe-core, the checker of the Web Content Accessibility Guidelines that others use: every panel, wide and
narrow, light and dark, with answers in it.

`make browser` fetches axe-core from npm and says where it is in AXE; without it these tests skip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser, Page, chromium, find_chromium
from tests.conftest import StartServer
from tests.contract.test_console_browser import PHONE, add_photo, ask, opened, wait_idle
from tests.fake_upstream import error, says
from tests.hybrid_bench import QUESTIONS, Hybrid, calls, draft, hybrid
from tests.seeing import REPORT

AXE = Path(os.environ.get("AXE", ""))
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed"),
    pytest.mark.skipif(not AXE.is_file(), reason="AXE does not name axe.min.js"),
]
LOOKS: dict[str, dict[str, Any]] = {
    "desktop": {},
    "desktop dark": {"dark": True},
    "phone": PHONE,
    "phone dark": PHONE | {"dark": True},
}
# Level A and AA of WCAG 2.0 to 2.2, and what axe counts as good practice beside them.
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CHECK = """
async (tags) => {
  const found = await axe.run(document, {runOnly: tags, preload: false, resultTypes: ["violations"]});
  if (!found.passes.length) throw new Error("axe looked at nothing");
  return found.violations.flatMap((rule) => rule.nodes.map(
    (node) => `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.split("\\n").slice(1).join(" ").trim()}`));
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def bench(start_server: StartServer) -> Iterator[Hybrid]:
    with hybrid(start_server, "  generation: {provider: local}\n") as bench:
        yield bench


@pytest.fixture(params=LOOKS.values(), ids=LOOKS.keys())
def page(request: pytest.FixtureRequest, browser: Browser, bench: Hybrid) -> Iterator[Page]:
    with opened(browser, bench.server, **request.param) as page:
        # Through DevTools: the policy of the page lets no other script in, and axe is not part of it.
        page.run(AXE.read_text("utf-8") + "\ntrue")
        yield page
        assert page.faults == []


def violations(page: Page) -> list[str]:
    # All of it in sight: what is folded away is not looked at.
    page.run("document.querySelectorAll('details').forEach((lid) => (lid.open = true))")
    found: list[str] = page.run(CHECK, [TAGS])
    return found


def test_axe_finds_what_is_wrong(page: Page) -> None:
    page.run(
        "[document.createElement('button'), document.createElement('img')].forEach((node) => byId('welcome').append(node))"
    )
    page.run("document.querySelector('#welcome p').style.color = '#888'")
    page.run("document.querySelector('#welcome p').style.background = '#999'")
    assert {line.split(":")[0] for line in violations(page)} == {"button-name", "image-alt", "color-contrast"}


def test_nothing_asked_yet(page: Page) -> None:
    assert violations(page) == []


def test_an_answer_with_articles(page: Page) -> None:
    ask(page, "脚手架基础积水怎么办")
    wait_idle(page)
    assert violations(page) == []


def test_a_photo_with_report_citations_and_trace(page: Page, bench: Hybrid, tmp_path: Path) -> None:
    add_photo(page, tmp_path)
    bench.script(says(REPORT), calls(*QUESTIONS), says(draft()))
    ask(page, "", "hybrid")
    wait_idle(page)
    assert "判定依据" in page.text(".report")
    assert violations(page) == []


def test_a_failure(page: Page, bench: Hybrid, tmp_path: Path) -> None:
    add_photo(page, tmp_path)
    bench.script([error(401)])
    ask(page, "", "hybrid")
    wait_idle(page)
    assert violations(page) == []


def test_the_debugger_of_retrieval(page: Page) -> None:
    page.run("showPanel('retrieval')")
    page.fill("#retrieval-query", "脚手架积水")
    page.run("byId('retrieval-form').requestSubmit()")
    page.until("byId('retrieval-result').innerText.includes('2.0.1')")
    assert violations(page) == []


def test_the_check_of_citations(page: Page) -> None:
    page.run("showPanel('verify')")
    page.fill("#verify-text", "见《样例安全法》第二十八条、《不存在的法》第三条。")
    page.run("byId('verify-form').requestSubmit()")
    page.until("byId('verify-result').innerText.includes('不存在的法')")
    assert violations(page) == []


def test_the_state_of_the_service(page: Page) -> None:
    page.run("openService()")
    assert violations(page) == []

"""The console in a headless Chromium: real service, real streams, models scripted."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.image_headers import read_header
from cg_rag.core.sse import SseDecoder
from cg_rag.index.build import SourceSpec, build_index
from tests import agentic_scenarios as seen
from tests.browser import Browser, Page, chromium, find_chromium
from tests.conftest import ARTICLES, StartServer, write_jsonl
from tests.fake_upstream import FakeUpstream, Go, Hang, error, says, upstream_in_thread
from tests.hybrid_bench import MEASURES, QUESTIONS, Hybrid, calls, draft, hybrid
from tests.pictures import segment, tiff_orientation
from tests.seeing import PLAIN_QUESTION, REPORT
from tests.server_process import ServerProcess

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed"),
]
KEY = "a-key-for-the-console"
PHONE: dict[str, Any] = {"width": 390, "height": 844, "touch": True}
HOSTILE = (
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>\n"
    "![看](http://127.0.0.1:9/leak?q=1) [点我](javascript:window.pwned=3) <a href='javascript:window.pwned=4'>x</a>\n"
    "## <svg onload=window.pwned=5>\n1. \u202e第八十条\u202c \u2066隐\u2069藏\u200f"
)


@dataclass(frozen=True)
class Photo:
    data: bytes

    def read(self, start: int, size: int) -> bytes:
        return self.data[start : start + size]


def url_of(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}/cg-rag/console"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def bench(start_server: StartServer) -> Iterator[Hybrid]:
    """Both vision models scripted; text is chosen by score."""
    with hybrid(start_server, "  generation: {provider: local}\n") as bench:
        yield bench


@pytest.fixture
def page(browser: Browser, bench: Hybrid) -> Iterator[Page]:
    with opened(browser, bench.server) as page:
        yield page
        assert page.faults == []
        assert {url.split("/cg-rag/")[0] for url in page.requested} == {
            f"http://127.0.0.1:{bench.server.port}"
        }


@contextmanager
def opened(browser: Browser, server: ServerProcess, **options: Any) -> Iterator[Page]:
    """The console once it has looked at its service: nothing of it moves any more."""
    with browser.page(url_of(server), **options) as page:
        page.until("byId('service').dataset.state !== 'loading'")
        yield page


def wait_idle(page: Page) -> None:
    page.until("talk.turns.length > 0 && !talk.running")


def ask(page: Page, text: str, mode: str = "rag") -> None:
    page.click(f"label[for=mode-{mode}]")
    if text:
        page.fill("#question", text)
    page.click("#send")


def add_photo(page: Page, folder: Path, **options: Any) -> None:
    photo = folder / "photo.jpg"
    photo.write_bytes(picture(page, **options))
    num = page.run("composer.photos.length")
    page.choose_files("#files", photo)
    page.until(f"composer.photos.length === {num + 1}")


def picture(page: Page, width: int = 80, height: int = 60, orientation: int = 0) -> bytes:
    """A JPEG that a decoder can open, red on its left half, with an EXIF orientation when one is given."""
    script = (
        "(w, h) => { const c = document.createElement('canvas'); c.width = w; c.height = h; const g = c.getContext('2d');"
        " g.fillStyle = '#00f'; g.fillRect(0, 0, w, h); g.fillStyle = '#f00'; g.fillRect(0, 0, w / 2, h);"
        " return c.toDataURL('image/jpeg').split(',')[1]; }"
    )
    data = base64.b64decode(page.run(script, [width, height]))
    if orientation:
        data = data[:2] + segment(0xE1, b"Exif\0\0" + tiff_orientation(orientation)) + data[2:]
    return data


def sent_images(upstream: FakeUpstream) -> list[bytes]:
    parts = upstream.requests[-1].json["messages"][-1]["content"]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.split(",")[1]) for url in urls]


def sent_texts(upstream: FakeUpstream) -> list[str]:
    content = upstream.requests[-1].json["messages"][-1]["content"]
    return [part["text"] for part in content if part["type"] == "text"]


# --- asking ------------------------------------------------------------------------------------------------------


def test_a_question_is_answered_with_articles_that_open(page: Page) -> None:
    page.fill("#question", "脚手架基础积水怎么办")
    page.press("Enter", 13, "\r")
    wait_idle(page)
    assert "整理出以下最相关条文" in page.text(".report")
    item = page.text(".pick")
    assert item in page.text(".evidence").replace("\n", " ") or item.split()[0] in page.text(".evidence")
    page.click(".pick")
    page.until("document.activeElement.matches('.card')")
    assert "基础处不得有积水" in page.text(".card:focus")
    page.click(".back")
    page.until("document.activeElement.matches('.pick')")
    assert page.text("#announcer") == "回答完成，引用 1 条条文。"
    assert page.run("location.href.includes('?')") is False


def test_enter_chooses_a_word_while_an_input_method_composes_and_shift_enter_is_a_new_line(
    page: Page,
) -> None:
    page.fill("#question", "脚手架")
    page.run(
        "document.querySelector('#question').dispatchEvent(new KeyboardEvent('keydown',"
        " {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))"
    )
    page.press("Enter", 13, "\r", modifiers=8)
    assert page.run("talk.turns.length") == 0
    assert page.run("byId('question').value") == "脚手架\n"


def test_answer_is_shown_while_it_comes_and_can_be_stopped(
    browser: Browser, start_server: StartServer
) -> None:
    with upstream_in_thread() as upstream:
        section = json.dumps({"endpoint": upstream.url, "model": "m", "structured_output": "none"})
        server = start_server(f"  embedding: {{provider: none}}\n  generation: {section}\n")
        server.wait_ready()
        text = '{"indices":[1,2]}'
        with opened(browser, server) as page:
            upstream.enqueue(says(text, cut_after=text.index(",2") + 2, cut_by=(Go(),)))
            ask(page, "脚手架搭设后怎么验收")
            page.until("document.querySelectorAll('.pick').length === 1")
            assert page.text("#send") == "停止"
            assert page.text(".status .stage") == "正在作答"
            assert "检索到" in page.text(".evidence")
            upstream.go()
            wait_idle(page)
            assert page.run("document.querySelectorAll('.pick').length") == 2
            upstream.enqueue(says(text, cut_after=2, cut_by=(Hang(),)))
            ask(page, "动火作业要什么手续")
            page.until("talk.turns.length === 2 && talk.turns[1].docs.length > 0")
            page.click("#send")
            wait_idle(page)
            assert "已停止" in page.text(".turn:last-child .error")
            assert page.text("#send") == "发送"
            assert page.faults == []
        server.stop()


# --- pictures ----------------------------------------------------------------------------------------------------


def test_agentic_report_shows_its_work_and_its_citations_open_their_evidence(
    page: Page, bench: Hybrid, tmp_path: Path
) -> None:
    add_photo(page, tmp_path)
    assert page.run("composer.mode") == "agentic", "a photo chooses a mode that looks at it"
    bench.script([seen.INVENTORY, says(seen.PLAN), says(seen.WRITTEN)])
    ask(page, "", "agentic")
    wait_idle(page)
    assert page.text(".level.general") == "一般隐患"
    assert page.text(".report h3") == "隐患等级"
    assert "[cite^" not in page.text(".report")
    steps = page.run("[...document.querySelectorAll('.steps li')].map((step) => step.textContent)")
    assert any("第 1 轮法规检索" in step for step in steps)
    assert any("已接收并校验 1 张图片。" in step for step in steps)
    assert page.run("document.querySelectorAll('.steps li.running').length") == 0
    page.run("document.querySelectorAll('.answer details').forEach((lid) => (lid.open = true))")
    assert page.text(".stages").startswith("观察")
    page.click(".cite")
    page.until("document.activeElement.matches('.card')")
    assert "基础处不得有积水" in page.text(".card:focus")
    assert page.run("document.querySelector('.cite').getAttribute('aria-label')").startswith(
        "引用 1：GB99001"
    )


def test_what_was_said_before_a_reset_is_gone(page: Page, bench: Hybrid, tmp_path: Path) -> None:
    add_photo(page, tmp_path)
    bench.script([seen.INVENTORY, says(seen.PLAN), says(seen.FORGED), says(seen.CORRECTED)])
    ask(page, "", "agentic")
    wait_idle(page)
    assert page.run("talk.turns[0].resets") >= 1
    assert page.run("talk.turns[0].report.text === talk.turns[0].answer")
    assert page.text(".report").count("隐患等级") == 1
    assert page.run(
        "[...document.querySelectorAll('.steps li')].some((step) => step.textContent.includes('更正'))"
    )


def test_hybrid_report_keeps_the_description_and_opens_its_bases(
    page: Page, bench: Hybrid, tmp_path: Path
) -> None:
    add_photo(page, tmp_path)
    bench.script(says(REPORT), calls(*QUESTIONS), says(draft()))
    ask(page, "", "hybrid")
    wait_idle(page)
    assert MEASURES[0] in page.text(".report")
    assert page.run("[...document.querySelectorAll('.report button.cite')].map((c) => c.textContent)") == [
        "1",
        "2",
        "3",
    ]
    assert "〔" not in page.text(".report")
    page.click(".report button.cite")
    page.until("document.activeElement.matches('.card')")


def test_a_second_look_takes_the_first_turn_and_its_photo_along(
    page: Page, bench: Hybrid, tmp_path: Path
) -> None:
    add_photo(page, tmp_path)
    bench.script(says(REPORT))
    ask(page, "看看有什么隐患", "answer")
    wait_idle(page)
    assert page.text(".labelled").startswith("隐患分类")
    add_photo(page, tmp_path)
    assert page.text(".tray .from") == "第 1 轮"
    bench.script(says("画面里有两名工人。"))
    ask(page, PLAIN_QUESTION, "answer")
    page.until("talk.turns.length === 2 && !talk.running")
    messages = bench.eyes.requests[-1].json["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[1]["content"] == "看看有什么隐患"
    assert messages[2]["content"] == REPORT
    assert len(sent_images(bench.eyes)) == 2
    assert any("来自第 1 轮" in text for text in sent_texts(bench.eyes))
    page.click("#new-talk")
    assert page.run("talk.turns.length + composer.photos.length") == 0
    assert page.text("#thread") == ""


def test_observation_is_shown_with_its_label(page: Page, bench: Hybrid, tmp_path: Path) -> None:
    add_photo(page, tmp_path)
    told = {
        "description": "地面有积水。",
        "hazard_label": "场地积水问题",
        "hazard_description": "积水",
        "suggestions": ["排水。"],
        "is_non_scene": False,
    }
    bench.script(says(json.dumps(told, ensure_ascii=False)))
    ask(page, "", "observe")
    wait_idle(page)
    assert "图片描述" in page.text(".report")
    assert "场地积水问题" in page.text(".chips")


def test_a_failing_model_is_told_with_its_code_and_the_question_can_be_asked_again(
    page: Page, bench: Hybrid, tmp_path: Path
) -> None:
    add_photo(page, tmp_path)
    bench.script([error(400)])
    ask(page, "", "answer")
    wait_idle(page)
    assert "vision_upstream_error" in page.text(".error")
    bench.script(says(REPORT))
    page.click(".turn .actions .button")
    page.until("talk.turns.length === 2 && !talk.running")
    assert page.text(".turn:last-child .level") == "一般隐患"
    assert not any("来自第" in text for text in sent_texts(bench.eyes)), (
        "no turn but this one brought the photo"
    )


# --- photos ------------------------------------------------------------------------------------------------------


def test_a_large_photo_lying_on_its_side_is_sent_small_upright_and_without_exif(
    page: Page, bench: Hybrid, tmp_path: Path
) -> None:
    add_photo(page, tmp_path, width=4000, height=3000, orientation=6)
    bench.script(says(REPORT))
    ask(page, "", "answer")
    wait_idle(page)
    (image,) = sent_images(bench.eyes)
    header = read_header(Photo(image))
    assert (header.width, header.height) == (1536, 2048)
    assert b"Exif" not in image
    assert not any("照片方向" in text for text in sent_texts(bench.eyes))
    # Orientation 6 is a quarter turn clockwise: what was on the left is on top.
    top = page.run(
        "(async () => { const image = new Image(); image.src = composer.photos[0].url; await image.decode();"
        " const c = document.createElement('canvas'); c.width = 2; c.height = 2; const g = c.getContext('2d');"
        " g.drawImage(image, 0, 0, 2, 2); return [...g.getImageData(0, 0, 1, 1).data]; })()"
    )
    assert top[0] > 200 > 60 > top[2]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("IMG_1.HEIC", b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
        (
            "plan.svg",
            b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.pwned=1</script></svg>",
            "不是照片",
        ),
        ("notes.jpg", b"not a picture at all", "打开"),
    ],
)
def test_what_is_no_photo_is_refused_with_a_hint(
    page: Page, tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    page.choose_files("#camera", tmp_path / name)
    page.until("byId('composer-note').textContent")
    assert words in page.text("#composer-note")
    assert page.run("composer.photos.length") == 0


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_photos_come_by_paste_and_by_drop_up_to_the_limit(page: Page, kind: str) -> None:
    data = base64.b64encode(picture(page)).decode()
    page.run(
        "(kind, data) => { const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));"
        " const transfer = new DataTransfer();"
        " for (let n = 0; n < 5; n++) transfer.items.add(new File([bytes], `${n}.jpg`, {type: 'image/jpeg'}));"
        " const settings = {bubbles: true, cancelable: true};"
        " const event = kind === 'paste' ? new ClipboardEvent('paste', {...settings, clipboardData: transfer})"
        " : new DragEvent('drop', {...settings, dataTransfer: transfer});"
        " document.body.dispatchEvent(event); }",
        [kind, data],
    )
    page.until("byId('composer-note').textContent")
    assert page.run("composer.photos.length") == 4
    assert "至多 4 张" in page.text("#composer-note")
    page.click(".tray .remove")
    assert page.run("document.querySelectorAll('.tray li').length") == 3


# --- hostile text ------------------------------------------------------------------------------------------------


def assert_inert(page: Page) -> None:
    assert page.run("window.pwned ?? null") is None
    assert (
        page.run("document.querySelectorAll('main :is(script, svg, iframe, a, object, style)').length") == 0
    )
    sources = page.run("[...document.querySelectorAll('main img')].map((image) => image.src.split(':')[0])")
    assert set(sources) <= {"blob"}
    assert not page.run("/[\\u202a-\\u202e\\u2066-\\u2069\\u200f]/.test(document.body.innerText)")


def test_a_hostile_answer_is_text(page: Page, bench: Hybrid, tmp_path: Path) -> None:
    add_photo(page, tmp_path)
    bench.script(says(HOSTILE))
    ask(page, f"图里写了什么{HOSTILE}", "answer")
    wait_idle(page)
    shown = page.text(".report")
    assert "<script>window.pwned = 1</script>" in shown
    assert "![看](http://127.0.0.1:9/leak?q=1)" in shown
    assert "⟨U+202E⟩第八十条⟨U+202C⟩" in shown
    assert_inert(page)


def test_hostile_articles_warnings_and_labels_are_text(
    browser: Browser, start_server: StartServer, tmp_path: Path
) -> None:
    wild = {
        "law_name": f"恶意规范{HOSTILE}",
        "article_number": "<b>1</b>",
        "contents": f"脚手架积水{HOSTILE}",
        "chapter": HOSTILE,
    }
    source = write_jsonl(tmp_path / "wild.jsonl", [*ARTICLES, wild])
    build_index([SourceSpec(source, "codes", ())], tmp_path / "index", None)
    server = start_server(
        "  generation: {provider: local}\n  embedding: {provider: none}\n", tmp_path / "index"
    )
    server.wait_ready()
    with opened(browser, server) as page:
        ask(page, "恶意规范 脚手架积水")
        wait_idle(page)
        page.run("document.querySelectorAll('details').forEach((lid) => (lid.open = true))")
        assert "<b>1</b>" in page.text(".evidence")
        page.run("verifyText(`《恶意规范》第一条${''}、《<img src=x onerror=window.pwned=6>办法》第三条`)")
        page.until("document.querySelector('#verify-result h3')")
        assert_inert(page)
        assert page.faults == []
    server.stop()


def test_policy_stops_what_a_slip_of_ours_would_let_through(browser: Browser, bench: Hybrid) -> None:
    with opened(browser, bench.server) as page:
        slips = {
            "markup": "document.body.innerHTML = '<b>x</b>'",
            "script": "document.createElement('script').text = 'window.pwned = 1'",
        }
        for slip in slips.values():
            assert (
                page.run(f"(() => {{ try {{ {slip}; return 'done'; }} catch (e) {{ return e.name; }} }})()")
                == "TypeError"
            )
        assert page.run("fetch('http://127.0.0.1:9/leak').then(() => 'sent', () => 'refused')") == "refused"
        page.until("document.readyState === 'complete'")
        assert any("Content Security Policy" in fault for fault in page.faults)


# --- key, tools, layout, keyboard --------------------------------------------------------------------------------


def test_key_is_asked_for_kept_in_the_tab_and_never_in_the_address(
    browser: Browser, start_server: StartServer
) -> None:
    server = start_server(
        f"  server: {{api_keys: {{phone: {KEY}}}}}\n  generation: {{provider: local}}\n  embedding: {{provider: none}}\n"
    )
    server.wait_ready()
    with opened(browser, server) as page:
        page.until("byId('service').dataset.state === 'locked'")
        ask(page, "脚手架基础积水怎么办")
        page.until("byId('service-dialog').open && document.activeElement.id === 'key'")
        page.fill("#key", "wrong")
        page.press("Enter", 13, "\r")
        page.until("byId('key-note').textContent === '密钥不正确。'")
        page.fill("#key", KEY)
        page.press("Enter", 13, "\r")
        page.until("!byId('service-dialog').open && byId('service').dataset.state === 'ready'")
        assert page.run("byId('key').value") == ""
        page.click(".turn .actions .button")
        page.until("talk.turns.length === 2 && !talk.running && talk.turns[1].ok")
        page.open(url_of(server))
        page.until("byId('service').dataset.state === 'ready'")
        assert (
            page.run(
                "[...Object.keys(localStorage), document.cookie, location.search + location.hash].join('')"
            )
            == ""
        )
        assert not [url for url in page.requested if "key" in url.lower()]
    with opened(browser, server) as stranger:
        stranger.until("byId('service').dataset.state === 'locked'")
    assert KEY.encode() not in server.raw_log
    server.stop()


def test_debugger_shows_what_each_stage_gave(page: Page) -> None:
    page.click("#tab-retrieval")
    page.fill("#retrieval-query", "脚手架 6.0.5 验收")
    page.click("#retrieval-form .primary")
    page.until("document.querySelector('.scores')")
    heads = page.run("[...document.querySelectorAll('.scores thead th')].map((head) => head.textContent)")
    assert heads[:3] == ["序", "条文", "得分"]
    assert "字面" in heads
    assert page.run("document.querySelectorAll('.scores tbody tr').length") >= 2
    assert page.run("document.activeElement.id") == "retrieval-result"


def test_citations_of_a_text_are_looked_up(page: Page) -> None:
    page.click("#tab-verify")
    page.fill("#verify-text", "依据《中华人民共和国样例安全法》第二十八条、第九十九条和《某某办法》第三条。")
    page.click("#verify-form .primary")
    page.until("document.querySelector('#verify-result h3')")
    assert page.text("#verify-result h3") == "找到 3 处引用：已对上 1 处，没有这一条 1 处，无法核对 1 处"
    assert "安全教育和培训" in page.text("#verify-result .card")


def test_modes_that_lack_a_model_say_so(browser: Browser, server: ServerProcess) -> None:
    with opened(browser, server) as page:
        page.until("byId('service').dataset.state === 'ready'")
        page.click("label[for=mode-hybrid]")
        assert "没有配置" in page.text("#mode-hint")
        ask(page, "脚手架基础积水怎么办")
        wait_idle(page)
        assert "generation_not_configured" in page.text(".error")
        assert "检索到" in page.text(".evidence")


@pytest.mark.parametrize("width", [320, 390, 820, 1280])
def test_nothing_is_wider_than_the_window(
    browser: Browser, bench: Hybrid, tmp_path: Path, width: int
) -> None:
    with opened(browser, bench.server, width=width, height=800, touch=width < 800) as page:
        add_photo(page, tmp_path)
        bench.script(says(REPORT), calls(*QUESTIONS), says(draft()))
        page.run("chooseMode('hybrid'), send()")
        page.run("document.querySelectorAll('details').forEach((lid) => (lid.open = true))")
        for panel in ("talk", "retrieval", "verify"):
            page.run("name => showPanel(name)", [panel])
            assert page.run("document.documentElement.scrollWidth") <= width
        page.run("openService()")
        assert page.run("document.documentElement.scrollWidth") <= width


def test_tabs_move_with_the_arrows_and_every_control_has_a_name(page: Page) -> None:
    page.run("byId('tab-talk').focus()")
    page.press("ArrowRight", 39)
    assert page.run("document.activeElement.id") == "tab-retrieval"
    page.press("End", 35)
    assert page.run("document.querySelector('[role=tabpanel]:not([hidden])').id") == "panel-verify"
    page.press("ArrowRight", 39)
    assert page.run("document.activeElement.id") == "tab-talk"
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    controls = [
        node
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"]
        in ("button", "textbox", "combobox", "tab", "radio", "checkbox", "spinbutton", "DisclosureTriangle")
    ]
    assert len(controls) > 10
    assert [node["role"]["value"] for node in controls if not node.get("name", {}).get("value")] == []


# --- the parser of streams ---------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    (
        *(
            b"data",
            b"event",
            b"id",
            b":",
            b": ",
            b" ",
            b"\r",
            b"\n",
            b"\r\n",
            b"\n\n",
            b"\xef\xbb\xbf",
            b"x",
            b"{}",
        ),
        *(
            "隐".encode(),
            b"\xe9\x9a",
            b"\xff",
            "\u2028".encode(),
            b"data: a\n",
            b"event: token\n",
            b": keepalive\n\n",
        ),
    )
)


@pytest.fixture(scope="module")
def parser_page(browser: Browser, bench: Hybrid) -> Iterator[Page]:
    with opened(browser, bench.server) as page:
        yield page


@settings(max_examples=150)
@given(pieces=st.lists(PIECES, max_size=30), cuts=st.lists(st.integers(0, 120), max_size=6))
def test_parser_of_the_page_reads_what_ours_reads(
    parser_page: Page, pieces: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(pieces)
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    chunks = [stream[start:end] for start, end in pairwise(places)]
    decoder = SseDecoder()
    expected = [[event.event, event.data] for chunk in chunks for event in decoder.feed(chunk)]
    read = parser_page.run(
        "chunks => { const parser = new SseParser();"
        " return chunks.flatMap((chunk) => parser.feed(Uint8Array.from(chunk))).map((event) => [event.name, event.data]); }",
        [[list(chunk) for chunk in chunks]],
    )
    assert read == expected

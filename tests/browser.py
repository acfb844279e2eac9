"""A headless Chromium, driven over the pipe of its DevTools protocol: no port, no driver, standard library only.

    with chromium() as browser, browser.page(url) as page:
        page.fill("#question", "脚手架")
        page.click("#send")
        page.until("document.querySelector('.report').textContent.includes('1.')")

What a script of the page logs, throws or is refused by its policy is in `page.faults`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 20.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# bash puts the two ends of the pipe where Chromium looks for them: it reads from 3 and writes to 4.
ON_PIPE = 'exec "$@" 3<&"$FROM" 4>&"$TO"'
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests may run as root, and open nothing but our own page
    "--no-first-run",
    "--no-proxy-server",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
)


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One process. Commands are answered in order of arrival; events are kept for the page they belong to."""

    def __init__(self, program: str, folder: Path) -> None:
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        for end in (from_us, to_us):
            os.set_inheritable(end, True)
        self._process = subprocess.Popen(
            ["bash", "-c", ON_PIPE, "-", program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            env={**os.environ, "FROM": str(from_us), "TO": str(to_us)},
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._number = 0
        self._news = threading.Condition()
        self._answers: dict[int, Any] = {}
        self.events: list[dict[str, Any]] = []
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with open(self._from, "rb") as stream:
            begun = b""
            while piece := stream.read1(65536):
                *messages, begun = (begun + piece).split(b"\0")
                for message in messages:
                    self._take(json.loads(message))
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        with self._news:
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self.events.append(message)
            self._news.notify_all()

    def call(self, method: str, session: str = "", **params: Any) -> Any:
        """The result of a command. Raises AssertionError with what the browser said."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._to, json.dumps(message).encode() + b"\0")
        with self._news:
            self._news.wait_for(lambda: number in self._answers or self._ended, PATIENCE_SECONDS)
            assert number in self._answers, f"no answer to {method}"
            answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    @contextmanager
    def page(self, url: str, **options: Any) -> Iterator[Page]:
        """A page of a context of its own, with no storage shared; `options` as Page.dress takes them."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            page = Page(self, session)
            page.dress(**options)
            page.open(url)
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def stop(self) -> None:
        self.call("Browser.close")
        os.close(self._to)
        self._process.wait(PATIENCE_SECONDS)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._seen = len(browser.events)
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def dress(
        self, width: int = 1280, height: int = 800, scale: float = 1, dark: bool = False, touch: bool = False
    ) -> None:
        """The size of the window, the scheme of colours, fingers instead of a mouse."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=touch,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        calm = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, calm])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str, arguments: Sequence[Any] = ()) -> Any:
        """The value of an expression, awaited; with `arguments` of a function that is called with them."""
        if arguments:
            script = f"({script})(...{json.dumps(arguments)})"
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"never true: {condition}\n{self.text('body')}\n{self.faults}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """What a reader sees of the first element, "" when there is none."""
        return str(self.run("selector => document.querySelector(selector)?.innerText ?? ''", [selector]))

    def click(self, selector: str) -> None:
        """With the mouse, where the element is."""
        place = self.run(
            "selector => { const node = document.querySelector(selector); node.scrollIntoView({block: 'center'});"
            " const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }",
            [selector],
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def fill(self, selector: str, text: str) -> None:
        """As an input method would write."""
        self.run(
            "selector => { const node = document.querySelector(selector); node.focus(); node.select(); }",
            [selector],
        )
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "", modifiers: int = 0) -> None:
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def choose_files(self, selector: str, *files: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    @property
    def _events(self) -> list[dict[str, Any]]:
        return [
            event for event in self._browser.events[self._seen :] if event.get("sessionId") == self._session
        ]

    @property
    def faults(self) -> list[str]:
        """Exceptions, errors of the console, and whatever the policy of the page refused."""
        found = []
        for event in self._events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", {}).get("description", params)))
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
        return found

    @property
    def requested(self) -> list[str]:
        """Every address that the page asked for, blobs and data left out."""
        sent = [
            e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if not url.startswith(("blob:", "data:"))]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Raises AssertionError where there is none: ask find_chromium first."""
    program = find_chromium()
    assert program is not None, "Chromium is not installed"
    with tempfile.TemporaryDirectory(prefix="cg_rag_browser_", ignore_cleanup_errors=True) as folder:
        browser = Browser(program, Path(folder))
        try:
            yield browser
        finally:
            browser.stop()

"""Takes the pictures of the console: `python -m tests.console_pictures docs/images [--dark]`.

The service is real and searches the bundled sample by words; the photo is drawn here, and what the two models say is
scripted: the pictures show the page, not the judgement of a model.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.demo import SAMPLE_CORPORA, SAMPLE_DIR
from tests.browser import Browser, Page, chromium
from tests.fake_upstream import FakeUpstream, Received, Reply, Script, says, upstream_in_thread
from tests.hybrid_bench import calls
from tests.server_process import ServerProcess

DESKTOP = {"width": 1280, "height": 900}
MAX_PICTURE_BYTES = 150_000
PHONE = {"width": 390, "height": 844, "touch": True}
DESCRIPTION = (
    "隐患等级：一般隐患\n\n隐患分类：扣件式钢管脚手架\n\n隐患描述：\n1. 落地脚手架立杆底部浸泡在积水中，架体外侧没有排水沟。\n"
    "2. 一处立杆下的垫板悬空。\n\n整改措施和建议：\n1. 排水。"
)
BASES = (
    ("第二十条", "基础出现积水、下沉或垫板悬空时停止使用，抽干垫实、复验后再上人"),
    ("3.0.1(3)", "架基应高出周边地面，排水坡度不小于1%"),
    ("附录A.0.1", "脚手架应分阶段验收，前一阶段不合格不应继续往上搭"),
)
MEASURES = (
    "立即停止使用该段脚手架，抽干积水，沿架体外侧50厘米处开挖排水沟。",
    "重新夯实架基，垫实悬空的垫板。",
    "由搭设班组、项目和监理三方复验合格并填写验收牌后恢复使用。",
)
SEARCHES = ("脚手架基础积水 排水沟 垫板悬空", "脚手架 场地 排水坡度 架基", "脚手架 分阶段验收 基础完工后")
# A scaffold in a puddle, in a few strokes.
SCENE = """
(w, h) => {
  const c = document.createElement("canvas"); c.width = w; c.height = h; const g = c.getContext("2d");
  const sky = g.createLinearGradient(0, 0, 0, h); sky.addColorStop(0, "#b9cbd6"); sky.addColorStop(1, "#e8e4da");
  g.fillStyle = sky; g.fillRect(0, 0, w, h);
  g.fillStyle = "#b8ab98"; g.fillRect(w * 0.3, h * 0.08, w * 0.62, h * 0.68);
  g.fillStyle = "#6f7f88";
  for (let x = 0; x < 4; x++) for (let y = 0; y < 3; y++) g.fillRect(w * (0.36 + x * 0.14), h * (0.14 + y * 0.2), w * 0.07, h * 0.1);
  g.fillStyle = "#8a7a63"; g.fillRect(0, h * 0.74, w, h * 0.26);
  g.fillStyle = "#7f98a5"; g.beginPath(); g.ellipse(w * 0.46, h * 0.88, w * 0.36, h * 0.075, 0, 0, 7); g.fill();
  g.fillStyle = "#a9c0cb"; g.beginPath(); g.ellipse(w * 0.4, h * 0.87, w * 0.16, h * 0.025, 0, 0, 7); g.fill();
  g.strokeStyle = "#d08a1d"; g.lineWidth = w * 0.011;
  const line = (a, b, d, e) => { g.beginPath(); g.moveTo(w * a, h * b); g.lineTo(w * d, h * e); g.stroke(); };
  for (let n = 0; n < 6; n++) line(0.12 + n * 0.15, 0.03, 0.12 + n * 0.15, 0.87);
  for (let n = 0; n < 4; n++) line(0.06, 0.12 + n * 0.2, 0.93, 0.12 + n * 0.2);
  g.lineWidth = w * 0.006; line(0.12, 0.72, 0.42, 0.12); line(0.57, 0.72, 0.87, 0.12);
  g.fillStyle = "#5d4a33";
  for (let n = 0; n < 6; n++) g.fillRect(w * (0.095 + n * 0.15), h * (n === 3 ? 0.895 : 0.87), w * 0.05, h * 0.018);
  return c.toDataURL("image/jpeg", 0.9).split(",")[1];
}
"""


def writes(request: Received) -> Reply:
    """Bases on the articles above, by the numbers that the service gave them."""
    told = "\n".join(str(message.get("content")) for message in request.json["messages"])
    numbers = {article: number for number, article in re.findall(r"〔(\d+)〕 (?:\S+) (\S+)", told)}
    lines = [f"{place}. {text}〔{numbers[article]}〕。" for place, (article, text) in enumerate(BASES, 1)]
    steps = [f"{place}. {text}" for place, text in enumerate(MEASURES, 1)]
    script: Script = says("\n".join(["## 隐患判定依据", *lines, "", "## 整改措施及建议", *steps]))
    assert not isinstance(script, Reply)
    return script(request)


@contextmanager
def serving(folder: Path, eyes: FakeUpstream, pen: FakeUpstream) -> Iterator[str]:
    """The address of the console of a service on the sample."""
    specs = [SourceSpec(SAMPLE_DIR / f"{name}.jsonl", name, ()) for name in SAMPLE_CORPORA]
    build_index(specs, folder / "index", None)
    settings = {
        "index": {"dir": str(folder / "index")},
        "embedding": {"provider": "none"},
        "generation": {"provider": "local"},
        "mcp": {"enabled": False},
        "vision": {"endpoint": eyes.url, "model": "vlm"},
        "hybrid_generation": {"endpoint": pen.url, "model": "text-model", "api_key": "scripted"},
    }
    (folder / "config.yaml").write_text(json.dumps({"cg_rag": settings}), "utf-8")
    server = ServerProcess(folder / "config.yaml")
    try:
        server.wait_ready()
        yield f"http://127.0.0.1:{server.port}/cg-rag/console"
    finally:
        server.stop()


def look_at_photo(page: Page, folder: Path) -> None:
    photo = folder / "photo.jpg"
    photo.write_bytes(base64.b64decode(page.run(SCENE, [1200, 900])))
    page.choose_files("#files", photo)
    page.until("composer.photos.length === 1")
    page.run("chooseMode('hybrid'), send()")
    page.until("talk.turns.length && !talk.running")


def save(page: Page, path: Path) -> None:
    """A picture of 256 colours where pngquant is there (apt-get install pngquant): a third of the size, the same to the eye."""
    page.screenshot(path)
    if pngquant := shutil.which("pngquant"):
        subprocess.run([pngquant, "--force", "--skip-if-larger", "--output", path, path], check=True)
    assert path.stat().st_size < MAX_PICTURE_BYTES, f"{path} is too large; is pngquant installed?"


def take(browser: Browser, url: str, folder: Path, target: Path, is_dark: bool) -> None:
    suffix = "-dark" if is_dark else ""
    with browser.page(url, **DESKTOP, dark=is_dark) as page:
        page.until("byId('service').dataset.state === 'ready'")
        look_at_photo(page, folder)
        save(page, target / f"console-desktop{suffix}.png")
    with browser.page(url, **PHONE, dark=is_dark) as page:
        page.until("byId('service').dataset.state === 'ready'")
        page.run("askExample(EXAMPLES[0])")
        page.until("talk.turns.length && !talk.running")
        save(page, target / f"console-phone{suffix}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--dark", action="store_true")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        upstream_in_thread() as eyes,
        upstream_in_thread() as pen,
        serving(Path(name), eyes, pen) as url,
        chromium() as browser,
    ):
        eyes.enqueue(says(DESCRIPTION))
        pen.enqueue(calls(*SEARCHES), writes)
        take(browser, url, Path(name), args.target, args.dark)


if __name__ == "__main__":
    main()

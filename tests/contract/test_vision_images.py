"""Files and field vectors from elsewhere through vision/answer: the verdict on each, and what reaches the model.

Skipped where the files are not beside the checkout.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.fake_upstream import says
from tests.seeing import PLAIN_QUESTION, Service, seeing

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
VECTORS = DATA / "hostile" / "images_field_vectors.json"
FILES = sorted(path for folder in ("images", "hostile/images_made") for path in (DATA / folder).glob("*"))
# Neither a picture of the three kinds nor one whose size can be read and is allowed.
REFUSED = {
    "broken.png", "empty.bin", "gif.gif", "heic_ftyp.heic", "hopper.heif", "html_as_jpeg.jpg", "jpeg_sof_65535.jpg",
    "jpeg_soi_only.jpg", "png_chunk_len_huge.png", "png_dim_2147483647.png", "png_dim_bomb_65535.png",
    "png_dim_zero.png", "png_idat_bomb_20000x20000.png", "png_sig_only.png", "polyglot_jpeg_js.jpg", "svg_script.svg",
    "webp_empty.webp", "webp_riff_len_liar.webp", "zip_as_png.png",
}  # fmt: skip
TURNED = {
    "hopper_orientation_6.jpg": "需顺时针旋转 90°",
    "hopper_orientation_6.webp": "需顺时针旋转 90°",
    "orientation_rectangle.jpg": "需顺时针旋转 270°",
}

pytestmark = pytest.mark.skipif(not VECTORS.exists(), reason="the files are not here")


@pytest.fixture(scope="module")
def service(start_server: StartServer) -> Iterator[Service]:
    with seeing(start_server) as service:
        yield service


def send(service: Service, image: dict[str, Any]) -> str:
    """ "" for a picture that arrived at the model, else the message; nothing of a refused one arrives."""
    before = len(service.upstream.requests)
    answer = service.post(says("看到了。"), images=[image], question=PLAIN_QUESTION)
    arrived = len(service.upstream.requests) - before
    if answer.status == 200:
        assert arrived == 1
        return ""
    assert (answer.status, answer.code, arrived) == (400, "invalid_image", 0)
    message: str = answer.json["error"]["message"]
    assert message.startswith("第 1 张图片")
    return message


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_is_refused_or_arrives_byte_for_byte_under_its_true_type(
    service: Service, path: Path
) -> None:
    text = base64.b64encode(path.read_bytes()).decode()
    message = send(service, {"data": text})
    assert bool(message) == (path.name in REFUSED), message
    if message:
        return
    kind = {".png": "png", ".webp": "webp"}.get(path.suffix, "jpeg")
    picture = next(part for part in service.content if part["type"] == "image_url")
    assert picture["image_url"]["url"] == f"data:image/{kind};base64,{text}"
    notes = [part["text"] for part in service.content if part["type"] == "text"]
    turned = TURNED.get(path.name)
    assert notes == [*([f"（照片方向：{turned}）"] if turned else []), PLAIN_QUESTION]


def vectors() -> list[dict[str, Any]]:
    return json.loads(VECTORS.read_text("utf-8")) if VECTORS.exists() else []


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["id"])
def test_each_vector_of_the_field_is_judged_as_it_says(service: Service, vector: dict[str, Any]) -> None:
    image = {key: vector[key] for key in ("data", "mime_type") if key in vector}
    message = send(service, image)
    # What is left to decide is taken: line breaks, other letter cases, a label that the bytes contradict.
    assert bool(message) == (vector["expect"] == "invalid_image"), message
    if not message:
        picture = next(part for part in service.content if part["type"] == "image_url")
        assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBOR")

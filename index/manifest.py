"""manifest.json and laws.json: what a built index says about itself, and the checks that need only them.

Rule: every byte of the manifest is covered by the digest inside it, and what decides an answer is covered
by the fingerprint, which is the name of the folder. So a changed manifest, an exchanged one and one of
another version are each told apart before anything else is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cg_rag.index.corpus import LawRun
from cg_rag.index.errors import IndexDamaged
from cg_rag.index.vectors import FULL, FULL_SCALES, MEAN, SCALES, SCAN

# 2: vectors. Their files are there all together or not at all.
FORMAT_VERSION = 2

MANIFEST = "manifest.json"
ARTICLES = "articles.jsonl"
OFFSETS = "articles.offsets"
LAWS = "laws.json"
LOOKUP_KEYS = "lookup.keys"
LOOKUP_ROWS = "lookup.rows"
LEXICAL = ("keys", "indptr", "rows", "impacts")

# Which element types a file may have. Another one means a file of another program: never reinterpret bytes.
DTYPES: Mapping[str, tuple[str, ...]] = {
    OFFSETS: ("<u8",),
    LOOKUP_KEYS: ("<u8",),
    LOOKUP_ROWS: ("<u4",),
    "lexical.keys": ("<u8",),
    "lexical.indptr": ("<i8",),
    "lexical.rows": ("<u2", "<u4"),
    "lexical.impacts": ("|u1", "<u2"),
}
FILES: tuple[str, ...] = (ARTICLES, LAWS, *DTYPES)

VECTOR_DTYPES: Mapping[str, tuple[str, ...]] = {
    MEAN: ("<f4",),
    SCALES: ("<f4",),
    FULL_SCALES: ("<f4",),
    SCAN: ("|i1",),
    FULL: ("<i2",),
}
VECTOR_FILES: tuple[str, ...] = tuple(VECTOR_DTYPES)
VECTOR_DTYPE = "int8+int16"
# Files whose rows have a digest for each law in laws.json beside that of the whole.
RUN_FILES: tuple[str, ...] = (ARTICLES, SCALES, FULL_SCALES, SCAN, FULL)

# Larger ones are not ours: 100,000 laws make a laws.json of about 30 MB.
MAX_JSON_BYTES = 256 << 20

_SEAL = re.compile(rb'"manifest_sha256": "([0-9a-f]{64})"')
_UNSEALED = b'"manifest_sha256": "' + b"0" * 64 + b'"'
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One entry of `files`. `dtype` and `shape` are None for text."""

    size: int
    sha256: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"bytes": self.size, "sha256": self.sha256}
        if self.dtype is not None:
            entry |= {"dtype": self.dtype, "shape": list(self.shape or ())}
        return entry


def content_fingerprint(manifest: Mapping[str, Any]) -> str:
    """16 hex digits over everything that decides an answer: format version, file digests, tokeniser, sources.

    The time of building and the names of the source files are left out: the same content has the same
    fingerprint.
    """
    decisive = {
        key: value
        for key, value in manifest.items()
        if key not in ("built_at", "fingerprint", "manifest_sha256", "corpora")
    }
    decisive["corpora"] = [
        {key: value for key, value in corpus.items() if key != "path"} for corpus in manifest["corpora"]
    ]
    text = json.dumps(decisive, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode_manifest(manifest: Mapping[str, Any]) -> bytes:
    """The bytes of manifest.json: `manifest`, its fingerprint and, last, the digest of these very bytes."""
    body = dict(manifest)
    body["fingerprint"] = content_fingerprint(manifest)
    body["manifest_sha256"] = "0" * 64
    blank = json.dumps(body, ensure_ascii=False, indent=1).encode() + b"\n"
    return blank.replace(_UNSEALED, f'"manifest_sha256": "{hashlib.sha256(blank).hexdigest()}"'.encode())


def parse_manifest(raw: bytes, folder: str) -> dict[str, Any]:
    """The manifest of the generation in `folder`; raises IndexDamaged."""
    manifest = _parse_json_object(raw, MANIFEST)
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise IndexDamaged(
            MANIFEST,
            "索引格式版本不同，请重新运行 cg-rag index build",
            str(FORMAT_VERSION),
            str(version)[:40],
        )
    check_seal(raw)
    try:
        _check_fields(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IndexDamaged(MANIFEST, f"字段缺失或类型不符：{error}") from error
    found = content_fingerprint(manifest)
    expected = folder.partition(".")[0]
    if not found == manifest["fingerprint"] == expected:
        raise IndexDamaged(MANIFEST, "清单的指纹与目录名不符", expected, found)
    return manifest


def check_seal(raw: bytes) -> None:
    """Raises IndexDamaged unless the digest inside the manifest is that of the rest of it."""
    seals = _SEAL.findall(raw)
    if len(seals) != 1:
        raise IndexDamaged(MANIFEST, "清单缺少自身的 SHA-256")
    found = hashlib.sha256(_SEAL.sub(_UNSEALED, raw)).hexdigest()
    if found != seals[0].decode():
        raise IndexDamaged(MANIFEST, "清单内容被改动", seals[0].decode(), found)


def _check_fields(manifest: Mapping[str, Any]) -> None:
    _count(manifest["num_docs"])
    _count(manifest["dim"])
    _text(manifest["built_at"])
    _text(manifest["tokeniser"])
    dict(manifest["lexical"])
    for corpus in manifest["corpora"]:
        for key in ("name", "path", "sha256", "importer"):
            _text(corpus[key])
        _count(corpus["num_docs"])
        for tag in corpus["tags"]:
            _text(tag)
    for name in FILES:
        _check_file_entry(name, manifest["files"][name])
    if has_vectors(manifest):
        _check_vectors(manifest)


def has_vectors(manifest: Mapping[str, Any]) -> bool:
    """Whether the generation holds vectors; raises ValueError for one that holds some of their files."""
    present = [name for name in VECTOR_FILES if name in manifest["files"]]
    if present and len(present) != len(VECTOR_FILES):
        raise ValueError("向量文件不全")
    described = [manifest["embedding"] is not None, manifest["dtype"] is not None, manifest["dim"] != 0]
    if described != [bool(present)] * 3:
        raise ValueError("embedding、dtype、dim 与向量文件不一致")
    return bool(present)


def _check_vectors(manifest: Mapping[str, Any]) -> None:
    embedding, dim, rows = manifest["embedding"], _count(manifest["dim"]), manifest["num_docs"]
    for key in ("model", "fingerprint", "kernel_class"):
        _text(embedding[key])
    if manifest["dtype"] != VECTOR_DTYPE or _count(embedding["dim"]) != dim:
        raise ValueError(f"dtype 须为 {VECTOR_DTYPE}，embedding.dim 须与 dim 一致")
    shapes = {MEAN: [dim], SCALES: [rows], FULL_SCALES: [rows], SCAN: [rows, dim], FULL: [rows, dim]}
    for name, shape in shapes.items():
        _check_file_entry(name, manifest["files"][name], shape)


def _check_file_entry(name: str, entry: Mapping[str, Any], expected: list[int] | None = None) -> None:
    """`expected` is the shape; None: one dimension of any length."""
    size = _count(entry["bytes"])
    if not _DIGEST.fullmatch(entry["sha256"]):
        raise ValueError(f"{name} 的 sha256")
    dtypes = DTYPES.get(name) or VECTOR_DTYPES.get(name)
    if dtypes is None:
        return
    dtype, shape = entry["dtype"], entry["shape"]
    if dtype not in dtypes:
        raise IndexDamaged(name, "元素类型不符", " 或 ".join(dtypes), str(dtype)[:40])
    if expected is not None and shape != expected:
        raise IndexDamaged(name, "形状与条数、维度不符", str(expected), str(shape)[:80])
    if len(shape) != len(expected or [0]) or math.prod(map(_count, shape)) * int(dtype[2:]) != size:
        raise IndexDamaged(name, "形状与大小不符", f"{size} 字节", f"{shape} × {dtype}"[:80])


def encode_laws(runs: Sequence[LawRun], vector_digests: Mapping[str, Sequence[str]] | None = None) -> bytes:
    """The bytes of laws.json. Digests stand by file name; `vector_digests` holds one for each run."""
    more = vector_digests or {}
    entries = [
        {
            "law_name": run.law_name,
            "corpus": run.corpus,
            "tags": list(run.tags),
            "start": run.start,
            "count": run.count,
            "sha256": {ARTICLES: run.sha256, **{name: digests[index] for name, digests in more.items()}},
        }
        for index, run in enumerate(runs)
    ]
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    return f'{{"laws": [\n{lines}\n]}}\n'.encode()


def parse_laws(raw: bytes, num_docs: int) -> tuple[LawRun, ...]:
    """The runs in row order; raises IndexDamaged when they do not cover the rows 0 ..

    num_docs - 1 without a gap.
    """
    try:
        runs = tuple(_parse_run(entry) for entry in _parse_json_object(raw, LAWS)["laws"])
    except (KeyError, TypeError, ValueError) as error:
        raise IndexDamaged(LAWS, f"字段缺失或类型不符：{error}") from error
    row = 0
    for run in runs:
        if run.start != row or run.count == 0:
            raise IndexDamaged(LAWS, f"《{run.law_name}》的条文位置不连续", str(row), str(run.start))
        row += run.count
    if row != num_docs:
        raise IndexDamaged(LAWS, "条文总数与清单不符", str(num_docs), str(row))
    return runs


def parse_run_digests(raw: bytes, file: str) -> list[str]:
    """The digests of `file` in laws.json, one for each run. Not kept: only damage asks for them."""
    return [entry["sha256"][file] for entry in json.loads(raw)["laws"]]


def _parse_run(entry: Mapping[str, Any]) -> LawRun:
    return LawRun(
        law_name=_text(entry["law_name"]),
        corpus=_text(entry["corpus"]),
        tags=tuple(_text(tag) for tag in entry["tags"]),
        start=_count(entry["start"]),
        count=_count(entry["count"]),
        sha256=_text(entry["sha256"][ARTICLES]),
    )


def _parse_json_object(raw: bytes, file: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise IndexDamaged(file, "不是有效的 JSON") from error
    if not isinstance(value, dict):
        raise IndexDamaged(file, "不是 JSON 对象")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(f"{value!r} 不是计数"[:80])
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} 不是文本"[:80])
    return value

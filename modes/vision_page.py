"""The report of an evaluation as one page of HTML, to be opened from the disk.

Rule: nothing on the page runs, and nothing is fetched but the photos. Every text is escaped, there is no script, and
the policy in the head allows one style, named by its hash, and pictures.

Photos stand on the page themselves, smallest first, as long as they fit into `embed_bytes`; the others are referred to
by their path relative to the page. Making small copies would take an image library.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cg_rag.core.photo_labels import PhotoLabel
from cg_rag.core.photo_verdict import MATCH_WORDS, VERDICT_WORDS
from cg_rag.core.report import SCENE_WORDS
from cg_rag.modes import vision_tables
from cg_rag.modes.vision_measure import Judged, Run, Terms
from cg_rag.modes.vision_tables import Table

_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--yes:#1a7f37;--no:#cf222e;--open:#9a6700}
body{font:15px/1.6 system-ui,"PingFang SC","Microsoft YaHei","Noto Sans CJK SC",sans-serif;max-width:1200px;margin:0 auto;padding:16px}
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em;border-bottom:1px solid var(--line)}h3{font-size:1em}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{border:1px solid var(--line);padding:4px 10px;text-align:left;white-space:nowrap}
.note{opacity:.75;font-size:.9em}
.photo{display:grid;grid-template-columns:minmax(0,260px) minmax(0,1fr);gap:16px;padding:16px 0;border-bottom:1px solid var(--line)}
.photo img{width:100%;max-height:260px;object-fit:contain;background:#8882}
.photo h3{margin:0;overflow-wrap:anywhere}
.answer{margin:8px 0;padding-left:10px;border-left:3px solid var(--line)}
.badge{display:inline-block;min-width:3.2em;padding:0 8px;border-radius:10px;color:#fff;text-align:center;background:#6e7781}
.yes{background:var(--yes)}.no{background:var(--no)}.unrecognised{background:var(--open)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:inherit;margin:4px 0;padding:8px;background:#8881;unicode-bidi:plaintext}
fieldset{border:0;padding:0}label{margin-right:16px}
body:has(#only-no:checked) .photo:not(.has-no),body:has(#only-unrecognised:checked) .photo:not(.has-unrecognised){display:none}
@media(max-width:640px){.photo{grid-template-columns:minmax(0,1fr)}}
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = f"default-src 'none'; img-src file: data:; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"
_HEAD_WORDS: Final = {
    "mode": "模式",
    "profile": "视觉版本",
    "model": "模型",
    "generation_model": "文本模型",
    "question": "问题",
    "scope": "检索范围",
    "topk": "topk",
    "max_search_rounds": "检索轮数",
    "thinking": "思考",
    "version": "服务版本",
    "index_fingerprint": "索引",
    "prompt_sha256": "提示词",
    "criteria_sha256": "判定标准",
}
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FILTERS: Final = (("all", "全部"), ("only-no", "有“否”的"), ("only-unrecognised", "有“未识别”的"))


def render_page(
    runs: Sequence[Run], labels: Sequence[PhotoLabel], pictures: Mapping[str, str], terms: Terms, source: str
) -> bytes:
    """The page. `pictures` are URLs of photos (`picture_urls`), `source` is what the folder is called."""
    title = f"视觉评测：{source}"
    parts = [
        "<!doctype html>",
        '<html lang="zh-CN"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(title)}</h1>",
        *_figures(runs, len(labels), terms),
        "<h2>逐张</h2>",
        _filters(),
        *(_photo(label, runs, pictures.get(label.photo, ""), terms) for label in labels),
        "</body></html>\n",
    ]
    return "\n".join(parts).encode("utf-8", "replace")


def picture_urls(photos: Mapping[str, Path], page: Path, embed_bytes: int) -> dict[str, str]:
    """What the page shows for each photo. Raises OSError."""
    sizes = {name: path.stat().st_size for name, path in photos.items()}
    urls = {}
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        media_type = _media_type(photos[name])
        embed_bytes -= sizes[name]
        if media_type and embed_bytes >= 0:
            data = base64.b64encode(photos[name].read_bytes()).decode()
            urls[name] = f"data:{media_type};base64,{data}"
        else:
            urls[name] = _relative_url(photos[name], page)
    return urls


def _relative_url(path: Path, page: Path) -> str:
    relative = Path(os.path.relpath(path.resolve(), page.resolve().parent)).as_posix()
    # Not to be read as a scheme or a host: every path begins with a dot.
    return f"./{quote(relative, safe='/')}"


def _media_type(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(12)
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    return "image/webp" if head[:4] == b"RIFF" and head[8:] == b"WEBP" else ""


def _text(text: object) -> str:
    """Escaped; without the control characters that HTML has no place for, or that turn the text behind them round."""
    return escape(_CONTROL.sub("", str(text)))


def _figures(runs: Sequence[Run], num_photos: int, terms: Terms) -> Iterable[str]:
    match = terms.match
    yield f"<h2>结果（按{MATCH_WORDS[match]}）</h2>"
    yield _table(vision_tables.score_table(runs, match, num_photos))
    yield (
        '<p class="note">是/(是+否)：答案可以识别且与标注相符为“是”，可以识别而不符为“否”；没有可识别的判断为“未识别”，不进分母；'
        "标注没有给出所比内容为“不计”。“是/计入”把未识别也算在分母中。区间为对照片重抽样的 95% 自助法区间，只有一张或结果全同时没有（—）。</p>"
    )
    if len(runs) > 1:
        yield "<h2>两两比较</h2>"
        yield _table(vision_tables.difference_table(runs, match))
        yield '<p class="note">同一批照片上成对重抽样；区间含 0 即不能说有差别。</p>'
    yield "<h2>各种口径</h2>"
    yield _table(vision_tables.match_table(runs))
    yield "<h2>引用</h2>"
    yield _table(vision_tables.citation_table(runs))
    yield (
        '<p class="note">“字面支持”只比较文字：该条没有写别的证据条文，且与条文有足够多的相同字对。它不懂意思，须抽样人工复核。'
        "“现行有效”只在来源注明效力的条文中计。</p>"
    )
    yield "<h2>开销</h2>"
    yield _table(vision_tables.cost_table(runs))
    yield "<h2>等级与分类的混淆</h2>"
    for run in runs:
        yield f"<h3>{_text(run.name)}</h3>"
        yield _table(vision_tables.confusion_table(run))
        yield _table(vision_tables.pair_table(run))
        yield _table(vision_tables.fault_table(run))
    yield "<h2>运行的设置</h2>"
    yield _table(_settings(runs))


def _settings(runs: Sequence[Run]) -> Table:
    rows = [["运行", *(run.name for run in runs)]]
    for name, words in _HEAD_WORDS.items():
        values = [run.head.get(name) for run in runs]
        if any(value not in (None, "") for value in values):
            rows.append([words, *(_setting(value) for value in values)])
    return rows


def _setting(value: object) -> str:
    return vision_tables.NOTHING if value in (None, "") else str(value)[:40]


def _table(rows: Table) -> str:
    if len(rows) < 2:
        return ""
    head = "".join(f"<th>{_text(cell)}</th>" for cell in rows[0])
    lines = ("".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows[1:])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _filters() -> str:
    choices = (
        f'<label><input type="radio" name="show" id="{name}"{" checked" if name == "all" else ""}> {words}</label>'
        for name, words in _FILTERS
    )
    return f"<fieldset>{''.join(choices)}</fieldset>"


def _photo(label: PhotoLabel, runs: Sequence[Run], url: str, terms: Terms) -> str:
    judged = [(run.name, run.judged[label.photo]) for run in runs if label.photo in run.judged]
    marks = {f"has-{entry.verdicts[terms.match]}" for _, entry in judged}
    expected = [label.level or (SCENE_WORDS[label.scene] if label.scene else ""), label.category]
    hazards = "；".join("|".join(group) for group in label.hazards)
    shown = "，".join(_text(word) for word in (*expected, hazards) if word) or "（没有标注）"
    picture = f'<img src="{_text(url)}" alt="{_text(label.photo)}" loading="lazy">' if url else ""
    answers = (
        "".join(_answer(name, entry, terms) for name, entry in judged) or '<p class="note">还没有问。</p>'
    )
    return (
        f'<section class="{" ".join(["photo", *sorted(marks)])}"><div>{picture}</div><div>'
        f"<h3>{_text(label.photo)}</h3><p>标注：{shown}</p>{answers}</div></section>"
    )


def _answer(name: str, entry: Judged, terms: Terms) -> str:
    verdict = entry.verdicts[terms.match]
    reading = entry.reading
    said = "，".join(filter(None, (reading.shown_level, reading.category))) or reading.fault
    payload = entry.record.get("payload")
    text = str(payload.get("answer") or payload.get("text") or "") if isinstance(payload, dict) else ""
    details = f"<details><summary>答案</summary><pre>{_text(text)}</pre></details>" if text else ""
    citations = "".join(
        f"<li>[{citation.number}] {_text(citation.name) or '没有这条证据'}"
        f"（{'字面支持' if citation.supports else '字面不支持'} {citation.share:.0%}）</li>"
        for citation in entry.citations
    )
    listed = f"<details><summary>引用</summary><ul>{citations}</ul></details>" if citations else ""
    return (
        f'<div class="answer"><span class="badge {verdict}">{VERDICT_WORDS[verdict]}</span> '
        f"<b>{_text(name)}</b> {_text(said)}{details}{listed}</div>"
    )

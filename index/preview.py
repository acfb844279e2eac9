"""What a build reads out of its sources, shown before and after: laws, first articles, what was left and where.

Rule: what is printed is a summary with its counts; the report file holds every note whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from cg_rag.index.corpus import Article
from cg_rag.index.errors import BuildFailed
from cg_rag.index.importers import FileReport, ImportLog, Note, find_source, read_source
from cg_rag.index.importers.input_file import Kind
from cg_rag.index.os_words import reason_of
from cg_rag.index.progress import Progress
from cg_rag.index.source_spec import SourceSpec, check_names

_SHOWN_FILES = 20
_SHOWN_LAWS = 5
_SHOWN_NOTES = 5
_SHOWN_CHARACTERS = 60
# What every law has beside its articles: counted, not listed.
_USUAL = frozenset(
    {
        "标题",
        "题注",
        "章节标题",
        "目录",
        "注释",
        "封面",
        "页码",
        "页眉",
        "页脚",
        "来源",
        "文首信息",
        "网页标题",
        "导航",
    }
)
_WORDS: Mapping[Kind, str] = {"rejected": "不合要求", "unread": "未导入", "warning": "提醒", "left": "留下"}


@dataclass(frozen=True, slots=True)
class Preview:
    """What every file gives, in order, without an index."""

    files: tuple[FileReport, ...]
    num_articles: int
    num_laws: int


def preview_sources(specs: Sequence[SourceSpec], log: ImportLog, progress: Progress) -> Preview:
    """Read all sources as a build does. Raises SourceInvalid; bad rows are told in the log and stop nothing."""
    check_names(specs)
    sources = [find_source(spec.path, spec.columns) for spec in specs]
    num_articles, laws = 0, set()
    for spec, source in zip(specs, sources, strict=True):
        progress.start(f"读取 {spec.corpus}", None)
        for article in read_source(source, log):
            num_articles += 1
            laws.add(article.law_name)
            progress.advance(1)
        progress.finish()
    return Preview(tuple(log.files), num_articles, len(laws))


@contextmanager
def open_report(path: str | None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that writes one line of JSON a call; nothing without a path.

    Raises BuildFailed when the file cannot be written.
    """
    if path is None:
        yield lambda record: None
        return
    try:
        file = Path(path).open("wb")  # noqa: SIM115 - closed below; an error of the body is not one of this file
    except OSError as error:
        raise BuildFailed(f"无法写入报告 {path}：{reason_of(error)}") from error

    def write(record: Mapping[str, Any]) -> None:
        try:
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            raise BuildFailed(f"无法写入报告 {path}：{reason_of(error)}") from error

    try:
        yield write
    finally:
        with suppress(OSError):
            file.close()


def file_json(file: FileReport) -> dict[str, Any]:
    """The summary of a file and its notes, as many as are kept."""
    return {**file.summary(), "notes": [asdict(note) for note in file.notes]}


def preview_json(preview: Preview) -> dict[str, Any]:
    return {
        "num_articles": preview.num_articles,
        "num_laws": preview.num_laws,
        "files": [
            {
                **file_json(file),
                "laws": [_law_json(file, law, count) for law, count in file.laws.items()],
            }
            for file in preview.files
        ],
    }


def _law_json(file: FileReport, law: str, count: int) -> dict[str, Any]:
    samples = [
        {
            "article_number": article.article_number,
            "contents": _shorten(article.contents, 2 * _SHOWN_CHARACTERS),
            **article.extra,
        }
        for article in file.samples.get(law, ())
    ]
    return {"law_name": law, "num_articles": count, "articles": file.numbers.get(law, []), "first": samples}


def preview_text(preview: Preview) -> str:
    blocks = [_file_text(file) for file in preview.files[:_SHOWN_FILES]]
    if len(preview.files) > _SHOWN_FILES:
        blocks.append(f"……另有 {len(preview.files) - _SHOWN_FILES} 个文件，用 --report 文件 查看全部。")
    blocks.append(f"共 {preview.num_articles} 条，{preview.num_laws} 部法规；没有构建索引。")
    return "\n".join(blocks)


def print_files(files: Sequence[FileReport]) -> None:
    """What was left in the files of a build, and where; rejected rows are listed by the build itself."""
    told = [file for file in files if file.counts["left"] or file.counts["warning"]]
    for file in told[:_SHOWN_FILES]:
        print("\n".join([_head(file), *_note_lines(file, ("warning", "left"))]))
    if len(told) > _SHOWN_FILES:
        print(
            f"……另有 {len(told) - _SHOWN_FILES} 个文件有不在条文中的文字或提醒，用 --report 文件 查看全部。"
        )


def _head(file: FileReport) -> str:
    reasons = "、".join(f"{reason} {count}" for reason, count in file.reasons.most_common())
    left = f"；不在条文中的 {file.counts['left']} 处：{reasons}" if reasons else ""
    return f"{file.place}：{file.num_articles} 条{left}"


def _file_text(file: FileReport) -> str:
    if not file.importer:  # never read: its note says it all
        return "\n".join(line.strip() for line in _note_lines(file, tuple(_WORDS)))
    lines = [_head(file)]
    for law, count in islice(file.laws.items(), _SHOWN_LAWS):
        lines.append(f"  《{law}》{count} 条")
        lines += (f"    {_article_text(article)}" for article in file.samples.get(law, ()))
    if len(file.laws) > _SHOWN_LAWS:
        lines.append(f"  ……另有 {len(file.laws) - _SHOWN_LAWS} 部法规")
    return "\n".join([*lines, *_note_lines(file, tuple(_WORDS))])


def _article_text(article: Article) -> str:
    chapter, status = article.extra.get("chapter"), article.extra.get("status")
    head = article.article_number or "（无条号）"
    head += f"（{status}）" if status else ""
    contents = _shorten(article.contents)
    return f"{head}{f'［{chapter}］' if chapter else ''} {contents}"


def _note_lines(file: FileReport, kinds: Sequence[Kind]) -> Iterator[str]:
    """Those to be looked at; what every law has was counted in the head."""
    notes = [note for note in file.notes if note.kind in kinds and note.reason not in _USUAL]
    notes.sort(key=lambda note: kinds.index(note.kind))
    count = sum(file.counts[kind] for kind in _WORDS if kind in kinds)
    count -= sum(file.reasons[reason] for reason in _USUAL) if "left" in kinds else 0
    for note in notes[:_SHOWN_NOTES]:
        yield f"  {_WORDS[note.kind]} {note.place}：{note.reason}{_quote(note)}"
    if count > min(len(notes), _SHOWN_NOTES):
        yield f"  ……另有 {count - min(len(notes), _SHOWN_NOTES)} 处，用 --report 文件 查看全部"


def _quote(note: Note) -> str:
    return f"“{_shorten(note.text)}”" if note.text else ""


def _shorten(text: str, limit: int = _SHOWN_CHARACTERS) -> str:
    # textwrap.shorten breaks between words, of which Chinese has none.
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

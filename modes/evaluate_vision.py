"""`cg-rag eval vision DIR`: labelled photos put to the service, and how often it says what the labels say.

0  measured        1  the service cannot be asked, or a report cannot be written
2  wrong arguments, labels that are none, or nothing to measure

Rule: the service is asked over HTTP and nowhere else, so that what is measured is what callers get. Without --url one is
started in this process on a free port of 127.0.0.1.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson

from cg_rag.core.answer_journal import AnswerJournal, JournalUnusable, read_journal
from cg_rag.core.log import logger
from cg_rag.core.os_words import reason_of
from cg_rag.core.photo_asking import AskingStopped, Photo, Plan, ask_all, question_of
from cg_rag.core.photo_client import base_url
from cg_rag.core.photo_labels import LabelInvalid, PhotoLabel, parse_labels
from cg_rag.core.photo_verdict import MATCH_WORDS, MATCHES, Match, Rules
from cg_rag.core.profile import PROFILES, ProfileName
from cg_rag.core.settings import Settings
from cg_rag.index.durable import replace_file
from cg_rag.index.errors import SourceInvalid, file_fault
from cg_rag.index.importers.input_file import InputFile
from cg_rag.index.importers.lines import read_text
from cg_rag.index.progress import Progress, TerminalProgress
from cg_rag.modes.evaluated_service import open_elsewhere, open_here
from cg_rag.modes.vision_measure import Run, Terms, as_json, judge_record, score
from cg_rag.modes.vision_page import picture_urls, render_page
from cg_rag.modes.vision_rules import load_vision_taxonomy
from cg_rag.modes.vision_tables import as_text
from cg_rag.prompts import vocabulary

# Modes that search, and so take what is said about searching.
SEARCHING: Final = ("agentic", "hybrid")
EVALUATED: Final = ("answer", "observe", *SEARCHING)
LABEL_FILES: Final = ("labels.csv", "labels.jsonl", "标注.csv", "标注.jsonl")
MAX_LABEL_BYTES: Final = 64 * 1024 * 1024
DEFAULT_OUT: Final = "vision-eval"
PAGE: Final = "report.html"
_RUN_NAME: Final = re.compile(r"[\w][\w.-]{0,79}")


class _Unusable(Exception):
    """What ends the command: the sentence for stderr and the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Own:
    """What a service in this process is made of."""

    settings: Callable[[], Settings]
    version: str


def add_eval_vision_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="文件夹", help="照片与标注所在的文件夹")
    add(
        "--labels", metavar="文件", help=f"标注，CSV 或 JSONL；缺省为文件夹中的 {'、'.join(LABEL_FILES)} 之一"
    )
    add(
        "--mode",
        choices=EVALUATED,
        default="answer",
        help="answer 自由生成（缺省）、observe、agentic、hybrid",
    )
    add("--url", metavar="地址", help="正在运行的服务，如 http://127.0.0.1:8864；缺省在本进程中启动一个")
    add("--profile", metavar="版本,…", help="视觉版本，可以有几个，依次运行；与 --url 同用时须为该服务的版本")
    add("--name", metavar="名称", help="这次运行的名称，缺省由模式与视觉版本组成")
    add("--out", metavar="文件夹", default=DEFAULT_OUT, help=f"答案记录与报告的去处，缺省 {DEFAULT_OUT}")
    add("--restart", action="store_true", help="丢弃这次运行已有的答案，从头再问")
    add("--only-report", action="store_true", help="不提问，只用已有的答案重新出报告")
    add("--concurrency", metavar="N", type=int, default=2, help="同时提问几张（1..32，缺省 2）")
    add("--timeout", metavar="秒", type=float, default=600.0, help="一张照片至多等多久（缺省 600）")
    add("--question", metavar="问题", default="", help="观察重点；标注中有问题的以标注为准")
    add("--scope", metavar="范围", help="检索范围，仅 agentic 与 hybrid")
    add("--topk", metavar="N", type=int, help="每轮检索候选数，仅 agentic 与 hybrid")
    add("--rounds", metavar="N", type=int, help="最多检索轮数，仅 agentic 与 hybrid")
    add("--thinking", action="store_true", help="让模型先思考")
    words = "、".join(f"{match} {MATCH_WORDS[match]}" for match in MATCHES)
    add("--match", choices=MATCHES, default="both", help=f"按什么比较：{words}；缺省 both")
    add("--merge-major", action="store_true", help="疑似重大事故隐患与重大事故隐患视为同一等级")
    add("--any-hazard", action="store_true", help="隐患关键词有一组提到即可，缺省须全部提到")
    add("--json", metavar="文件", help="写出全部结果；- 为标准输出，此时不显示表格")
    add("--html", metavar="文件", help=f"网页报告，缺省为 --out 中的 {PAGE}")
    add(
        "--embed-mib",
        metavar="N",
        type=int,
        default=20,
        help="至多把多少 MiB 照片放进网页，其余按路径引用（缺省 20）",
    )


def run_eval_vision(
    args: argparse.Namespace, settings: Callable[[], Settings], version: str, progress: Progress | None = None
) -> int:
    """Ask what was not asked yet, print the tables, write the reports; returns the exit code.

    `settings` are read only when there is something to ask: with --url for the key, without for the whole service, whose
    `version` decides with them which answers may stand in one journal."""
    logger.addHandler(logging.NullHandler())  # what goes wrong is told below, in Chinese
    try:
        return _evaluate(args, _Own(settings, version), progress or TerminalProgress())
    except _Unusable as error:
        print(error, file=sys.stderr)
        return error.code
    except (JournalUnusable, AskingStopped) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"无法读写 {error.filename}：{reason_of(error)}。", file=sys.stderr)
        return 1


def _evaluate(args: argparse.Namespace, own: _Own, progress: Progress) -> int:
    _check_arguments(args)
    terms = _terms(args)
    folder, out = Path(args.folder), Path(args.out)
    labels = _read_labels(args, folder, terms)
    photos = _find_photos(labels, folder, progress)
    out.mkdir(parents=True, exist_ok=True)
    stopped = ""
    if not args.only_report:
        try:
            for profile in _profiles(args):
                asyncio.run(_ask_run(args, profile, own, photos, progress))
        except AskingStopped as error:
            stopped = str(error)
    runs = _read_runs(out, photos, terms)
    if runs:
        _write_reports(args, runs, photos, terms, out)
    if stopped:
        raise AskingStopped(stopped)
    if not any(score(run, terms.match).measure for run in runs):
        words = MATCH_WORDS[terms.match]
        raise _Unusable(f"没有一张照片可按{words}计入：标注没有给出{words}，或没有一个答案可以识别。", 2)
    return 0


def _check_arguments(args: argparse.Namespace) -> None:
    if not 1 <= args.concurrency <= 32:
        raise _Unusable(f"--concurrency 须在 1..32 之间，收到 {args.concurrency}。", 2)
    if not 1 <= args.timeout <= 86400:
        raise _Unusable(f"--timeout 须在 1..86400 之间，收到 {args.timeout}。", 2)
    if not 0 <= args.embed_mib <= 1024:
        raise _Unusable(f"--embed-mib 须在 0..1024 之间，收到 {args.embed_mib}。", 2)
    if args.name is not None and not _RUN_NAME.fullmatch(args.name):
        raise _Unusable("--name 须为 1..80 个字母、汉字、数字、点、横线或下划线，不以点或横线开头。", 2)
    if args.mode == "observe" and args.match in ("level", "both"):
        raise _Unusable("observe 不给出等级，请用 --match category 或 hazards。", 2)
    if args.url is not None and base_url(args.url) is None:
        raise _Unusable("--url 须为 http 或 https 地址，如 http://127.0.0.1:8864。", 2)
    if args.mode not in SEARCHING and (args.scope or args.topk or args.rounds):
        raise _Unusable("--scope、--topk、--rounds 只用于 agentic 与 hybrid。", 2)
    if not Path(args.folder).is_dir():
        raise _Unusable(f"{args.folder} 不是文件夹。", 2)
    for path in (args.json, args.html):
        if path not in (None, "-") and not Path(path).absolute().parent.is_dir():
            raise _Unusable(f"{path} 所在的文件夹不存在。", 2)
    profiles = _profiles(args)
    if unknown := [name for name in profiles if name is not None and name not in PROFILES]:
        raise _Unusable(f"--profile 中的 {'、'.join(unknown)} 不存在，可用：{'、'.join(PROFILES)}。", 2)
    if len(profiles) > 1 and (args.url or args.name):
        raise _Unusable("几个 --profile 不能与 --url 或 --name 同时使用：请逐个版本运行。", 2)


def _profiles(args: argparse.Namespace) -> list[str | None]:
    if args.profile is None:
        return [None]
    return list(dict.fromkeys(name.strip() for name in args.profile.split(",")))


def _terms(args: argparse.Namespace) -> Terms:
    labels = vocabulary.load_json(vocabulary.LABELS)["labels"]
    categories = {entry["label"]: entry["category"] for entry in labels}
    rules = Rules(args.merge_major, args.any_hazard)
    return Terms(load_vision_taxonomy(), categories, rules, cast(Match, args.match))


# --- labels and photos -------------------------------------------------------------------------------------------


def _read_labels(args: argparse.Namespace, folder: Path, terms: Terms) -> list[PhotoLabel]:
    path = Path(args.labels) if args.labels else _find_label_file(folder)
    is_jsonl = path.suffix.lower() in (".jsonl", ".ndjson")
    try:
        text = read_text(InputFile(path, path.name), MAX_LABEL_BYTES, wide=True)
        return parse_labels(text, terms.taxonomy, is_jsonl)
    except SourceInvalid as error:
        raise _Unusable(str(error), 2) from error
    except LabelInvalid as error:
        raise _Unusable(f"标注 {path.name}：{error}", 2) from error
    except OSError as error:
        raise _Unusable(f"标注 {path}：{file_fault(error)}。", 2) from error


def _find_label_file(folder: Path) -> Path:
    found = [folder / name for name in LABEL_FILES if (folder / name).is_file()]
    if len(found) == 1:
        return found[0]
    problem = "没有标注文件" if not found else "有几个标注文件"
    raise _Unusable(f"{folder} 中{problem}（{'、'.join(LABEL_FILES)}），请用 --labels 指明。", 2)


def _find_photos(labels: Sequence[PhotoLabel], folder: Path, progress: Progress) -> list[Photo]:
    missing = [label for label in labels if not (folder / label.photo).is_file()]
    if missing:
        named = "、".join(f"{label.photo}（第 {label.line} 行）" for label in missing[:5])
        raise _Unusable(f"标注中有 {len(missing)} 张照片不在文件夹中：{named}。", 2)
    progress.start("读取照片", len(labels))
    photos = []
    for label in labels:
        path = folder / label.photo
        with path.open("rb") as file:
            photos.append(Photo(label, path, hashlib.file_digest(file, "sha256").hexdigest()))
        progress.advance(1)
    progress.finish()
    return photos


# --- asking ------------------------------------------------------------------------------------------------------


async def _ask_run(
    args: argparse.Namespace,
    profile: str | None,
    own: _Own,
    photos: Sequence[Photo],
    progress: Progress,
) -> None:
    settings = own.settings()
    if args.url:
        opened = open_elsewhere(args.url, settings, args.timeout)
    else:
        opened = open_here(settings, own.version, profile, args.timeout, needs_index=args.mode in SEARCHING)
    async with opened as service:
        vision = service.health.get("vision", {})
        in_force = str(vision.get("profile", ""))
        if args.url and profile and profile != in_force:
            raise _Unusable(f"该服务的视觉版本是 {in_force or '（未说明）'}，不是 {profile}。", 2)
        plan = Plan(f"/vision/{args.mode}", _fields(args), args.question.strip())
        name = args.name or _run_name(args, in_force)
        path = Path(args.out) / f"{name}.jsonl"
        with AnswerJournal(path, _head(args, service.health), args.restart) as journal:
            await ask_all(photos, plan, journal, service.client, args.concurrency, progress, name)


def _run_name(args: argparse.Namespace, profile: str) -> str:
    return (
        f"{args.mode}-{profile}" if profile and (args.mode == "agentic" or args.profile) else str(args.mode)
    )


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    fields = {"scope": args.scope, "topk": args.topk, "max_search_rounds": args.rounds}
    fields["enable_thinking"] = True if args.thinking and args.mode != "observe" else None
    return {name: value for name, value in fields.items() if value is not None}


def _head(args: argparse.Namespace, health: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the answers: a journal of other ones is not gone on with."""
    vision = health.get("vision", {})
    head = {
        "mode": args.mode,
        "question": args.question.strip(),
        "scope": args.scope or "",
        "topk": args.topk,
        "max_search_rounds": args.rounds,
        "thinking": args.thinking,
        "version": health.get("version", ""),
        **{name: vision.get(name, "") for name in ("profile", "model", "prompt_sha256", "criteria_sha256")},
    }
    if args.mode in SEARCHING:
        head["index_fingerprint"] = health.get("index", {}).get("fingerprint", "")
    if args.mode == "hybrid":
        head["generation_model"] = health.get("hybrid_generation", {}).get("model", "")
    return head


# --- reports -----------------------------------------------------------------------------------------------------


def _read_runs(out: Path, photos: Sequence[Photo], terms: Terms) -> list[Run]:
    """Every run in the folder, as far as its answers are to these photos."""
    runs = []
    for path in sorted(out.glob("*.jsonl")):
        try:
            head, records = read_journal(path)
        except JournalUnusable:
            continue
        judged = {}
        for photo in photos:
            key = (photo.label.photo, photo.sha256, question_of(photo.label, str(head.get("question", ""))))
            if key in records:
                judged[photo.label.photo] = judge_record(photo.label, records[key], terms)
        if judged:
            runs.append(Run(path.stem, head, judged))
    return sorted(runs, key=_order)


def _order(run: Run) -> tuple[int, str]:
    """Profiles in the order of their table, other runs behind them."""
    profile = cast(ProfileName, run.head.get("profile"))
    return (list(PROFILES).index(profile) if profile in PROFILES else len(PROFILES), run.name)


def _write_reports(
    args: argparse.Namespace, runs: Sequence[Run], photos: Sequence[Photo], terms: Terms, out: Path
) -> None:
    page = Path(args.html) if args.html else out / PAGE
    pictures = picture_urls({photo.label.photo: photo.path for photo in photos}, page, args.embed_mib << 20)
    labels = [photo.label for photo in photos]
    replace_file(page, render_page(runs, labels, pictures, terms, Path(args.folder).resolve().name))
    if args.json is not None:
        encoded = orjson.dumps(as_json(runs, len(photos), terms), option=orjson.OPT_INDENT_2) + b"\n"
        if args.json == "-":
            sys.stdout.write(encoded.decode())
        else:
            replace_file(Path(args.json), encoded)
    if args.json != "-":
        print(as_text(runs, len(photos), terms))
        print(f"\n网页报告：{page}")

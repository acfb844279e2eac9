"""What an evaluation found: for machines as JSON, for the terminal as tables, for the eye as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cg_rag.index.chart import Line, draw_recall
from cg_rag.index.columns import align, cut
from cg_rag.index.measurement import MISS_RANK, Difference, ScopeResult, StageResult, metrics_within
from cg_rag.index.metrics import LEVEL, RESAMPLES, SEED, Interval, Ranks
from cg_rag.index.questions import JudgedQuestion

STAGE_LABELS: Mapping[str, str] = {"lexical": "字面", "dense": "向量", "fused": "融合", "rerank": "重排"}
_MAX_LISTED = 20
_MAX_TEXT_CELLS = 48
_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Report:
    """`judged` are all questions of the file against the whole index; `name_of` gives the law and the number of a
    row."""

    file: str
    fingerprint: str
    topk: int
    judged: Sequence[JudgedQuestion]
    scopes: Sequence[ScopeResult]
    name_of: Callable[[int], tuple[str, str]]


def as_json(report: Report) -> dict[str, Any]:
    """Everything: means with intervals, latency, the recall curve, every rank and every miss of every stage."""
    return {
        "file": report.file,
        "fingerprint": report.fingerprint,
        "topk": report.topk,
        "bootstrap": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED},
        "num_questions": len(report.judged),
        "not_in_index": [
            {"qid": question.qid, "line": question.line, "relevant": list(question.missing)}
            for question in report.judged
            if question.missing
        ],
        "scopes": [_scope_json(result, report) for result in report.scopes],
    }


def _scope_json(result: ScopeResult, report: Report) -> dict[str, Any]:
    return {
        "scope": result.scope.name,
        "num_docs": result.scope.num_docs,
        "num_questions": len(result.questions),
        "left_out": [{"qid": question.qid, "line": question.line} for question in result.left_out],
        "stages": [
            {
                "stage": stage.stage,
                "metrics": _intervals_json(stage.metrics),
                "latency_ms": _rounded(stage.latency_ms),
                "recall": [round(value, _DECIMALS) for value in stage.recall],
                "misses": _misses_json(result, stage, report),
                "ranks": {
                    question.qid: list(ranks)
                    for question, ranks in zip(result.questions, stage.ranks, strict=True)
                },
            }
            for stage in result.stages
        ],
        "differences": [
            {**asdict(difference), "metrics": _intervals_json(difference.metrics)}
            for difference in result.differences
        ],
    }


def _intervals_json(metrics: Mapping[str, Interval]) -> dict[str, dict[str, float]]:
    return {name: _rounded(asdict(interval)) for name, interval in metrics.items()}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, _DECIMALS) for name, value in values.items()}


def _misses_json(result: ScopeResult, stage: StageResult, report: Report) -> list[dict[str, Any]]:
    """Questions with a relevant article below the first ten; `rank` is null beyond topk."""
    misses = []
    for question, ranks in zip(result.questions, stage.ranks, strict=True):
        missed = _missed(ranks)
        if not missed:
            continue
        articles = []
        for number in missed:
            item = question.items[number]
            law_name, article_number = report.name_of(item.rows[0])
            articles.append(
                {
                    "relevant": item.label,
                    "law_name": law_name,
                    "article_number": article_number,
                    "rank": ranks[number],
                }
            )
        misses.append({"qid": question.qid, "query": question.query, "articles": articles})
    return misses


def _missed(ranks: Ranks) -> list[int]:
    return [number for number, rank in enumerate(ranks) if rank is None or rank > MISS_RANK]


def as_text(report: Report) -> str:
    """Tables for a terminal, in Chinese; long lists are cut."""
    lines = [
        f"题目 {report.file}：{len(report.judged)} 题；索引 {report.fingerprint}；每题检索 {report.topk} 条"
    ]
    lines += _missing_lines(report.judged)
    for result in report.scopes:
        counted = f"{result.scope.num_docs} 条条文，计入 {len(result.questions)} 题"
        lines += ["", f"检索范围 {result.scope.name}：{counted}"]
        if result.left_out:
            names = [question.qid for question in result.left_out]
            lines.append(f"未计入 {len(names)} 题（相关条文均不在范围内）：{_listing(names)}")
        if result.stages:
            lines += ["", *_stage_table(result, report.topk), *_difference_table(result)]
            lines += ["", *_miss_lines(result, report)]
    return "\n".join(map(_printable, lines))


def _printable(line: str) -> str:
    """What a file holds must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in line)


def _missing_lines(judged: Sequence[JudgedQuestion]) -> list[str]:
    missing = [question for question in judged if question.missing]
    if not missing:
        return []
    num_articles = sum(len(question.missing) for question in missing)
    lines = [f"索引中没有的相关条文：{len(missing)} 题共 {num_articles} 条，不计入"]
    for question in missing[:_MAX_LISTED]:
        lines.append(f"  {question.qid}（第 {question.line} 行）：{_listing(question.missing)}")
    return lines + _more(len(missing))


def _stage_table(result: ScopeResult, topk: int) -> list[str]:
    rows = [[f"均值 [{LEVEL:.0%} 区间]", *(_label(stage.stage) for stage in result.stages)]]
    rows += [
        [name, *(_interval(stage.metrics[name]) for stage in result.stages)] for name in metrics_within(topk)
    ]
    rows += [
        [f"耗时 {point}（ms）", *(f"{stage.latency_ms[point]:.2f}" for stage in result.stages)]
        for point in result.stages[0].latency_ms
    ]
    return align(rows)


def _difference_table(result: ScopeResult) -> list[str]:
    if not result.differences:
        return []
    names = ["recall@10", "mrr@10", "ndcg@10"]
    rows = [["配对差异（* 区间不含 0）", *names]]
    rows += [
        [_pair(difference), *(_signed(difference.metrics[name]) for name in names)]
        for difference in result.differences
    ]
    return ["", *align(rows)]


def _miss_lines(result: ScopeResult, report: Report) -> list[str]:
    """Of the last stage, which is what callers get; the others are in the JSON."""
    stage = result.stages[-1]
    misses = _misses_json(result, stage, report)
    if not misses:
        return [f"{_label(stage.stage)}：相关条文都在前 {MISS_RANK} 条中"]
    lines = [f"{_label(stage.stage)}：{len(misses)} 题有相关条文不在前 {MISS_RANK} 条中"]
    for miss in misses[:_MAX_LISTED]:
        lines.append(f"  {miss['qid']} {cut(miss['query'], _MAX_TEXT_CELLS)}")
        for article in miss["articles"]:
            place = f"第 {article['rank']} 位" if article["rank"] else f"不在前 {report.topk} 条中"
            lines.append(f"    {article['law_name']} {article['article_number']}：{place}")
    return lines + _more(len(misses))


def _more(count: int) -> list[str]:
    return [f"  ……另有 {count - _MAX_LISTED} 题，见 --json"] if count > _MAX_LISTED else []


def _listing(names: Sequence[str]) -> str:
    more = f" 等 {len(names)} 个" if len(names) > _MAX_LISTED else ""
    return "、".join(cut(name, _MAX_TEXT_CELLS) for name in names[:_MAX_LISTED]) + more


def _interval(interval: Interval) -> str:
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _signed(interval: Interval) -> str:
    mark = "*" if interval.excludes_zero else ""
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]{mark}"


def _pair(difference: Difference) -> str:
    return f"{_label(difference.stage)} − {_label(difference.baseline)}"


def _label(stage: str) -> str:
    return STAGE_LABELS.get(stage, stage)


def draw(report: Report) -> str:
    """An SVG of recall over k, a line per scope and stage. ValueError when nothing was measured."""
    measured = [result for result in report.scopes if result.stages]
    lines = [
        Line(
            f"{result.scope.name} {_label(stage.stage)}（R@10 {stage.metrics['recall@10'].mean:.3f}）",
            stage.recall,
        )
        for result in measured
        for stage in result.stages
    ]
    counts = "、".join(f"{result.scope.name} {len(result.questions)} 题" for result in measured)
    return draw_recall(f"召回率随返回条数的变化（{counts}）", lines)

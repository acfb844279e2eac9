"""The figures of an evaluation as cells of text, for the terminal and for the page alike. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from cg_rag.core.photo_verdict import MATCH_WORDS, MATCHES, Match
from cg_rag.index.columns import align
from cg_rag.index.metrics import Interval
from cg_rag.modes.vision_measure import (
    Run,
    Terms,
    category_pairs,
    citation_figures,
    cost,
    differences,
    faults,
    level_table,
    score,
)

Table = list[list[str]]

NOTHING = "—"
MAX_PAIRS = 10


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def part(count: int, total: int) -> str:
    """`12/14 85.7%`."""
    return f"{count}/{total} {count / total:.1%}" if total else NOTHING


def interval(value: Interval | None, signed: bool = False) -> str:
    """`48.5% [40.1, 57.0]`; of a difference in points with its sign. One photo, or photos that all came out alike, give
    no interval: resampling cannot show what was not seen."""
    if value is None:
        return NOTHING
    mean, low, high = (100 * number for number in (value.mean, value.low, value.high))
    if low == high:
        return f"{mean:+.1f} [{NOTHING}]" if signed else f"{mean:.1f}% [{NOTHING}]"
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" if signed else f"{mean:.1f}% [{low:.1f}, {high:.1f}]"


def score_table(runs: Sequence[Run], match: Match, num_photos: int) -> Table:
    rows = [["运行", "已问", "是", "否", "未识别", "不计", "是/(是+否) [95% 区间]", "是/计入"]]
    for run in runs:
        entry = score(run, match)
        rows.append(
            [
                run.name,
                f"{len(run.judged)}/{num_photos}",
                *(str(count) for count in entry.counts.values()),
                interval(entry.measure),
                share(entry.of_all),
            ]
        )
    return rows


def match_table(runs: Sequence[Run]) -> Table:
    rows = [["运行", *(f"按{MATCH_WORDS[match]}" for match in MATCHES)]]
    for run in runs:
        scores = [score(run, match) for match in MATCHES]
        rows.append([run.name, *(_counted(entry.counts["yes"], entry.counts["no"]) for entry in scores)])
    return rows


def _counted(yes: int, no: int) -> str:
    return part(yes, yes + no)


def citation_table(runs: Sequence[Run]) -> Table:
    rows = [["运行", "引用数", "存在", "字面支持", "现行有效", "未注明效力"]]
    for run in runs:
        figures = citation_figures(run)
        rows.append(
            [
                run.name,
                str(figures.total),
                part(figures.existing, figures.total),
                part(figures.supporting, figures.existing),
                part(figures.validity["in_force"], figures.stated),
                str(figures.validity[""]),
            ]
        )
    return rows


def cost_table(runs: Sequence[Run]) -> Table:
    rows = [["运行", "有答复", "token/张", "其中输入", "其中输出", "秒/张", "中位数", "95 分位"]]
    for run in runs:
        entry = cost(run)
        tokens = (entry.total_tokens, entry.prompt_tokens, entry.completion_tokens)
        seconds = (entry.mean_seconds, entry.median_seconds, entry.p95_seconds)
        rows.append(
            [
                run.name,
                str(entry.answered),
                *(NOTHING if value is None else f"{value:.0f}" for value in tokens),
                *(NOTHING if value is None else f"{value:.1f}" for value in seconds),
            ]
        )
    return rows


def difference_table(runs: Sequence[Run], match: Match) -> Table:
    rows = [["比较", "共同计入", "相差（百分点）[95% 区间]", "只有前者为是", "只有后者为是"]]
    rows += [
        [
            f"{entry.one} − {entry.other}",
            str(entry.photos),
            interval(entry.interval, signed=True),
            str(entry.only_one),
            str(entry.only_other),
        ]
        for entry in differences(runs, match)
    ]
    return rows


def confusion_table(run: Run) -> Table:
    columns, rows, counts = level_table(run)
    return [
        ["标注＼识别", *columns],
        *([row, *map(str, line)] for row, line in zip(rows, counts, strict=True)),
    ]


def pair_table(run: Run) -> Table:
    pairs = category_pairs(run)[:MAX_PAIRS]
    return [
        ["标注的分类", "识别为", "张数"],
        *([expected, read, str(count)] for expected, read, count in pairs),
    ]


def fault_table(run: Run) -> Table:
    return [["未识别的原因", "张数"], *([reason, str(count)] for reason, count in faults(run)[:MAX_PAIRS])]


def as_text(runs: Sequence[Run], num_photos: int, terms: Terms) -> str:
    """All tables for a terminal."""
    match = terms.match
    blocks = [
        (f"按{MATCH_WORDS[match]}：", score_table(runs, match, num_photos)),
        ("各种口径，是/(是+否)：", match_table(runs)),
        ("引用：", citation_table(runs)),
        ("开销：", cost_table(runs)),
        ("两两比较：", difference_table(runs, match)),
    ]
    for run in runs:
        blocks.append((f"{run.name}，等级：", confusion_table(run)))
        blocks.append((f"{run.name}，分类不符：", pair_table(run)))
        blocks.append((f"{run.name}，未识别：", fault_table(run)))
    lines = [line for title, rows in blocks if len(rows) > 1 for line in ("", title, *align(rows))]
    return "\n".join(map(_printable, lines[1:]))


def _printable(line: str) -> str:
    """What files and models say must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in line)

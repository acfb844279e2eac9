"""`eval retrieval` over a small index with scripted stages: what counts, what is left out, what is written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.corpus import Scope, Selector
from cg_rag.index.errors import SourceInvalid
from cg_rag.index.evaluate import add_eval_arguments, retrieval_stages, run_eval
from cg_rag.index.library import IndexLibrary, Profile
from cg_rag.index.measurement import Stage, measure_scope, metrics_within
from cg_rag.index.metrics import ndcg_at, recall_at, reciprocal_rank
from cg_rag.index.progress import Silence
from cg_rag.index.questions import Item, JudgedQuestion, judge_questions, read_questions
from cg_rag.index.retriever import Retriever
from cg_rag.index.store import IndexReader

LAW = "中华人民共和国样例安全法"
CODE = "GB99001-2025样例脚手架规范"
ARTICLES: list[dict[str, Any]] = [
    {"law_name": CODE, "article_number": "2.0.1", "contents": "脚手架地基应平整坚实，四周设排水沟。", "doc_id": 7},
    {"law_name": CODE, "article_number": "6.0.5", "contents": "脚手架遇大风停用后应检查。", "id": "C2"},
    {"law_name": LAW, "article_number": "第三条", "contents": "动火作业须办理动火证。", "id": "L1", "doc_id": "D1"},
    {"law_name": LAW, "article_number": "第二十八条", "contents": "新进场人员应接受安全教育。", "id": "L2"},
    {"law_name": LAW, "article_number": "第二十八条", "contents": "新进场人员应接受培训，考核合格。", "id": "L3"},
    {"law_name": LAW, "article_number": "第二十九条", "contents": "未经培训不得上岗。", "number_in_list": "X9"},
]  # fmt: skip
CODES = Selector(law=CODE)
LAWS = Selector(law=LAW)


@pytest.fixture(scope="module")
def index_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    source = write(folder / "articles.jsonl", ARTICLES)
    build_index([SourceSpec(source, "samples", ())], folder / "index", None)
    return folder / "index"


@pytest.fixture(scope="module")
def reader(index_dir: Path) -> IndexReader:
    return IndexReader.open(index_dir)


@pytest.fixture
def library(index_dir: Path) -> IndexLibrary:
    profiles = {
        "full": Profile("全库", (Selector(),)),
        "laws": Profile("法律", (LAWS,)),
        "nothing": Profile("空", (Selector(law="没有的法"),)),
    }
    return IndexLibrary(index_dir, profiles)


def write(path: Path, records: Sequence[object]) -> Path:
    lines = [
        json.dumps(record, ensure_ascii=False) if not isinstance(record, str) else record
        for record in records
    ]
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def row_of(reader: IndexReader, contents: str) -> int:
    articles = reader.read_articles(range(reader.num_docs))
    (row,) = [row for row, article in enumerate(articles) if contents in article.contents]
    return row


Judge = Callable[..., JudgedQuestion]


@pytest.fixture
def judge(tmp_path: Path, reader: IndexReader) -> Judge:
    """The one question with these fields, against the index."""

    def judge_one(id_fields: Sequence[str] = ("doc_id", "id"), **fields: Any) -> JudgedQuestion:
        questions = read_questions(write(tmp_path / "q.jsonl", [{"query": "问题", **fields}]))
        return judge_questions(questions, reader, Silence(), id_fields)[0]

    return judge_one


Run = Callable[..., int]


@pytest.fixture
def run(library: IndexLibrary, tmp_path: Path) -> Run:
    """The command on these questions with these options; `stages` are offered instead of the lexical one."""

    def run_command(questions: Sequence[object], *options: str, stages: Sequence[Stage] | None = None) -> int:
        parser = argparse.ArgumentParser()
        add_eval_arguments(parser)
        file = write(tmp_path / "questions.jsonl", questions)
        args = parser.parse_args([str(file), *options])

        def make_stages(retriever: Retriever) -> Sequence[Stage]:
            return retrieval_stages(retriever) if stages is None else stages

        return run_eval(args, library, "full", make_stages, Silence())

    return run_command


def scripted(name: str, answers: dict[str, Sequence[int]]) -> Stage:
    return Stage(name, lambda query, scope, k: list(answers.get(query, ()))[:k])


# --- what a question counts ---


def test_ids_are_the_doc_id_or_else_the_id_and_may_be_numbers(judge: Judge, reader: IndexReader) -> None:
    question = judge(relevant=[7, "C2", "D1"])
    assert [item.label for item in question.items] == ["7", "C2", "D1"]
    assert [item.rows for item in question.items] == [
        (row_of(reader, "排水沟"),), (row_of(reader, "大风"),), (row_of(reader, "动火证"),)
    ]  # fmt: skip
    assert question.missing == ()


def test_the_id_behind_a_doc_id_is_not_looked_at(judge: Judge) -> None:
    assert judge(relevant=["L1"]).missing == ("L1",)


def test_the_field_of_the_ids_can_be_named(judge: Judge, reader: IndexReader) -> None:
    question = judge(["number_in_list"], relevant=["X9", "C2"])
    assert [item.rows for item in question.items] == [(row_of(reader, "不得上岗"),)]
    assert question.missing == ("C2",)


@pytest.mark.parametrize(
    "name",
    [f"{LAW}第二十八条", "《样例安全法》第28条", {"law_name": LAW, "article_number": "第二十八条"}],
)
def test_articles_of_one_name_are_one_item(judge: Judge, reader: IndexReader, name: object) -> None:
    (item,) = judge(relevant_names=[name]).items
    assert item.rows == (row_of(reader, "安全教育"), row_of(reader, "考核合格"))


def test_an_id_counts_its_own_row_only_and_its_name_adds_nothing(judge: Judge, reader: IndexReader) -> None:
    (item,) = judge(relevant=["L3"], relevant_names=[f"{LAW}第二十八条"]).items
    assert (item.label, item.rows) == ("L3", (row_of(reader, "考核合格"),))


def test_a_name_beside_other_ids_is_an_item_of_its_own(judge: Judge) -> None:
    labels = [item.label for item in judge(relevant=["C2"], relevant_names=[f"{LAW}第三条"]).items]
    assert labels == ["C2", f"{LAW}第三条"]


def test_two_ways_to_write_one_article_are_one_item(judge: Judge) -> None:
    names = [f"{LAW}第二十八条", "《样例安全法》第28条", f"{LAW}第二十八条"]
    assert len(judge(relevant=["C2", "C2"], relevant_names=names).items) == 2


def test_what_the_index_does_not_hold_is_named(judge: Judge) -> None:
    question = judge(
        relevant=["没有"], relevant_names=[f"{LAW}第九十九条", "不存在的法第一条", LAW, f"{LAW}第三条"]
    )
    assert question.missing == ("没有", f"{LAW}第九十九条", "不存在的法第一条", LAW)
    assert [item.label for item in question.items] == [f"{LAW}第三条"]


# --- lines ---


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "不是有效的 JSON"),
        ("[]", "须为 JSON 对象"),
        ('"text"', "须为 JSON 对象"),
        ('{"query": 5, "relevant": ["a"]}', "query 须为非空字符串"),
        ('{"query": " ", "relevant": ["a"]}', "query 须为非空字符串"),
        ('{"relevant": ["a"]}', "query 须为非空字符串"),
        ('{"query": "' + "问" * 2001 + '", "relevant": ["a"]}', "query 有 2001 字，超过上限 2000 字"),
        ('{"query": "q"}', "relevant 与 relevant_names 均为空"),
        ('{"query": "q", "relevant": [], "relevant_names": null}', "relevant 与 relevant_names 均为空"),
        ('{"query": "q", "relevant": "a"}', "relevant 须为列表"),
        ('{"query": "q", "relevant": [true]}', "id 须为非空字符串或整数"),
        ('{"query": "q", "relevant": [1.5]}', "id 须为非空字符串或整数"),
        ('{"query": "q", "relevant": [""]}', "id 须为非空字符串或整数"),
        ('{"query": "q", "relevant": [["a"]]}', "id 须为非空字符串或整数"),
        ('{"query": "q", "relevant_names": [1]}', "relevant_names 中的每一项"),
        ('{"query": "q", "relevant_names": [{"law_name": "法"}]}', "relevant_names 中的每一项"),
        (
            '{"query": "q", "relevant_names": [{"law_name": "《》", "article_number": "1"}]}',
            "relevant_names 中",
        ),
        ('{"query": "q", "relevant": ["a"], "qid": {}}', "qid 须为非空字符串或整数"),
        ('{"query": "q", "relevant": ["a"], "qid": "one"}', "与第 1 行重复"),
        ('{"query": "\\ud800", "relevant": ["a"]}', "不是有效的 JSON"),
        ("[" * 5000, "不是有效的 JSON"),
        ('{"query": "q", "x": "' + "x" * (1 << 20) + '"}', "一行超过"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(tmp_path: Path, line: str, reason: str) -> None:
    file = write(tmp_path / "q.jsonl", [{"query": "q", "relevant": ["a"], "qid": "one"}, "", line])
    with pytest.raises(SourceInvalid) as caught:
        read_questions(file)
    assert caught.value.place == f"{file}:3"
    assert reason in str(caught.value)


def test_bytes_that_are_not_utf_8_are_refused_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes('{"query": "脚手架", "relevant": ["a"]}\n'.encode("gb18030"))
    with pytest.raises(SourceInvalid, match=r"q\.jsonl:1：不是有效的 JSON"):
        read_questions(file)


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "q.jsonl"
    file.write_bytes(content)
    try:
        assert read_questions(file)
    except SourceInvalid as error:
        assert str(file) in str(error)


def test_qids_are_optional_and_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    lines = [
        '{"query":" a ","relevant":[1]}',
        "",
        '{"query":"b","relevant":[1],"id":5}',
        '{"query":"c","relevant":[1]}',
    ]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert [(one.qid, one.line, one.query) for one in read_questions(file)] == [
        ("#1", 1, "a"), ("5", 3, "b"), ("#4", 4, "c")
    ]  # fmt: skip


# --- measuring ---

QUESTIONS = [
    JudgedQuestion("one", 1, "甲", (Item("a", (3,)), Item("b", (5, 6))), ()),
    JudgedQuestion("two", 2, "乙", (Item("c", (9,)),), ()),
    JudgedQuestion("gone", 3, "丙", (), ("d",)),
]
GOOD = scripted("good", {"甲": [3, 6, 5], "乙": [1, 9]})
POOR = scripted("poor", {"甲": [0, 1, 2, 5]})
WHOLE = Scope("full", ((0, 10),))


def test_means_are_those_of_the_metrics_over_the_questions_measured() -> None:
    result = measure_scope(WHOLE, QUESTIONS, [POOR, GOOD], 10, Silence())
    poor, good = result.stages
    assert good.ranks == [[1, 2], [2]]
    assert poor.ranks == [[None, 4], [None]]
    assert good.metrics["mrr@10"].mean == pytest.approx((1 + 0.5) / 2)
    assert good.metrics["recall@1"].mean == pytest.approx((0.5 + 0) / 2)
    assert poor.metrics["ndcg@10"].mean == pytest.approx(ndcg_at([None, 4], 10) / 2)
    assert good.recall[:2] == [0.25, 1.0]
    assert [question.qid for question in result.left_out] == ["gone"]


def test_later_stages_are_compared_with_every_earlier_one() -> None:
    last = scripted("last", {"甲": [3], "乙": [9]})
    result = measure_scope(WHOLE, QUESTIONS, [POOR, GOOD, last], 10, Silence())
    assert [(one.stage, one.baseline) for one in result.differences] == [
        ("good", "poor"), ("last", "poor"), ("last", "good")
    ]  # fmt: skip
    assert result.differences[0].metrics["recall@10"].mean == pytest.approx(1 - 0.25)
    assert result.differences[2].metrics["recall@10"].mean == pytest.approx(0.75 - 1)


def test_two_stages_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="share a name"):
        measure_scope(WHOLE, QUESTIONS, [GOOD, GOOD], 10, Silence())


def test_articles_outside_the_scope_are_out_of_the_denominator() -> None:
    result = measure_scope(Scope("part", ((3, 4), (6, 7))), QUESTIONS, [GOOD], 10, Silence())
    assert [question.qid for question in result.questions] == ["one"]
    assert [item.rows for item in result.questions[0].items] == [(3,), (6,)]
    assert [question.qid for question in result.left_out] == ["two", "gone"]


def test_a_stage_that_returns_too_many_rows_is_cut() -> None:
    long = Stage("long", lambda query, scope, k: [*range(100, 100 + k), 9])
    (result,) = measure_scope(WHOLE, QUESTIONS[1:2], [long], 10, Silence()).stages
    assert result.ranks == [[None]]


def test_every_question_is_asked_once_after_one_to_warm_up() -> None:
    asked: list[tuple[str, str, int]] = []

    def search(query: str, scope: str, k: int) -> list[int]:
        asked.append((query, scope, k))
        return []

    (result,) = measure_scope(WHOLE, QUESTIONS, [Stage("silent", search)], 20, Silence()).stages
    assert asked == [("甲", "full", 20), ("甲", "full", 20), ("乙", "full", 20)]
    assert 0 < result.latency_ms["p50"] <= result.latency_ms["p95"] <= result.latency_ms["p99"]
    assert result.metrics["recall@10"].mean == 0


def test_metrics_need_as_many_rows_as_they_look_at() -> None:
    assert "recall@20" not in metrics_within(19)
    assert "recall@20" in metrics_within(20)


# --- the command ---


ASKED = [
    {"qid": "q1", "query": "脚手架大风", "relevant": ["C2"]},
    {"qid": "q2", "query": "新进场人员培训", "relevant_names": [f"{LAW}第二十八条"]},
    {"qid": "q3", "query": "动火证", "relevant": ["D1", "没有的"]},
    {"qid": "q4", "query": "塔吊", "relevant_names": ["没有的法第一条"]},
]


def test_the_lexical_stage_is_measured_as_it_is_served(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ASKED, "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    (scope,) = report["scopes"]
    (stage,) = scope["stages"]
    assert (report["num_questions"], scope["num_questions"], scope["left_out"]) == (
        4, 3, [{"qid": "q4", "line": 4}]
    )  # fmt: skip
    assert report["not_in_index"] == [
        {"qid": "q3", "line": 3, "relevant": ["没有的"]},
        {"qid": "q4", "line": 4, "relevant": ["没有的法第一条"]},
    ]
    assert stage["ranks"] == {"q1": [1], "q2": [1], "q3": [1]}
    assert stage["metrics"]["mrr@10"] == {"mean": 1, "low": 1, "high": 1}
    assert len(stage["recall"]) == 50
    assert set(stage["latency_ms"]) == {"p50", "p95", "p99"}
    assert stage["misses"] == []


def test_json_repeats_its_own_ranks_in_its_means(run: Run, tmp_path: Path, reader: IndexReader) -> None:
    wrong, right = row_of(reader, "排水沟"), row_of(reader, "大风")
    stages = [scripted("dense", {"脚手架大风": [wrong, right]})]
    assert run(ASKED, "--json", str(tmp_path / "out.json"), stages=stages) == 0
    (stage,) = json.loads((tmp_path / "out.json").read_text("utf-8"))["scopes"][0]["stages"]
    ranks = list(stage["ranks"].values())
    assert stage["ranks"] == {"q1": [2], "q2": [None], "q3": [None]}
    for name, metric in (("recall@10", recall_at), ("mrr@10", reciprocal_rank), ("ndcg@10", ndcg_at)):
        expected = sum(metric(one, 10) for one in ranks) / 3
        assert stage["metrics"][name]["mean"] == pytest.approx(expected, abs=1e-6)


def test_misses_name_the_article_and_where_it_was(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    stages = [scripted("fused", {"动火证": [99] * 16})]
    assert run(ASKED, "--json", "-", stages=stages) == 0
    (stage,) = json.loads(capsys.readouterr().out)["scopes"][0]["stages"]
    assert [miss["qid"] for miss in stage["misses"]] == ["q1", "q2", "q3"]
    assert stage["misses"][1] == {
        "qid": "q2",
        "query": "新进场人员培训",
        "articles": [
            {"relevant": f"{LAW}第二十八条", "law_name": LAW, "article_number": "第二十八条", "rank": None}
        ],
    }


def test_the_terminal_shows_tables_differences_and_misses(
    run: Run, reader: IndexReader, capsys: pytest.CaptureFixture[str]
) -> None:
    late = [row for row in range(reader.num_docs) if row != row_of(reader, "动火证")]
    answers = {"动火证": [*late, *range(50, 60), row_of(reader, "动火证")]}
    assert run(ASKED, stages=[scripted("lexical", {}), scripted("fused", answers)]) == 0
    out = capsys.readouterr().out
    assert "检索范围 full：6 条条文，计入 3 题" in out
    assert "索引中没有的相关条文：2 题共 2 条，不计入" in out
    assert "未计入 1 题（相关条文均不在范围内）：q4" in out
    assert "融合 − 字面" in out
    assert "第 16 位" in out
    assert "不在前 50 条中" in out


def test_a_bad_line_ends_with_2_and_its_place(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "{"]) == 2
    assert "questions.jsonl:5：不是有效的 JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topk", "9"], "--topk 须在 10..200 之间，收到 9。"),
        (["--topk", "201"], "--topk 须在"),
        (["--scope", "有无"], "检索范围 有无 不存在"),
        (["--stages", "dense"], "--stages 中的阶段 dense 不可用，可用：lexical。"),
        (["--stages", ","], "不可用，可用：lexical。"),
        (["--json", "absent/folder/out.json"], "所在的文件夹不存在"),
        (["--chart", "-"], "--chart 须为文件。"),
    ],
)
def test_wrong_arguments_end_with_2(
    run: Run, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ASKED, *options) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_file_that_is_not_there_ends_with_2(
    library: IndexLibrary, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_eval_arguments(parser)
    assert run_eval(parser.parse_args(["/absent.jsonl"]), library, "full") == 2
    assert "/absent.jsonl：文件不存在" in capsys.readouterr().err


def test_a_scope_without_articles_ends_with_1(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ASKED, "--scope", "nothing") == 1
    assert "检索范围 nothing 的索引尚不可用" in capsys.readouterr().err


def test_no_index_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_eval_arguments(parser)
    file = write(tmp_path / "q.jsonl", ASKED)
    library = IndexLibrary(tmp_path / "empty", {"full": Profile("全库", (Selector(),))})
    assert run_eval(parser.parse_args([str(file)]), library, "full") == 1
    assert "请先运行 cg-rag index build" in capsys.readouterr().err


def test_questions_of_which_nothing_is_in_the_index_end_with_2_and_are_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ASKED[3:], "--chart", str(tmp_path / "out.svg")) == 2
    captured = capsys.readouterr()
    assert "q4（第 1 行）：没有的法第一条" in captured.out
    assert "没有一道题的相关条文在检索范围内" in captured.err
    assert not (tmp_path / "out.svg").exists()


def test_stages_are_chosen_and_kept_in_the_order_offered(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    offered = [scripted(name, {}) for name in ("lexical", "dense", "fused")]
    assert run(ASKED, "--json", "-", "--stages", "fused, lexical", stages=offered) == 0
    (scope,) = json.loads(capsys.readouterr().out)["scopes"]
    assert [stage["stage"] for stage in scope["stages"]] == ["lexical", "fused"]
    assert [(one["stage"], one["baseline"]) for one in scope["differences"]] == [("fused", "lexical")]


def test_the_picture_has_a_line_for_each_stage_of_each_scope(run: Run, tmp_path: Path) -> None:
    offered = [scripted(name, {}) for name in ("lexical", "dense")]
    out = tmp_path / "recall.svg"
    assert run(ASKED, "--scope", "full", "--scope", "laws", "--chart", str(out), stages=offered) == 0
    svg = out.read_text("utf-8")
    assert svg.count("<polyline") == 4
    assert "laws 向量（R@10 0.000）" in svg


def test_the_table_is_shown_also_when_a_file_cannot_be_written(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ASKED, "--json", str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert "mrr@10" in captured.out
    assert f"无法写入 {tmp_path}" in captured.err


def test_text_of_the_file_does_not_steer_the_terminal(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [{"qid": "\x1b[2J", "query": "\x1b]0;x\x07动火", "relevant": ["D1"]}],
            stages=[scripted("dense", {})],
        )
        == 0
    )
    assert "\x1b" not in capsys.readouterr().out


def test_two_runs_give_the_same_numbers(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for _ in range(2):
        assert run(ASKED, "--json", "-") == 0
        report = json.loads(capsys.readouterr().out)
        report["scopes"][0]["stages"][0].pop("latency_ms")
        reports.append(report)
    assert reports[0] == reports[1]

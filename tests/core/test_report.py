"""Hazard reports: what models write, what is published."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cg_rag.core.claims import References
from cg_rag.core.evidence import Evidence
from cg_rag.core.marks import Style
from cg_rag.core.report import hazard_categories, requires_report, unfounded_warnings
from cg_rag.core.report_check import check, correction
from cg_rag.core.report_format import format_free_form, format_sectioned
from cg_rag.core.report_parse import is_report, parse
from cg_rag.core.report_publish import Reading, read_free_form, read_sectioned, release_line
from cg_rag.core.taxonomy import LEVELS
from cg_rag.core.vision_request import DEFAULT_QUESTION
from cg_rag.modes.vision_rules import load_rules, make_references
from tests.core.report_corpus import HAZARDS, SAFE, Case

RULES = load_rules(None)
TAXONOMY = RULES.taxonomy
NO_EVIDENCE = make_references([], RULES)
CATEGORIES = (*TAXONOMY.categories, TAXONOMY.none)

# The contract of what is published, written down a second time and without the parser.
_ITEMS = r"(?:1\. .+)(?:\n\d+\. .+)*"
_RATED = re.compile(
    rf"隐患等级：(?P<level>{'|'.join(LEVELS)})\n\n隐患分类：(?P<category>{'|'.join(CATEGORIES)})\n\n"
    rf"隐患描述：\n(?P<description>{_ITEMS})\n\n整改措施和建议：\n(?P<measures>{_ITEMS})"
)
_SCENE = re.compile(
    rf"场景：(?:非施工现场|画面不足以判定)(?:\n\n隐患描述：\n{_ITEMS})?(?:\n\n整改措施和建议：\n{_ITEMS})?"
)
_SECTIONED = re.compile(
    rf"(?P<marks>###?) 隐患等级\n(?P<level>{'|'.join(LEVELS)})\n\n(?P=marks) 隐患分类\n(?P<category>{'|'.join(CATEGORIES)})\n\n"
    rf"(?P=marks) 隐患描述\n{_ITEMS}\n\n(?:(?P=marks) 隐患判定依据\n(?P<basis>{_ITEMS})\n\n)?(?P=marks) 整改措施及建议\n{_ITEMS}"
)
_SECTIONED_SCENE = re.compile(rf"场景：(?:非施工现场|画面不足以判定)(?:\n\n{_ITEMS})?")
_MARK = re.compile(r"cite\W{0,3}\d|〔\d{1,3}〕|\[\d{1,3}\]|【\d{1,3}】", re.IGNORECASE)


def blocks_of(text: str, num_images: int) -> list[str]:
    if num_images == 1:
        return [text]
    parts = re.split(r"(?:\A|\n\n)## 图(\d+)\n\n", text)
    assert parts[0] == ""
    assert parts[1::2] == [str(number) for number in range(1, num_images + 1)]
    return parts[2::2]


def hold_to_contract(text: str, num_images: int) -> None:
    for block in blocks_of(text, num_images):
        rated = _RATED.fullmatch(block)
        assert rated or _SCENE.fullmatch(block), block
        if rated:
            assert (rated["level"] == "无隐患") == (rated["category"] == "无")
            for part in ("description", "measures"):
                numbers = [int(line.split(".")[0]) for line in rated[part].split("\n")]
                assert numbers == list(range(1, len(numbers) + 1))
    assert not _MARK.search(text), text


def said(reading: Reading) -> list[object] | None:
    if reading.faults:
        return None
    return [
        ("scene", block.scene)
        if block.scene
        else (
            block.level,
            block.category,
            max(1, len(block.description.items)),
            max(1, len(block.measures.items)),
        )
        for block in reading.report.blocks
    ]


def test_the_safe_suite_is_as_large_as_the_hazard_suite() -> None:
    assert len(HAZARDS) >= 60
    assert len(SAFE) >= len(HAZARDS)


@pytest.mark.parametrize("case", HAZARDS.values(), ids=HAZARDS)
def test_hazard_answers_say_what_they_say(case: Case) -> None:
    hold_case(case)


@pytest.mark.parametrize("case", SAFE.values(), ids=SAFE)
def test_answers_on_safe_and_unfit_pictures_say_what_they_say(case: Case) -> None:
    hold_case(case)


def hold_case(case: Case) -> None:
    text, num_images, expected = case
    reading = read_free_form(text, num_images, RULES)
    assert said(reading) == expected, (reading.faults, reading.text)
    if expected is None:
        assert reading.text == ""
        assert all(re.search("[\u4e00-\u9fff]", fault) for fault in reading.faults)
        return
    hold_to_contract(reading.text, num_images)
    again = read_free_form(reading.text, num_images, RULES)
    assert again.text == reading.text
    assert not again.warnings


def test_the_example_of_the_documentation_is_published_as_it_is() -> None:
    text = HAZARDS["as asked"][0]
    assert read_free_form(text, 1, RULES).text == text


def test_a_sectioned_report_is_published_as_it_is() -> None:
    reading = read_sectioned(SECTIONED, 1, RULES, "cite", make_evidence())
    assert reading.text == SECTIONED
    assert reading.citations == (2,)
    assert (reading.faults, reading.repairs, reading.warnings) == ((), (), ())


SECTIONED = (
    "## 隐患等级\n重大事故隐患\n\n## 隐患分类\n扣件式钢管脚手架\n\n## 隐患描述\n1. 脚手架立杆底部浸泡在积水中。\n\n"
    "## 隐患判定依据\n1. 《房屋市政工程生产安全重大事故隐患判定标准（2024版）》第七条第一款：脚手架工程基础承载力和变形不满足设计要求。\n"
    "2. 《施工脚手架通用规范》（GB 55023-2022）地基应坚实、平整，不应有积水 [cite^2]。\n\n"
    "## 整改措施及建议\n1. 立即排水并复核地基承载力。"
)


def make_evidence() -> References:
    articles = [
        ("中华人民共和国安全生产法", "第二十八条"),
        ("GB55023-2022施工脚手架通用规范", "2.0.1"),
        ("JGJ80-2016建筑施工高处作业安全技术规范", "4.1.1"),
    ]
    return make_references(
        [Evidence(n, law, number, "条文内容", {}) for n, (law, number) in enumerate(articles, start=1)], RULES
    )


def test_what_rules_can_repair_in_a_sectioned_report_is_told_and_repaired() -> None:
    broken = SECTIONED.replace("[cite^2]", "[cite^2][cite^9]").replace(
        "\n\n## 整改", "\n3. 《建筑法》第三条规定 [cite^1]。\n\n## 整改"
    )
    reading = read_sectioned(broken, 1, RULES, "cite", make_evidence())
    assert reading.text == SECTIONED
    assert reading.repairs == (
        "引用编号 9 不存在，证据编号为 1 到 3。",
        "“《建筑法》第三条”不在检索到的条文和判定标准条款之中，须改为检索到的条文，或删去。",
    )


def test_sections_out_of_order_are_put_in_order() -> None:
    parts = SECTIONED.split("\n\n")
    shuffled = "\n\n".join([parts[4], parts[2], parts[0], parts[3], parts[1]])
    assert read_sectioned(shuffled, 1, RULES, "cite", make_evidence()).text == SECTIONED


def test_a_basis_is_needed_for_a_hazard_and_not_without_one() -> None:
    bare = "## 隐患等级\n{}\n\n## 隐患分类\n{}\n\n## 隐患描述\n1. 甲。\n\n## 整改措施及建议\n1. 乙。"
    missing = read_sectioned(bare.format("一般隐患", "施工用电"), 1, RULES, "cite", NO_EVIDENCE)
    assert missing.faults == ("缺少“隐患判定依据”或其下没有内容，须逐条编号写出。",)
    allowed = read_sectioned(
        bare.format("一般隐患", "施工用电"), 1, RULES, "cite", NO_EVIDENCE, needs_basis=False
    )
    basis = "## 隐患判定依据\n未检索到可引用的条文。"
    assert allowed.text == bare.format("一般隐患", "施工用电").replace("## 整改", f"{basis}\n\n## 整改")
    again = read_sectioned(allowed.text, 1, RULES, "cite", NO_EVIDENCE, needs_basis=False)
    assert (again.text, again.report.blocks[0].basis.items) == (allowed.text, ("未检索到可引用的条文。",))
    safe = bare.format("无隐患", "无")
    assert read_sectioned(safe, 1, RULES, "cite", NO_EVIDENCE, needs_basis=False).text == safe
    assert not read_sectioned(bare.format("无隐患", "无"), 1, RULES, "cite", NO_EVIDENCE).faults


def test_several_pictures_have_sections_one_level_down() -> None:
    text = f"## 图1\n\n{SECTIONED.replace('## ', '### ')}\n\n## 图2\n\n场景：非施工现场\n\n1. 画面为办公室。"
    reading = read_sectioned(text, 2, RULES, "cite", make_evidence())
    assert reading.text == text
    assert hazard_categories(reading.report) == ["扣件式钢管脚手架", None]


def test_hybrid_marks_come_out_in_their_own_form() -> None:
    reading = read_sectioned(SECTIONED, 1, RULES, "numbered", make_evidence())
    assert reading.text == SECTIONED.replace("[cite^2]", "〔2〕")


def test_verbatim_descriptions_keep_every_character() -> None:
    text = "隐患等级：一般隐患\n隐患分类：施工用电\n隐患描述：\n（1）**箱门**未锁。\n  - 锁扣损坏\n整改措施和建议：\n1. 上锁。"
    shown = format_sectioned(parse(text, TAXONOMY), 1, verbatim=True)
    assert "## 隐患描述\n（1）**箱门**未锁。\n  - 锁扣损坏\n\n## " in shown


def test_major_without_a_clause_becomes_suspected_and_a_warning_says_so() -> None:
    reading = read_free_form(HAZARDS["major without a clause"][0], 1, RULES)
    assert reading.is_downgraded
    assert reading.warnings == (
        "隐患等级写为“重大事故隐患”，但没有指明《房屋市政工程生产安全重大事故隐患判定标准（2024版）》的条款，已改为“疑似重大事故隐患”。",
    )


def test_the_clause_of_a_sectioned_report_stands_in_its_basis() -> None:
    moved = SECTIONED.replace("第七条第一款", "").replace(
        "积水中。", "积水中，符合《重大事故隐患判定标准》第七条第一款。"
    )
    reading = read_sectioned(moved, 1, RULES, "cite", make_evidence())
    assert reading.is_downgraded
    kept = read_sectioned(moved, 1, RULES, "cite", make_evidence(), may_downgrade=False)
    assert "## 隐患等级\n重大事故隐患" in kept.text
    assert unfounded_warnings(kept.report, "sectioned", RULES.find_clause, RULES.criteria.name)


def test_names_of_laws_in_a_free_form_report_are_cut_where_the_mode_asks_for_it() -> None:
    text = "隐患等级：一般隐患\n\n隐患分类：施工用电\n\n隐患描述：\n1. 箱门未锁，违反《施工现场临时用电安全技术规范》（JGJ46-2005）第8.3.1条的规定。\n\n整改措施和建议：\n1. 按照JGJ46-2005的要求，上锁。"
    assert read_free_form(text, 1, RULES, NO_EVIDENCE).text == (
        "隐患等级：一般隐患\n\n隐患分类：施工用电\n\n隐患描述：\n1. 箱门未锁。\n\n整改措施和建议：\n1. 上锁。"
    )
    assert read_free_form(text, 1, RULES).text == text


def test_faults_name_the_picture_what_came_and_what_is_wanted() -> None:
    text = "## 图1\n隐患等级：较大\n隐患分类：脚手架\n## 图2\n隐患等级：无隐患\n隐患分类：高处作业"
    faults = check(parse(text, TAXONOMY), 2, "free_form", TAXONOMY)
    assert faults[0] == (
        "图1：“隐患等级：”须写且只写以下之一：无隐患、一般隐患、疑似重大事故隐患、重大事故隐患，收到“较大”。"
    )
    assert faults[1].startswith("图1：“隐患分类：”须写且只写以下之一：安全管理、")
    assert faults[1].endswith("收到“脚手架”。")
    assert "图2：“无隐患”与分类“无”须同时使用" in faults[-1]


def test_the_correction_lists_the_faults_and_wants_no_level() -> None:
    text = correction(["缺少“隐患描述”。", "缺少“整改措施和建议”。"])
    assert "\n1. 缺少“隐患描述”。\n2. 缺少“整改措施和建议”。\n" in text
    assert not any(level in text for level in LEVELS)


def test_categories_are_null_where_a_picture_shows_no_site() -> None:
    text, num_images, _ = SAFE["three kinds"]
    assert hazard_categories(read_free_form(text, num_images, RULES).report) == ["无", None, None]


@pytest.mark.parametrize(
    ("question", "required"),
    [
        ("", True),
        (DEFAULT_QUESTION, True),
        ("有没有违规的地方", True),
        ("这里是否符合规范", True),
        ("检查一下脚手架", True),
        ("图里有几个人？", False),
        ("这是什么设备", False),
        ("今天天气怎么样", False),
    ],
)
def test_a_question_with_a_hazard_word_asks_for_a_report(question: str, required: bool) -> None:
    assert requires_report(question) is required


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("图中有三个人。", False),
        ("场景：非施工现场", False),
        ("隐患等级：一般隐患", True),
        ("**隐患等级**：无隐患\n隐患分类：无", True),
        ("这里的隐患等级不高，注意防护。", False),
    ],
)
def test_a_text_with_a_level_line_is_a_report(text: str, expected: bool) -> None:
    assert is_report(text, TAXONOMY) is expected


@pytest.mark.parametrize(
    ("line", "released"),
    [
        ("## 隐患等级", "## 隐患等级"),
        ("1. 积水 [cite ^2]。", "1. 积水 [cite^2]。"),
        ("1. 积水 [cite^7]。", None),
        ("1. 《安全生产法》第二十八条 [cite^1]。", "1. 《安全生产法》第二十八条 [cite^1]。"),
        ("1. 《安全生产法》第二十九条 [cite^1]。", None),
        ("", ""),
    ],
)
def test_a_line_goes_out_when_its_marks_and_articles_are_known(line: str, released: str | None) -> None:
    assert release_line(line, "cite", make_evidence()) == released


_WORDS = st.sampled_from(
    [
        "隐患等级",
        "隐患分类",
        "隐患描述",
        "整改措施和建议",
        "隐患判定依据",
        "场景",
        "：",
        ":",
        "\n",
        "\n\n",
        " ",
        "# ",
        "## ",
        "**",
        "1. ",
        "2. ",
        "（1）",
        "①",
        "- ",
        "图1",
        "图2",
        "## 图1\n",
        "## 图2\n",
        "```",
        "|",
        "> ",
        "一、",
        "。",
        "；",
        "，",
        "[cite^1]",
        "[ci",
        "te^2]",
        "〔1〕",
        "【1】",
        "[1]",
        "《安全生产法》第二十八条",
        "《建筑法》第三条",
        "第七条",
        "6.0.5",
        "\u200b",
        "箱门未锁",
        "设护栏",
        "非施工现场",
        "画面不足以判定",
        "《重大事故隐患判定标准》第七条第一款",
        "按照",
        "的规定",
        "较大隐患",
        "脚手架",
        "无",
        "没有",
        "*",
        "_",
        "`",
        "<b>",
        "<br>",
        "备注：",
        "整改措施",
        "建议",
        *LEVELS,
        *CATEGORIES[:4],
        "无",
    ]
)
_TEXTS = st.lists(_WORDS, max_size=40).map("".join)
_LINES = st.lists(
    st.one_of(
        st.sampled_from([f"隐患等级：{level}" for level in LEVELS]),
        st.sampled_from(
            [
                "隐患分类：施工用电",
                "隐患分类：无",
                "隐患描述：",
                "整改措施和建议：",
                "隐患判定依据：",
                "## 图1",
                "## 图2",
            ]
        ),
        st.sampled_from(
            [
                "场景：非施工现场",
                "1. 箱门未锁。",
                "（1）箱门未锁。1. 甲。2. 乙。",
                "- **隐患等级**：一般隐患",
                "2. 设护栏 [ci**te^1]",
            ]
        ),
        _TEXTS,
    ),
    max_size=14,
).map("\n".join)


# Mostly right reports with anything inside: most of these are published.
_ITEM = st.lists(_WORDS, min_size=1, max_size=8).map("".join)
_PART = st.lists(_ITEM, min_size=1, max_size=4).map("\n".join)


@st.composite
def _reports(draw: st.DrawFn) -> tuple[str, int]:
    num_images = draw(st.integers(1, 2))
    texts = []
    for number in range(1, num_images + 1):
        level = draw(st.sampled_from(LEVELS))
        category = "无" if level == "无隐患" else draw(st.sampled_from(TAXONOMY.categories))
        head = draw(st.sampled_from(["{}：", "## {}\n", "**{}**：", "【{}】：\n"]))
        parts = [("隐患等级", level), ("隐患分类", category), ("隐患描述", f"1. 甲{draw(_PART)}")]
        parts.append(("隐患判定依据", f"1. 乙\n{draw(_PART)}"))
        parts.append(("整改措施和建议", f"1. 丙{draw(_PART)}"))
        title = [f"## 图{number}"] if num_images > 1 else []
        texts.append("\n".join([*title, *(head.format(name) + value for name, value in parts)]))
    return "\n\n".join(texts), num_images


@st.composite
def _changed(draw: st.DrawFn) -> tuple[str, int]:
    """A text of the corpora with a few pieces put in or taken out."""
    known = [(text, num_images) for text, num_images, said in (HAZARDS | SAFE).values() if said]
    text, num_images = draw(st.sampled_from([*known, (SECTIONED, 1)]))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(_WORDS) + text[place + draw(st.integers(0, 2)) :]
    return text, num_images


ANY_WRITTEN = st.one_of(_reports(), _changed(), st.tuples(st.one_of(_TEXTS, _LINES), st.integers(1, 3)))


@settings(max_examples=400)
@given(ANY_WRITTEN)
def test_whatever_is_written_is_published_in_form_or_faulted(written: tuple[str, int]) -> None:
    text, num_images = written
    for references in (None, NO_EVIDENCE):
        reading = read_free_form(text, num_images, RULES, references)
        assert bool(reading.faults) != bool(reading.text)
        if reading.text:
            hold_to_contract(reading.text, num_images)
            again = read_free_form(reading.text, num_images, RULES, references)
            assert again.text == reading.text


@settings(max_examples=400)
@given(ANY_WRITTEN, st.sampled_from(["cite", "numbered"]))
def test_whatever_is_written_cites_only_what_is_there(written: tuple[str, int], style: Style) -> None:
    text, num_images = written
    references = make_evidence()
    reading = read_sectioned(text, num_images, RULES, style, references)
    assert bool(reading.faults) != bool(reading.text)
    if reading.text:
        for block in blocks_of(reading.text, num_images):
            assert _SECTIONED.fullmatch(block) or _SECTIONED_SCENE.fullmatch(block), block
        assert set(reading.citations) <= {1, 2, 3}
        assert not [claim for claim in references.check(reading.text) if claim.verdict == "unsupported"]
        again = read_sectioned(reading.text, num_images, RULES, style, references)
        assert again.text == reading.text


@settings(max_examples=300)
@given(ANY_WRITTEN)
def test_a_formatted_report_is_read_back_the_same(written: tuple[str, int]) -> None:
    text, num_images = written
    report = parse(text, TAXONOMY)
    for shape, write in (("free_form", format_free_form), ("sectioned", format_sectioned)):
        if check(report, num_images, shape, TAXONOMY, needs_basis=False):
            continue
        shown = write(report, num_images)
        assert write(parse(shown, TAXONOMY), num_images) == shown


def test_the_generated_reports_are_mostly_published() -> None:
    published = []

    @settings(max_examples=60, database=None, derandomize=True)
    @given(_reports())
    def count(written: tuple[str, int]) -> None:
        published.append(bool(read_free_form(*written, RULES).text))

    count()
    assert sum(published) > len(published) // 4


@settings(max_examples=100)
@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    read_free_form(text, 1, RULES)

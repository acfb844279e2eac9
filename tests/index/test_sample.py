"""The bundled sample: what it promises about itself, and that site questions find its articles."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cg_rag.index.build import SourceSpec, build_index
from cg_rag.index.corpus import Selector, resolve_scope
from cg_rag.index.ranking import Ranker
from cg_rag.index.retriever import Retriever
from cg_rag.index.store import IndexReader

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "index" / "sample"
FILES = ("handbook.jsonl", "standards.jsonl")
FIELDS = {
    "law_name",
    "article_number",
    "contents",
    "chapter",
    "status",
    "source",
    "hazard_category",
    "doc_id",
    "tags",
}

# What a worker or foreman would type -> every article that must be among the first five.
SITE_QUESTIONS: dict[str, tuple[str, ...]] = {
    "脚手架底下泡水了还能上人吗，积水怎么办": ("sample-h-023",),
    "配电箱离开关箱最远能有多远": ("sample-h-065",),
    "楼层临边防护栏杆要做多高": ("sample-h-058",),
    "电焊工没有证，能不能先动火": ("sample-h-021",),
    "塔吊限位器坏了，今天还能用吗": ("sample-h-077",),
    "挖出来的土堆在基坑边上要离多远": ("sample-h-050",),
    "吊篮里一次能站几个人": ("sample-h-046",),
    "灭火器隔多久要检查一次": ("sample-h-022",),
    "新来的工人没培训，可以先干活吗": ("sample-h-003",),
    "安全帽被砸过一次还能接着戴吗": ("sample-h-011",),
    "架子工能不能把碍事的连墙件拆了": ("sample-h-025",),
    "一个闸刀能不能接两台机器": ("sample-h-064",),
    "漏电保护器老跳闸，直接合上行不行": ("sample-h-066",),
    "电线拖在水坑里要紧吗，接头破皮了": ("sample-h-067",),
    "物料提升机能坐人吗": ("sample-h-071",),
    "人货电梯的防坠安全器几年报废": ("sample-h-074",),
    "氧气瓶跟乙炔瓶要隔开几米": ("sample-h-086",),
    "几级风塔吊必须停": ("sample-h-079",),
    "爬架往上提的时候架子上可以留人吗": ("sample-h-043",),
    "钢丝绳断了几根丝要不要报废": ("sample-h-083",),
    "汽车吊支腿能压在井盖上吗": ("sample-h-082",),
    "楼板底模什么时候可以拆，强度要多少": ("sample-h-056",),
    "打混凝土的时候支模架有响声怎么处理": ("sample-h-055",),
    "电梯井口的门要多高，井里网怎么挂": ("sample-h-060",),
    "电动车能推到宿舍充电吗": ("sample-s-067", "sample-h-018"),
    "地下室的灯用多少伏": ("sample-h-070",),
    "离高压线太近不够距离怎么办": ("sample-s-022",),
    "抽水泵开着的时候人能不能下水": ("sample-s-026",),
    "高温天有人中暑了怎么处理，热到几度就不用在外面干了": ("sample-s-036",),
    "两台塔吊会不会碰到，中间要留多少": ("sample-s-042",),
    "盘扣架的插销怎么算打紧": ("sample-h-034",),
    "挑出去的工字钢，留在楼板里面那截要多长": ("sample-h-040",),
    "门架的交叉支撑挡路，能拆一边吗": ("sample-h-028",),
    "碗扣松了用手能拧动怎么办": ("sample-h-031",),
    "满堂架上面一次能堆多少料": ("sample-h-038",),
    "安全带用了三年要不要换": ("sample-s-040",),
    "发现要塌了，班组能自己先停工跑出来吗": ("sample-h-090",),
    "磨光机护罩拆了用可以吗": ("sample-h-089",),
    "消防车道上临时堆点料行吗": ("sample-s-063",),
    "两台吊车一起抬一根梁，每台最多吊多重": ("sample-s-050",),
    "喝了酒的人能不能上班": ("sample-h-007",),
    "脚手架多久检查一次，刮大风以后呢": ("sample-s-014",),
    "吊东西的时候下面能不能站人": ("sample-s-049",),
    "基坑的变形多久监测一次": ("sample-h-053",),
    "支模架还没验收，钢筋工能上去绑吗": ("sample-h-057",),
}

EXACT_CITATIONS: dict[str, str] = {
    "《示例建工集团施工现场安全管理手册（样例）》第七条之一": "sample-h-009",
    "《示例建工集团施工现场安全管理手册（样例）》第58条": "sample-h-065",
    "《高处作业防护要点（样例）》6.0.5(1)": "sample-s-039",
    "《Q/YANGLI102-2025施工现场临时用电要点（样例）》3.0.1（2）": "sample-s-020",
    "《Q/YANGLI101-2025施工脚手架安全技术要点（样例）》附录A.0.1": "sample-s-017",
    "《基坑与模板支架要点（样例）》附录Ａ": "sample-s-061",
    "Q/YANGLI 103—2025 6.0.5(1)": "sample-s-039",
    "Q/YANGLI102-2025 第3.0.2条": "sample-s-021",
}


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLE / name).read_text(encoding="utf-8").splitlines()]


HANDBOOK_ARTICLES = load("handbook.jsonl")
STANDARD_ARTICLES = load("standards.jsonl")
ARTICLES = HANDBOOK_ARTICLES + STANDARD_ARTICLES
CATEGORIES = [
    entry["name"]
    for entry in json.loads((ROOT / "prompts" / "taxonomy.json").read_text(encoding="utf-8"))["categories"]
]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    index_dir = tmp_path_factory.mktemp("sample-index")
    specs = [SourceSpec(SAMPLE / name, f"sample-{name.split('.')[0]}", ("sample",)) for name in FILES]
    build_index(specs, index_dir, None)
    reader = IndexReader.open(index_dir)
    scopes = {"full": resolve_scope("full", [Selector()], reader.runs)}
    yield Retriever(reader, scopes, Ranker(reader.lexical, None))
    reader.close()


def found_ids(retriever: Retriever, query: str, topk: int) -> list[str]:
    return [str(article.extra["doc_id"]) for article in retriever.search(query, "full", topk).articles]


def longest_shared_run(question: str, text: str) -> int:
    """Length of the longest piece of `question` that stands in `text` letter for letter."""
    pieces = (question[i:j] for i in range(len(question)) for j in range(i + 1, len(question) + 1))
    return max((len(piece) for piece in pieces if piece in text), default=0)


def test_the_sample_holds_about_150_articles() -> None:
    assert 140 <= len(ARTICLES) <= 165
    assert len(HANDBOOK_ARTICLES) >= 70
    assert len(STANDARD_ARTICLES) >= 70


def test_the_sample_stays_under_200_kilobytes() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 200_000


def test_every_record_has_exactly_the_documented_fields() -> None:
    for article in ARTICLES:
        assert set(article) == FIELDS, article["doc_id"]
        assert all(article[field] for field in FIELDS), article["doc_id"]


def test_every_record_says_that_it_is_a_sample() -> None:
    for article in ARTICLES:
        assert article["law_name"].endswith("（样例）"), article["doc_id"]
        assert article["status"] == "样例"
        assert article["source"] == "cg-rag 内置样例"
        assert article["tags"] == ["sample"]


def test_the_handbook_itself_says_that_it_is_invented() -> None:
    assert "虚构" in HANDBOOK_ARTICLES[0]["contents"]


def test_standards_carry_only_invented_codes_and_name_no_real_standard() -> None:
    laws = {article["law_name"] for article in STANDARD_ARTICLES}
    assert 4 <= len(laws) <= 6
    assert all(re.match(r"Q/YANGLI1\d\d-2025[^\x00-\x7f]+（样例）$", law) for law in laws)
    real_code = re.compile(r"(?<![A-Za-z])(?:GB|JGJ|JG|CJJ|DB|SL|YB|AQ|T)(?:/T)?\s?\d")
    assert not [article["doc_id"] for article in ARTICLES if real_code.search(str(article))]


def test_the_handbook_covers_every_hazard_category_three_times_or_more() -> None:
    assert len(CATEGORIES) == 19
    counts = Counter(article["hazard_category"] for article in HANDBOOK_ARTICLES)
    assert set(counts) == set(CATEGORIES)
    assert min(counts.values()) >= 3


def test_standards_use_only_the_closed_list_of_hazard_categories() -> None:
    assert {article["hazard_category"] for article in STANDARD_ARTICLES} <= set(CATEGORIES)


def test_handbook_numbers_are_articles_and_inserted_articles() -> None:
    numbers = [article["article_number"] for article in HANDBOOK_ARTICLES]
    assert all(re.fullmatch(r"第[一二三四五六七八九十]+条(之一)?", number) for number in numbers)
    inserted = [position for position, number in enumerate(numbers) if number.endswith("条之一")]
    assert len(inserted) >= 5
    assert all(numbers[position] == numbers[position - 1] + "之一" for position in inserted)


def test_standard_numbers_show_sections_items_and_appendices() -> None:
    numbers = [article["article_number"] for article in STANDARD_ARTICLES]
    assert {"3.0.1", "3.0.1(2)", "6.0.5(1)", "附录A", "附录A.0.1"} <= set(numbers)
    shape = re.compile(r"\d\.0\.\d(\(\d\))?|附录A(\.0\.\d)?")
    assert all(shape.fullmatch(number) for number in numbers)


def test_every_item_number_follows_its_parent_in_the_same_standard() -> None:
    present = {(article["law_name"], article["article_number"]) for article in STANDARD_ARTICLES}
    for law, number in present:
        assert (law, number.split("(")[0]) in present


def test_law_and_number_name_one_article_of_the_sample() -> None:
    names = Counter((article["law_name"], article["article_number"]) for article in ARTICLES)
    assert max(names.values()) == 1


def test_document_ids_are_unique_and_count_up_in_each_file() -> None:
    for prefix, articles in (("h", HANDBOOK_ARTICLES), ("s", STANDARD_ARTICLES)):
        expected = [f"sample-{prefix}-{position:03d}" for position in range(1, len(articles) + 1)]
        assert [article["doc_id"] for article in articles] == expected


def test_contents_are_30_to_200_characters_and_never_repeated() -> None:
    assert all(30 <= len(article["contents"]) <= 200 for article in ARTICLES)
    assert len({article["contents"] for article in ARTICLES}) == len(ARTICLES)


def test_the_articles_of_one_law_lie_together() -> None:
    laws = [article["law_name"] for article in ARTICLES]
    changes = sum(before != after for before, after in pairwise(laws))
    assert changes == len(set(laws)) - 1


def test_the_readme_gives_the_warning_and_the_counts() -> None:
    readme = (SAMPLE / "README.md").read_text(encoding="utf-8")
    assert "虚构" in readme
    assert "没有任何法律效力" in readme
    assert f"| {len(HANDBOOK_ARTICLES)} |" in readme
    assert f"| {len(STANDARD_ARTICLES)} |" in readme
    assert all(article["law_name"].split("-")[0] in readme for article in STANDARD_ARTICLES)


def test_site_questions_are_not_copies_of_the_articles_they_look_for() -> None:
    assert len(SITE_QUESTIONS) >= 25
    contents = {article["doc_id"]: article["contents"] for article in ARTICLES}
    for question, doc_ids in SITE_QUESTIONS.items():
        for doc_id in doc_ids:
            assert longest_shared_run(question, contents[doc_id]) <= 6, question


@pytest.mark.parametrize("question", SITE_QUESTIONS)
def test_a_site_question_finds_its_article_in_the_first_five(retriever: Retriever, question: str) -> None:
    found = found_ids(retriever, question, 5)
    assert set(SITE_QUESTIONS[question]) <= set(found), found


@pytest.mark.parametrize("citation", EXACT_CITATIONS)
def test_a_cited_sample_article_comes_first(retriever: Retriever, citation: str) -> None:
    assert found_ids(retriever, citation, 3)[0] == EXACT_CITATIONS[citation]

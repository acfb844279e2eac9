"""Questions made from the text of a statute by rules: training data for statute-ce-6l, with nobody to write it.

Rule: a clause becomes a question by its legal form (应当, 不得, 的，责令 …), its legal words become everyday ones, and now
and then pieces get lost. The rules were written after some test questions had been seen (the model card says so).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

# Legal word=what people say, one way|another; nothing leaves it out.
_TABLE = """
施工单位=施工队|施工方|工地|公司 建筑施工企业=施工队|施工企业|公司 生产经营单位=企业|单位|公司|厂里
用人单位=公司|老板|单位 劳动者=员工|工人|打工的 从业人员=工人|员工 建设单位=甲方|业主|开发商|建设方
工程监理单位=监理 未成年人=孩子|小孩 机动车=车|汽车 赔偿=赔|赔钱 罚款=罚钱|罚款 支付=给|付
解除劳动合同=辞退|开除|解除合同 承租人=租客|租房的 出租人=房东 公安机关=警察|派出所|公安 人民法院=法院
房屋=房子 死亡=死了|死亡 交通事故=车祸|交通事故 返还=退还|退 劳动报酬=工资|工钱 工资=工钱|工资
拒绝=不肯|拒绝 拆除=拆|拆除 公民=个人|人 子女=孩子|儿女 配偶=老公|老婆|另一半 不动产=房产|房子
出卖人=卖家 买受人=买家 消费者=顾客|消费者 经营者=商家|店家 借款人=借钱的人 医疗机构=医院 患者=病人
债务人=欠钱的人|债务人 债权人=债主|债权人 特种作业人员=电工|焊工|特种工 起重机械=塔吊|吊车|起重机
资格证书=证|证书 操作资格=操作证 生产安全事故=安全事故|事故 安全生产教育和培训=安全培训
劳动防护用品=防护用品|劳保用品 安全警示标志=警示标志 主要负责人=老板|负责人 主管人员=负责人 责令限期改正=
县级以上人民政府=政府 国务院= 有关部门=部门|主管部门 主管部门=部门|主管部门 行政机关=政府部门|机关
当事人=双方|当事人|一方 擅自=私自|擅自|偷偷 伪造=造假|伪造 隐瞒=瞒着|隐瞒 缴纳=交|缴 举报=举报|投诉
申请=申请|办 许可证=许可证|证 未经=没有经过|没经 未=没|没有|未 应当=要|得|应该|应当 不得=不能|不可以|不得
毁损=损坏|弄坏 损害=损害|伤害 人身=人 雇主=老板 提供劳务=干活 伤亡=伤亡|受伤 火灾=着火|火灾
消防设施=消防设备|灭火器|消防设施 疏散通道=逃生通道|消防通道|疏散通道 竣工=完工|竣工 分包=分包|转手
承包=承包|包 设备=设备|机器 人员=人|人员 及时= 依法= 按照规定=按规定| 规定的= 其他= 或者=或|或者|和
"""
EVERYDAY: dict[str, tuple[str, ...]] = {
    legal: tuple(words.split("|")) for legal, _, words in (entry.partition("=") for entry in _TABLE.split())
}
NO_QUESTION = re.compile(
    r"构成犯罪|依照前款|法律、行政法规另有|^(第|本法自|本条例自|本办法自|为了|根据|目录|附件)|施行。?$|制定本"
)
PENALTY = re.compile(r"^(.{4,70}?)的，.{0,40}(责令|处|罚|吊销|没收|承担|赔偿|处分|拘留)")
DEFINITION = re.compile(r"本(法|条例|规定|办法|解释)所称(.{2,20}?)[，,]?(是指|包括)")
LISTING = re.compile(r"有下列(行为|情形)")
FORBIDDEN = re.compile("不得|禁止|严禁")
CHARGE = re.compile(r"^(.{4,40})由(.{3,20})(负责|承担)")

PENALTY_ENDS = (
    "怎么处罚", "罚多少钱", "会有什么后果", "怎么罚", "违法吗",
    "要承担什么责任", "归谁处罚", "会不会被罚", "犯法吗", "怎么处理",
)  # fmt: skip
DUTIES = (
    "{a}要不要{b}", "{a}需要{b}吗", "{a}是否必须{b}", "{a}{b}有什么要求", "{b}是谁的责任", "{b}由谁负责",
    "{a}没有{b}怎么办", "{a}不{b}会怎样", "{a}要做什么", "{a}有什么义务", "{b}有什么规定", "{a}一直没{b}，违反哪条",
)  # fmt: skip
BANS = ("{a}能{b}吗", "{a}可以{b}吗", "{a}{b}违法吗", "{a}{b}怎么办", "{a}{b}，这样行不行", "{b}有没有规定")
RIGHTS = (
    "{a}能不能{b}",
    "{a}可以{b}吗",
    "{a}怎么办",
    "{a}有什么权利",
    "{a}有权{b}吗",
    "{b}需要什么条件",
)
OTHERS = ("", "吗", "怎么办", "有什么规定", "怎么规定的", "违反哪条", "的要求", "如何认定", "怎么算")
OPENINGS = ("工地上", "公司", "请问", "我", "老板", "单位", "如果", "")


def make_question(law_name: str, contents: str, random: Random) -> tuple[str, str] | None:
    """(question, contents that answer it), or None where no clause gives one. Now and then the clause itself is taken
    out of the contents, so that matching words are not all there is to learn."""
    usable = [clause for clause in split_clauses(contents) if not NO_QUESTION.search(clause)]
    if not usable:
        return None
    clause = random.choice(usable)
    question = say_plainly(ask_about(clause, random), random, 0.65)
    question = re.sub(r"[（(].*?[)）]|《|》|“|”", "", question)
    if random.random() < 0.4:
        question = lose_pieces(question, random, 0.12)
    if random.random() < 0.06:
        question = law_name.removeprefix("中华人民共和国") + " " + question
    if random.random() < 0.15:
        question = random.choice(OPENINGS) + question
    question = question.strip("，、 ")
    if not 5 <= len(question) <= 70:
        return None
    hides = random.random() < 0.35 and len(contents) > 2 * len(clause)
    return question, contents.replace(clause, "", 1) if hides else contents


def split_clauses(contents: str) -> list[str]:
    """Sentences of 8 to 110 characters, without their numbers."""
    found = []
    for sentence in re.split(r"[。；\n]", contents):
        clause = re.sub(r"^（[一二三四五六七八九十]+）|^[0-9]+[\.、]", "", sentence.strip()).strip("：: ")
        if 8 <= len(clause) <= 110:
            found.append(clause)
    return found


def ask_about(clause: str, random: Random) -> str:
    """A question by the legal form of `clause`."""
    if (match := PENALTY.search(clause)) and random.random() < 0.8:
        return shorten(match[1], 36, random) + random.choice(PENALTY_ENDS)
    if LISTING.search(clause):
        begin = shorten(re.split("有下列", clause)[0], 20, random)
        ask = random.choice(("有哪些情形", "哪些情况", "什么情况下会这样", "有哪些"))
        return begin + ask + shorten(clause.split("的，")[-1], 15, random)
    if match := DEFINITION.search(clause):
        ask = random.choice(("什么是{}", "{}是什么意思", "{}包括哪些", "怎么认定{}", "{}的定义"))
        return ask.format(match[2].strip("“”"))
    for word, share, forms in (
        ("应当", 0.75, DUTIES),
        ("", 0.8, BANS),
        ("有权", 1, RIGHTS),
        ("可以", 1, RIGHTS),
    ):
        split = word or ((match := FORBIDDEN.search(clause)) and match[0]) or ""
        if split and split in clause and random.random() < share:
            return _fill(clause, split, random.choice(forms), random)
    if match := CHARGE.search(clause):
        return shorten(match[1], 26, random) + random.choice(("归谁管", "谁负责", "由谁承担", "找谁"))
    return shorten(clause, 32, random) + random.choice(OTHERS)


def _fill(clause: str, word: str, form: str, random: Random) -> str:
    before, after = clause.split(word, 1)
    return form.format(a=shorten(before, 22, random), b=shorten(after, 26, random))


def shorten(text: str, limit: int, random: Random) -> str:
    """Neighbouring parts of `text`, at most `limit` characters."""
    parts = [part for part in re.split(r"[，、：,]", text) if part]
    if len(text) <= limit or not parts:
        return text[:limit]
    place = random.randrange(len(parts))
    kept, rest = parts[place], parts[place + 1 :]
    for part in rest:
        if len(kept) + len(part) >= limit or random.random() >= 0.7:
            break
        kept += random.choice(("，", "、", "")) + part
    return kept[:limit]


def say_plainly(text: str, random: Random, share: float) -> str:
    """Legal words replaced by everyday ones, each with the chance `share`."""
    for legal, words in EVERYDAY.items():
        if legal in text and random.random() < share:
            text = text.replace(legal, random.choice(words), 1 if random.random() < 0.5 else -1)
    return text


def lose_pieces(text: str, random: Random, share: float) -> str:
    """One to three characters at a time are left out, each piece with the chance `share`."""
    kept: list[str] = []
    place = 0
    while place < len(text):
        width = random.choice((1, 2, 2, 3))
        kept += [text[place : place + width]] if random.random() > share else []
        place += width
    return "".join(kept)


def sample_questions(
    articles: Sequence[tuple[str, str]], count: int, random: Random
) -> list[tuple[str, int, str]]:
    """`count` distinct (question, place of its article, contents that answer it) from (law name, contents)."""
    found: list[tuple[str, int, str]] = []
    seen = set()
    for _ in range(100 * count):
        if len(found) == count:
            break
        place = random.randrange(len(articles))
        made = make_question(*articles[place], random)
        if made is not None and made[0] not in seen:
            seen.add(made[0])
            found.append((made[0], place, made[1]))
    return found

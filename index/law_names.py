"""What a law or standard is called: codes, titles, editions, and the parts that make two spellings one law.

A name has three parts, each of which a writer may leave out: the title (施工脚手架通用规范), the code
(GB55023) and the edition (2022, from the code, or from a bracket such as （2018年修订）). Two names agree
when the parts that both have agree; nothing is ever matched by likeness.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cg_rag.index.numerals import CHINESE_DIGITS, fold, squeeze

COMMENTARY = "条文说明"

# 《…》 with up to four inner 《…》; possessive, so that an unclosed bracket costs one short pass.
BOOK = re.compile(r"《([^《》\n]{0,120}+(?:《[^《》\n]{0,120}+》[^《》\n]{0,120}+){0,4}+)》")

# Series of building sites: these are codes even without an edition. Any other capitals are a code only where
# an edition or an article follows (XYZ 101-2025), so that C30, HRB400 or PM2.5 are none.
_SERIES = (
    "GBJ|GBZ|GB|JGJ|JG|CJJ|CJ|JTG|JTJ|JTS|JT|SL|DL|AQ|HG|SH|SY|TB|YB|YS|JB|JC|XF|GA|LD|MT|NB|HJ|WS"
    "|CECS|TSG|RFJ"
)
_NUMBER = r"\d{1,6}(?:\.\d{1,2})?"
_EDITED = (
    rf"(?={_NUMBER} ?(?:- ?(?:19|20)\d\d(?!\.?\d)| {{0,2}}(?:第 ?[0-9]|§|[0-9]{{1,2}}\.[0-9]{{1,2}}\.[0-9])))"
)
_CODE = (
    r"(?<![A-Z0-9/])(?:"
    rf"(?P<base>{_SERIES})(?: ?/? ?(?P<kind>[TZ]))?(?P<volume> ?[A-Z](?=\d))?[ -]{{0,2}}"
    r"|(?P<local>DBJ?|DG/TJ|DGJ) ?(?P<place>\d{2})?(?: ?/ ?(?P<mark>[TJZ]{1,2})?)?[ -]{0,2}"
    r"|(?P<group>[TQ] ?/ ?[A-Z]{2,10})[ -]{0,2}"
    rf"|(?P<other>[A-Z]{{2,6}}(?:/[A-Z]{{1,3}})?)[ -]{{0,2}}{_EDITED}"
    rf")(?P<number>{_NUMBER}(?:-\d{{1,3}}(?= ?- ?(?:19|20)\d\d(?!\d)))?)(?![0-9])"
    r"(?: ?- ?(?P<year>(?:19|20)\d\d|[5-9]\d)(?!\.?\d))?"
)
CODE = re.compile(_CODE)

_YEAR = re.compile(r"(?:19|20)\d\d(?!\d)")
_ORDER = re.compile(
    r"令|号|〔|公告|简称|下称|公布|发布|施行|实施|修[订正改]|版|通过|备案|现行|有效|样例|示例"
)
_QUALIFIER = re.compile(r"[一二三四五六七八九十]{1,3}|试行|暂行|征求意见稿|送审稿|报批稿|草案")
_PARENTHESIS = re.compile(r"\(([^()]{0,80}+)\)")
_NOISE = re.compile(r"[-\s_·.,、:;*\"'“”‘’《》]+")
_STATE = "中华人民共和国"


@dataclass(frozen=True, slots=True)
class CodeMatch:
    """A code found at `start` .. `end`: normal form ("GB/T50720") and edition ("2011" or None)."""

    code: str
    year: str | None
    start: int
    end: int


def read_code(match: re.Match[str]) -> CodeMatch:
    """Take a match of CODE (on folded text) apart."""
    part = {key: (value or "").replace(" ", "") for key, value in match.groupdict().items()}
    if part["group"] or part["other"]:
        series = part["group"] or part["other"]
    elif part["local"]:
        slash = "/" if "/" in match[0].replace("DG/TJ", "").split(part["number"])[0] else ""
        series = part["local"] + part["place"] + slash + part["mark"]
    else:
        series = part["base"] + (f"/{part['kind']}" if part["kind"] else "") + part["volume"]
    year = f"19{part['year']}" if len(part["year"]) == 2 else part["year"]
    return CodeMatch(series + part["number"], year or None, match.start(), match.end())


# Where nothing but a bare code is written: SY 75 is an excavator, DB25 a box, JB 100 a model. These are standards.
_SURE_CODE = re.compile(
    r"GB[JZ]?(?:/[TZ])?\d{3}|(?:JGJ|CJJ|CECS|TSG|JTG)|(?:DB|DBJ|DG/TJ|DGJ)(?:\d\d/?[TJZ]{0,2}\d{3}|\d\d/|\d{5})"
    r"|[TQ]/[A-Z]{2}"
)


def is_sure_code(code: str) -> bool:
    """Whether the normal form of a code, without edition or article, can only be that of a standard."""
    return bool(_SURE_CODE.match(code))


def code_key(code: str) -> str:
    """A code for matching. GB/T 50720 and GB 50720 are one standard: /T says how binding an edition is."""
    return re.sub(r"/[tzj]{0,2}(?=\d)", "", code.casefold())


@dataclass(frozen=True, slots=True)
class Parenthesis:
    """What a bracket behind a name says; all None: an order number or the like, to be skipped."""

    code: CodeMatch | None = None
    year: str | None = None
    qualifier: str | None = None
    commentary: bool = False


def read_parenthesis(content: str) -> Parenthesis | None:
    """Classify the folded text of a bracket: code, edition, part of the title, order. None: other text."""
    content = content.strip()
    if match := CODE.match(content):
        return Parenthesis(code=read_code(match))
    if content == COMMENTARY:
        return Parenthesis(commentary=True)
    if _QUALIFIER.fullmatch(content):
        return Parenthesis(qualifier=content)
    if re.search("令|号|〔|公告", content):
        return Parenthesis()
    if match := _YEAR.match(content):
        return Parenthesis(year=match[0])
    return Parenthesis() if _ORDER.search(content) else None


@dataclass(frozen=True, slots=True)
class Identity:
    """The parts of a name, as keys: `title` "" when it has none, `code` "" when it has none."""

    title: str
    code: str
    years: frozenset[str]
    commentary: bool

    def agrees(self, other: Identity) -> bool:
        """Same code where both have one, same title where both have one, same kind of text.

        With equal codes one title may be a piece of the other (脚手架通用规范), because the code has decided.
        """
        if self.commentary != other.commentary or (self.code and other.code and self.code != other.code):
            return False
        if not self.title or not other.title or self.title == other.title:
            return True
        shorter, longer = sorted((self.title, other.title), key=len)
        return bool(self.code) and self.code == other.code and len(shorter) >= 4 and shorter in longer


def identify(name: str) -> Identity:
    """Take a law's name apart, as a corpus or a writer gives it. Never raises."""
    text = fold(squeeze(name))
    years: set[str] = set()
    code = ""
    if match := CODE.search(text):
        found = read_code(match)
        code = code_key(found.code)
        years |= {found.year} if found.year else set()
        text = f"{text[: found.start]} {text[found.end :]}"

    def drop(match: re.Match[str]) -> str:
        inner = read_parenthesis(match[1]) if match[1] else Parenthesis()
        if inner is None or inner.qualifier:
            return match[0]
        years.update({inner.year} if inner.year else set())
        return COMMENTARY if inner.commentary else ""

    if "(" in text:
        text = _PARENTHESIS.sub(drop, text)
    text = _NOISE.sub("", text)
    commentary = text.endswith(COMMENTARY)
    text = re.sub(f"[及其的]*{COMMENTARY}$", "", text) if commentary else text
    return Identity((text.replace(_STATE, "") or text).casefold(), code, frozenset(years), commentary)


def spoken_titles(law_name: str) -> set[str]:
    """The title as it may stand in a sentence without 《》, folded: no code, edition or order number.

    Two forms where the name has blanks inside, else one; none where it is all code.
    """

    def drop(match: re.Match[str]) -> str:
        inner = read_parenthesis(match[1])
        return match[0] if inner is None or inner.qualifier else ""

    text = _PARENTHESIS.sub(drop, CODE.sub(" ", fold(law_name))).strip(" -_·.,、:;*")
    if text.startswith("《") and text.endswith("》") and "《" not in text[1:]:
        text = text[1:-1]
    text = text.removeprefix(_STATE) or text
    return {text, text.replace(" ", "")} - {""}


KIND = (
    r"(?:法典|条例|规定|办法|规范|标准|规程|细则|规则|通则|导则|决定|解释"
    r"|(?<![方办做看违合非执司立语想说书普犯无])法)"
)
# Names that say only what kind of rule they are: any longer name may end so.
_GENERIC = re.compile(
    "(?:安全|技术|操作|工作|监督|检查|管理|实施|处理|暂行|若干|处罚|奖惩|考核|评定|验收|补充){0,4}"
    "(?:条例|规定|办法|规范|标准|规程|细则|规则|通则|导则|决定|解释)|(?:安全|管理)法"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Rule: a name is never read as the tail of a longer one (海上交通安全法, 职业教育法, 北京市消防条例), whether the
# longer one is known here or not. As no list of laws is complete, what may stand before a name is a closed list of
# ordinary words, and everything else continues the name to the left.
# A strong word is enough: it takes an object, and no name goes on behind it. Weak words may be a piece of another
# word: all that stands before the name must consist of them, back to a strong one, a punctuation mark or the start.
_STRONG = _words(
    "依据 根据 按照 依照 遵照 参照 对照 比照 违反 违背 触犯 符合 遵守 执行 适用 引用 援引 贯彻 落实 请问 想问 问问 我国 现行 最新 新版 "
    "旧版 老版 新修订 关于 针对 基于 鉴于 例如 比如 譬如 其中 知道 了解 明白 告诉 提到 说到 讲到 看到 找到 查到 涉及 属于 参见 详见 "
    "见于 参考 参阅 一下 是否 没有 就是 不是 还是 因为 由于 所以 如果 列出 列举 给出 写出 查找 查看 看看 说说 讲讲 谈谈 聊聊 "
    "找找 查查 翻到 摘录 背诵 问 说 讲 看 找 是 了 我 你 您 咱 俺 吗 呢 吧 啊 把"
)
_WEAK = _words(
    "的 或者 请 帮 帮忙 想 想要 要 能 可 会 该 应 应该 应当 必须 需 需要 得 给 对 对于 在 由 从 以 为 如 见 查 依 按 据 新 旧 老 用 有 没 不 "
    "也 都 就 还 再 先 只 又 和 与 及 或 跟 同 比 比较 对比 将 被 让 叫 那 这 哪 到 来 去 下 读 写 背 抄 他 她 它 们 他们 我们 现在 目前 "
    "今天 昨天 刚才 相关 有关 全部 具体 详细 这个 那个 这部 那部 哪部 哪个 一部 什么 怎么 如何 哪些 多少 上位 麻烦 劳驾 拜托 你好 "
    "您好 谢谢 快 能否 可以 可否 下列 以下 上述 前述 总结 概括 归纳 检索 搜索 搜 翻译 翻 分析 说明 展示 显示 打印 打开 输出 提供 "
    "复述 默写 咨询 核对 核实 解释 解读 介绍 讲解 学习 查询 查阅 阅读 国家 中国 严格 认真 切实 首先 其次 最近"
)
# As weak, but not right before a name: 律师执业管理办法, 监理规范.
_SPEAKERS = _words(
    "大家 有人 别人 老板 领导 经理 项目经理 监理 甲方 乙方 业主 安全员 工人 师傅 同事 朋友 专家 老师 律师 客户"
)
# Words that begin with a weak one, and nouns that end in a strong one.
_ONE_WORD = _words(
    "看守 应对 问题 能源 能耗 搜寻 快递 快速 有线 问责 查处 查封 查验 请示 在线 从业 由于 用人 用地 用电 用水 会计 对外 应急 见义 不动 可再 可燃 新能 新闻 新型 新疆 "
    "有限 有色 有毒 有害 老年 给水 给排 比例 没收 还建 和解 和平 及时 同业 先进 再生 就业 就学 都市 下水 下岗 来料 搜救 "
    "翻新"
)
_NOUN = re.compile(
    "(?:强制执行|预算执行|刑罚执行|法律适用|小说|学说|传说|解说|顾问|访问|询问|讯问|学问|慰问|演讲|宣讲|自我)$"
)
# 国家建筑法 is 建筑法; 国家安全法 is one name, and so may any name be that does not end in 法.
_OF_STATE = re.compile(
    "(?!安全(?!生产)|赔偿|情报|公园|豁免|勋章|荣誉|标志|秘密|通用|监察|公务|行政|人民|公民)"
    rf"(?:(?!{KIND})[\u3400-\u9fff]){{1,20}}(?<!办)法(?!典|规|律)"
)
_EDITION = re.compile(r"(?<![0-9])(?P<year>(?:19|20)\d\d) ?(?P<kind>年?(?:版|修[订正改]版?)|年)$")
_NUMBERED = r"(?<![\u3400-\u9fff0-9A-Z])(?:[0-9]{1,2}|[一二三四五六七八九十]{1,3})、"
_JOINED = re.compile(
    r"(?:(?:[^办方]法|法典|条例|办法|规定|规范|规程|细则|[》)]"
    rf"|[{CHINESE_DIGITS}0-9)][条款项])(?:和|与|及|或|以及|跟|同|还有|、)|{_NUMBERED})$"
)
_ABOUT = re.compile(r"关于[\u3400-\u9fff〇A-Z0-9、《》()]*$")
# A place and a blank, 国（边）境.
_PLACE = re.compile(
    r"[省市区县州盟旗部委局署厅院] {1,3}$|[\u3400-\u9fff]\((?!试行|暂行|[一二三四五六七八九十])[\u3400-\u9fff]{1,6}\)$"
)
_GOES_ON = re.compile(r"[\u3400-\u9fff〇A-Z0-9、]")
_REACH = 24


def may_begin(folded: str, pos: int, dead: set[int] | None = None) -> bool:
    """Whether a law's name may begin at `pos`: nothing before it continues the name to the left.

    `dead` keeps, from call to call over one text, where no word leads on.
    """
    if _PLACE.search(folded, max(0, pos - 9), pos):
        return False
    dead = set() if dead is None else dead
    ways = [pos]
    while ways:
        at = ways.pop()
        if at == 0 or not _GOES_ON.match(folded, at - 1) or _JOINED.search(folded, max(0, at - 6), at):
            return True
        for start in _word_starts(folded, at, pos):
            if start < 0:
                return True
            if start not in dead and pos - start <= _REACH:
                dead.add(start)
                ways.append(start)
    return False


def _word_starts(folded: str, at: int, name: int) -> Iterator[int]:
    """Starts of the weak words that end at `at`, and -1 for a strong one. The name begins at `name`."""
    if edition := _EDITION.search(folded, max(0, at - 10), at):
        yield edition.start()
    for size in range(1, min(4, at) + 1):
        word = folded[at - size : at]
        if size == 1 and folded[at - 1 : at + 1] in _ONE_WORD:
            continue
        if word in _STRONG and not _NOUN.search(folded, max(0, at - 4), at):
            yield -1
        elif _is_weak(word, folded, at) or (at != name and word in _SPEAKERS):
            yield at - size


def _is_weak(word: str, folded: str, end: int) -> bool:
    if word == "的" and is_about(folded, end):
        return False
    return word in _WEAK and (word not in ("国家", "中国") or bool(_OF_STATE.match(folded, end)))


def is_about(folded: str, pos: int) -> bool:
    """Whether `pos` is inside 关于…的决定, which is one name however long."""
    return bool(_ABOUT.search(folded, max(0, pos - 60), pos))


def edition_before(folded: str, pos: int) -> str | None:
    """The year of 2021版 or 2021年修订 right before `pos`. 2021年 may be the year of something else."""
    match = _EDITION.search(folded, max(0, pos - 10), pos)
    return match["year"] if match and match["kind"] != "年" else None


def is_generic(title: str) -> bool:
    """管理办法, 安全规范: too little to be told from the tail of a longer name."""
    return bool(_GENERIC.fullmatch(title))


_RUN = re.compile(
    r"(?:[\u3400-\u9fff]{1,16}[省市区县州盟旗部委局署厅院] {1,3})?[\u3400-\u9fff〇A-Z0-9、]{0,40}$"
)
_RUN_END = re.compile(rf"(?P<kind>{KIND})(?:\([^()\n]{{1,12}}\))?(?:[所中]?规定)?[的中里]? ?[\"”」』]? ?$")


def find_unknown_name(folded: str, low: int, stop: int) -> tuple[int, int] | None:
    """Span of the name without 《》 that ends before the article at `stop` and does not reach below `low`.

    刑法 in 根据刑法第三十条. It begins where a name may, else where the words do, so that it is never the tail
    of a name. None where only a kind is named (按照有关规定第三条).
    """
    tail = _RUN_END.search(folded, max(low, stop - 24), stop)
    if tail is None or may_begin(folded, tail.start()):
        return None
    kind, end = tail.span("kind")
    run = _RUN.search(folded, max(low, kind - 40), kind)
    start = run.start() if run else kind
    dead: set[int] = set()
    for pos in range(kind - 1, start, -1):
        if not is_generic(folded[pos:end]) and may_begin(folded, pos, dead) and not is_about(folded, pos):
            return pos, end
    behind_law = start > 0 and folded[start - 1] == "》"
    if behind_law or start == kind or is_generic(folded[start:end]) or is_about(folded, start):
        return None
    return (start, end) if may_begin(folded, start) else None


_NEWER = re.compile("^(?:新修[订改正]|最?新版?|现行|(?:19|20)[0-9]{2}年?(?:版|修[订正改]版?))的?")


def without_newer(title: str) -> str:
    """A title without 新, 最新版, 现行, 2021版 before it."""
    return _NEWER.sub("", title)

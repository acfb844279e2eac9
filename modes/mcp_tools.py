"""The MCP tools: one entry per tool, made from a mode or from a function. docs/mcp.md.

Rule: an entry says what a model must know to choose the tool and to call it; types, bounds and defaults come from the
request model of the mode, so that HTTP and MCP cannot disagree. A further tool is one more entry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cg_rag.core.events import Agent, Event, Progress, drain
from cg_rag.core.tools import Report, Tool, make_input_schema
from cg_rag.modes import MODES, Mode, start
from cg_rag.modes.health import profiles
from cg_rag.modes.services import Services

INSTRUCTIONS = (
    "CG_RAG：中国施工现场安全法规检索与图片隐患识别。要条文原文用 cg_retrieve_rerank；要直接得到相关条文的结论用 cg_rag；"
    "已有候选条文、只需从中选择时用 cg_constrained_generate；有现场图片时用 cg_vision_answer，需要条文依据时用 cg_vision_agentic。回答时只引用返回的条文，不得自行编写条文内容或编号。"
    "先看 operation_ok，为 false 时原因在 data.error 或 data.generation.error 中。"
)

QUERY = "要查的问题或关键词，中文，1..2000 个字符；写明工种、部位与情形效果更好，也可直接写法规名称与条文编号"
MAX_ITEMS = "至多选出多少条，1..50，缺省 5"
INCLUDE_DEBUG = "附带调试信息，缺省 false；除非在排查问题，不要开启"
THINKING = "是否让选条文的模型先思考（更慢）；缺省 null，即按服务的设置"
IMAGES = (
    "施工现场图片，至少一张，缺省至多 4 张；data 为 base64 或 data:<mime>;base64,… 形式的 data URL（不接受网址），"
    "mime_type 为 image/jpeg、image/png、image/webp 之一（data URL 时忽略）；不接受 HEIC"
)
VISION_THINKING = "是否让看图的模型先思考（更慢）；缺省 null，即按服务的设置"
QUESTION = "观察重点或关于图片的问题，至多 2000 个字符；缺省“请检测图中的安全隐患”"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool. `mode` is the route of the mode that does the work, None for one of `functions` of `make_tools`.

    `parameters` are the fields of the mode's request that the tool has, with what a caller is told of each;
    `{scopes}` in it becomes the list of the scopes there are.
    """

    name: str
    title: str
    description: str
    mode: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    open_world: bool = False


ENTRIES = (
    Entry(
        "cg_health",
        "服务状态",
        "查看 CG_RAG 的运行状态：可用与缺省的检索范围、索引是否就绪、生成与重排的配置、剩余容量。"
        "没有参数。调用失败或怀疑服务未就绪时用它；要检索条文请用 cg_retrieve_rerank 或 cg_rag。",
    ),
    Entry(
        "cg_list_profiles",
        "检索范围",
        "列出可用的检索范围：名称（即其他工具的 scope 参数）、显示名称、检索方法与条文数。没有参数。"
        "不知道 scope 该填什么时先调用它。",
    ),
    Entry(
        "cg_retrieve_rerank",
        "检索条文",
        "按问题检索中国施工安全的法律、规范与标准条文，按相关程度返回条文原文（法规名称、条文编号、内容），不生成答复。"
        "需要条文依据、要自己阅读或引用条文时用它；只想直接得到最相关条文的结论用 cg_rag。"
        "warnings 会说明问题点名的法规或条文是否不在库中。",
        mode="/retrieve-rerank",
        parameters={
            "query": QUERY,
            "scope": "检索范围，{scopes}",
            "topk": "返回条文数上限，1..200，缺省 20；一般 5..20 足够",
        },
    ),
    Entry(
        "cg_constrained_generate",
        "从候选条文中选择",
        "从调用方给出的候选条文中选出与问题直接相关的，返回编号与固定格式的答复；只在候选中选，绝不编造条文。"
        "已经有候选条文（通常是 cg_retrieve_rerank 返回的 retrieval_docs，可原样传入）时用它；没有候选时用 cg_rag。",
        mode="/constrained-generate",
        parameters={
            "query": "要回答的问题，中文，1..2000 个字符",
            "retrieval_docs": "候选条文 1..200 条，每条须有 law_name、article_number（没有编号时为空字符串）与 contents，"
            "其余字段可保留；通常就是 cg_retrieve_rerank 返回的 data.retrieval_docs",
            "max_items": MAX_ITEMS,
            "include_debug": INCLUDE_DEBUG,
            "generation_enable_thinking": THINKING,
        },
        open_world=True,
    ),
    Entry(
        "cg_rag",
        "检索并选出条文",
        "一次完成检索与选择：先检索施工安全条文，再从中选出与问题直接相关的，data.generation.answer_text 为结论，"
        "data.retrieval.retrieval_docs 为检索到的条文原文。要直接回答“依据哪一条”时用它；只要候选条文时用 cg_retrieve_rerank。",
        mode="/rag",
        parameters={
            "query": QUERY,
            "scope": "检索范围，{scopes}",
            "topk": "先检索多少条作为候选，1..200，缺省 20",
            "max_items": MAX_ITEMS,
            "include_debug": INCLUDE_DEBUG,
            "generation_enable_thinking": THINKING,
        },
        open_world=True,
    ),
    Entry(
        "cg_vision_answer",
        "看图识别隐患",
        "根据施工现场图片识别安全隐患：data.answer 为报告，含隐患等级、隐患分类（19 类）、隐患描述与整改措施；不检索法规、不带引用。"
        "快速筛查时用它；要带条文依据的用 cg_vision_agentic；与隐患无关的问题会直接回答。只要一个可供检索的标签时用 cg_vision_observe。",
        mode="/vision/answer",
        parameters={
            "images": IMAGES,
            "question": QUESTION,
            "enable_thinking": VISION_THINKING,
        },
        open_world=True,
    ),
    Entry(
        "cg_vision_observe",
        "结构化观察图片",
        "对施工现场图片做一次结构化观察：data.hazard_label 为校验过的隐患标签（62 项之一，没有隐患时为空），data.text 为展示文字。"
        "要把图片变成检索问题、再用 cg_retrieve_rerank 查条文时用它；要完整的隐患报告用 cg_vision_answer。"
        "data.parse_status 为 failed 时没有标签，只可展示 text。",
        mode="/vision/observe",
        parameters={"images": IMAGES, "question": QUESTION},
        open_world=True,
    ),
    Entry(
        "cg_vision_agentic",
        "看图检索法规并判定隐患",
        "根据施工现场图片识别隐患，模型自行检索法规：data.answer 为报告，判定依据中的 [cite^n] 指 data.retrieval_docs 的第 n 条（从 1 起），"
        "只有 data.citations 中的编号被引用。需要条文依据、可审计的结论时用它，耗时数十秒；快速筛查用 cg_vision_answer。"
        "data.scene_status 不是 assessable 时按 data.warnings 提示补拍。",
        mode="/vision/agentic",
        parameters={
            "images": IMAGES,
            "question": QUESTION,
            "scope": "检索范围，{scopes}",
            "max_search_rounds": "最多检索轮数，1..3；缺省 null，即按服务的设置",
            "topk": "每轮检索候选数，1..200；缺省 null，即按服务的设置",
            "enable_thinking": VISION_THINKING,
        },
        open_world=True,
    ),
)


def make_tools(services: Services, health: Callable[[], dict[str, Any]]) -> dict[str, Tool]:
    """The tools by name. `health` is the body of GET /health for a caller who may see all of it."""
    functions = {"cg_health": health, "cg_list_profiles": lambda: profiles(services)}
    tools = {}
    for entry in ENTRIES:
        mode = MODES[entry.mode] if entry.mode is not None else None
        run = _run_mode(mode, services) if mode is not None else _run_function(functions[entry.name])
        schema = _schema(entry, mode, services)
        tools[entry.name] = Tool(entry.name, entry.title, entry.description, schema, run, entry.open_world)
    return tools


def _schema(entry: Entry, mode: Mode | None, services: Services) -> dict[str, Any]:
    scopes = {name: profile.label for name, profile in services.settings.profiles.items()}
    named = "、".join(f"{name}（{label}）" for name, label in scopes.items())
    own_default = getattr(mode, "default_scope", None)
    default = own_default(services) if own_default is not None else services.settings.active_scope
    told = f"可选 {named}；缺省 {default}"
    parameters = {name: text.replace("{scopes}", told) for name, text in entry.parameters.items()}
    return make_input_schema(mode.Request if mode is not None else None, parameters, {"scope": list(scopes)})


Run = Callable[[dict[str, Any], str, Report], Awaitable[dict[str, Any]]]


def _run_function(function: Callable[[], dict[str, Any]]) -> Run:
    async def run(_arguments: dict[str, Any], _request_id: str, _report: Report) -> dict[str, Any]:
        return function()

    return run


def _run_mode(mode: Mode, services: Services) -> Run:
    async def run(arguments: dict[str, Any], request_id: str, report: Report) -> dict[str, Any]:
        events = start(mode, arguments, services, request_id)
        return await drain(events, lambda event: _tell(event, report))

    return run


def _tell(event: Event, report: Report) -> None:
    if isinstance(event, Progress | Agent) and event.status == "running":
        report(event.label)

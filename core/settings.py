"""Every setting once: its key, type, default, bounds and meaning.

Rule: nothing about a setting is said twice. Its environment name, the sentence of an error message, the
comment in config.yaml and the row in docs/config.md derive from the models; tests hold the two files to them.
"""

from __future__ import annotations

import ipaddress
import os
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, PlainSerializer, SecretStr, Tag, model_validator

from cg_rag.core.log_settings import LogSettings
from cg_rag.core.profile import ProfileName, Workflow
from cg_rag.core.providers import ProviderName, StructuredOutput, ThinkingControl
from cg_rag.core.rerank_settings import RerankSettings
from cg_rag.core.setting_types import (
    SCOPE_NAME,
    SECRET_FILE_WORDS,
    ApiKeys,
    ArticleTemplate,
    Endpoint,
    File,
    Folder,
    Host,
    Label,
    MilvusName,
    MilvusUri,
    ModelName,
    Name,
    Origins,
    QueryTemplate,
    Scope,
    Secret,
    SecretFile,
    Section,
    refuse,
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`: 127.0.0.0/8, ::1, localhost. Anything unclear is not."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_index_dir(environ: Mapping[str, str]) -> Path:
    """The folder meant by `index.dir: ""`. Raises RuntimeError when the home directory is unknown."""
    base = environ.get("XDG_DATA_HOME", "")
    # XDG Base Directory Specification: a relative path is invalid and to be ignored.
    root = Path(base) if os.path.isabs(base) else Path("~/.local/share").expanduser()
    return root / "cg-rag" / "index"


class ServerSettings(Section):
    host: Host = Field(default="127.0.0.1", description="监听地址；非本机地址须配密钥或允许匿名")
    port: int = Field(default=8864, ge=0, le=65535, description="监听端口；0 表示任取一个空闲端口")
    workers: int = Field(
        default=1, ge=1, le=64, description="serve 的工作进程数，共用端口；模型、缓存、容量每个进程各一份"
    )
    api_keys: ApiKeys = Field(default_factory=dict, description="调用方名称到密钥的映射；空为不校验密钥")
    api_keys_file: File | None = Field(
        default=None, description="从文件读密钥：每行 名称=密钥，或 YAML 映射；与 api_keys 二选一"
    )
    allow_anonymous: bool = Field(
        default=False, description="允许在非本机地址上不设密钥；仅在网关已鉴权时开启"
    )
    max_inflight_body_bytes: int = Field(
        default=134217728,
        ge=2097152,  # below the largest body of the text routes, that body could never be admitted
        le=68719476736,
        description="同时在读的请求体总字节数上限，超过即排队；内存小则调低",
    )
    header_timeout_seconds: float = Field(
        default=10.0, ge=0.01, le=3600, description="请求头须在此时间内送达"
    )
    body_idle_timeout_seconds: float = Field(
        default=30.0, ge=0.01, le=3600, description="请求体两次到达之间的最长间隔"
    )
    write_timeout_seconds: float = Field(
        default=60.0, ge=0.01, le=3600, description="响应一次写出的最长等待；对方不读即断开"
    )
    shutdown_timeout_seconds: float = Field(
        default=150.0, ge=0, le=3600, description="停止服务时等待在途请求的时间；须小于进程管理器的强杀时间"
    )

    @model_validator(mode="after")
    def _no_open_door(self) -> Self:
        if not is_loopback(self.host) and not self.api_keys and not self.allow_anonymous:
            refuse(
                "server.host",
                f"为非本机地址 {self.host}，但没有任何密钥：请设置 server.api_keys"
                "（或 server.api_keys_file），或在网关已鉴权时设 server.allow_anonymous: true。",
            )
        return self


class Selector(Section):
    """One entry of `profiles.<scope>.include`: every given key must match."""

    corpus: Name | None = Field(default=None, description="条文库名称（建索引时的 NAME）")
    law: Name | None = Field(default=None, description="法规全名，与索引中完全一致")
    tag: Name | None = Field(default=None, description="标签（建索引时的 #tag）")

    @model_validator(mode="after")
    def _selects_something(self) -> Self:
        if self.corpus is None and self.law is None and self.tag is None:
            refuse("", "至少要给出 corpus、law、tag 之一；要全部条文请写 include: all。")
        return self


def _some_selectors(selectors: tuple[Selector, ...]) -> tuple[Selector, ...]:
    if not selectors:
        refuse("", "不能是空列表；要全部条文请写 all。")
    return selectors


# The tags keep pydantic from reporting both branches; config.py cuts them from a path.
TAG_ALL, TAG_LIST = "=all", "=list"
Include = Annotated[
    Annotated[Literal["all"], Tag(TAG_ALL)]
    | Annotated[tuple[Selector, ...], Field(strict=False), AfterValidator(_some_selectors), Tag(TAG_LIST)],
    Discriminator(lambda value: TAG_LIST if isinstance(value, list | tuple) else TAG_ALL),
]


class Profile(Section):
    label: Label = Field(description="检索范围的显示名称")
    retrieval_method: Literal["auto", "lexical"] = Field(
        default="auto", description="检索方法：auto 为索引有向量时向量与字面并用，lexical 为只用字面"
    )
    include: Include = Field(description="范围内的条文：all 为全部，或选择器列表，命中任一选择器即在范围内")


def _scopes(profiles: Mapping[str, Profile]) -> Mapping[str, Profile]:
    if not profiles:
        refuse("", "至少要有一个检索范围。")
    for name in profiles:
        if not SCOPE_NAME.fullmatch(name):
            refuse(f"profiles.{name}", "名称须以小写字母开头，由 1..64 个小写字母、数字或下划线组成。")
    return types.MappingProxyType(dict(profiles))


Profiles = Annotated[Mapping[str, Profile], AfterValidator(_scopes), PlainSerializer(dict)]


class MilvusSettings(Section):
    uri: MilvusUri = Field(
        default="", description="Milvus 的地址；以 .db 结尾的路径为 milvus-lite，仅供试用；空为未设"
    )
    token: Secret = Field(default=None, description="Milvus 的 用户名:密码 或密钥；空为不带")
    token_file: SecretFile = Field(
        default=None, description="从文件读 token：只有一行，首尾空白不计；与 token 二选一"
    )
    database: MilvusName = Field(default="", description="Milvus 中的数据库；空为缺省的")
    prefix: MilvusName = Field(
        default="cg_rag",
        description="集合名的开头，其后是索引的指纹；几个服务共用一套 Milvus 时各取一个",
    )
    timeout_seconds: float = Field(default=5.0, ge=0.1, le=600, description="一次向量检索的时限")


class IndexSettings(Section):
    dir: Folder = Field(
        default_factory=lambda: default_index_dir(os.environ),
        description="索引所在文件夹；空为用户数据目录，相对路径以配置文件所在文件夹为准",
    )
    poll_seconds: float = Field(
        default=2.0, ge=0, le=3600, description="每隔多久查看有无新索引；0 为不查看，重启才换"
    )
    kernel: Literal["numpy", "onnx"] = Field(
        default="numpy", description="扫描向量所用的计算核，结果相同；本机 CPU 不适用 onnx 时仍用 numpy"
    )
    dtype: Literal["int8"] = Field(default="int8", description="扫描所用向量的类型；目前仅此一种")
    backend: Literal["numpy", "milvus"] = Field(
        default="numpy",
        description="由谁检索向量：numpy 为本进程，milvus 为 Milvus（须先 cg-rag index push）",
    )
    milvus: MilvusSettings = Field(default_factory=MilvusSettings)

    @model_validator(mode="after")
    def _engine_is_named(self) -> Self:
        if self.backend == "milvus" and not self.milvus.uri:
            refuse("index.backend", "为 milvus 时须设置 index.milvus.uri。")
        return self


class EmbeddingSettings(Section):
    provider: Literal["onnx", "http", "none"] = Field(
        default="onnx", description="向量从何而来：onnx 为本机模型，http 为向量接口，none 为不用向量"
    )
    model_dir: Folder | None = Field(
        default=None,
        description="onnx 的模型文件夹；空为自带的 e5-small-zh，相对路径以配置文件所在文件夹为准",
    )
    threads: int = Field(default=1, ge=1, le=64, description="onnx 一次计算所用的线程数")
    endpoint: Endpoint = Field(
        default="", description="http 的接口地址，到 /v1 为止或以 /embeddings 结尾；空为未设"
    )
    model: ModelName = Field(default="", description="http 的模型名称；空为未设")
    dim: int = Field(default=0, ge=0, le=8192, description="http 的向量维度；0 为未设")
    query_template: QueryTemplate = Field(default="{text}", description="http 的问题写法")
    passage_template: ArticleTemplate = Field(
        default="{law_name}{article_number} {contents}", description="http 的条文写法"
    )
    api_key: Secret = Field(default=None, description="http 的密钥；空为不带密钥")
    api_key_file: SecretFile = Field(default=None, description=SECRET_FILE_WORDS)
    timeout_seconds: float = Field(default=10.0, ge=0.1, le=600, description="http 一次调用的时限，含重试")
    batch: int = Field(default=32, ge=1, le=1024, description="http 一次请求至多带多少条文")

    @model_validator(mode="after")
    def _endpoint_is_described(self) -> Self:
        needed = {"endpoint": self.endpoint, "model": self.model, "dim": self.dim}
        absent = [f"embedding.{name}" for name, value in needed.items() if not value]
        if self.provider == "http" and absent:
            refuse("embedding.provider", f"为 http 时须设置 {'、'.join(absent)}。")
        return self


class RetrievalSettings(Section):
    degrade: bool = Field(
        default=True, description="某一检索环节失败时降级作答并给出 warnings；false 则整次失败"
    )
    min_score: float | None = Field(
        default=None,
        ge=-1,
        le=1000000,
        description="低于此分的条文不返回：用到向量时比余弦（0..1），否则比字面分；空为不设，宁缺毋滥时再设",
    )
    dense_weight: float = Field(
        default=0.6, ge=0, le=1, description="向量与字面并用时向量所占的权重，其余归字面"
    )


# `local` is no server: it chooses by the scores of retrieval.
GenerationProvider = Literal[ProviderName, "local"]


class ChatSettings(Section):
    """A model behind chat completions; the sections below say what is different with theirs."""

    provider: GenerationProvider = Field(default="auto", description="模型服务的种类：auto 按地址判断")
    endpoint: Endpoint = Field(
        default="", description="接口地址，到 /v1 为止或以 /chat/completions 结尾；空为未配置"
    )
    model: ModelName = Field(default="", description="模型名称；空为未配置")
    api_key: Secret = Field(default=None, description="密钥；空则用顶层的 api_key")
    api_key_file: SecretFile = Field(default=None, description=SECRET_FILE_WORDS)
    enable_thinking: bool = Field(default=False, description="让模型先思考再作答；更慢")
    streaming: bool = Field(default=True, description="流式调用上游；仅在上游的流式有毛病时关闭")
    thinking_control: ThinkingControl | None = Field(
        default=None, description="请求中开关思考的写法；null 为按 provider"
    )
    structured_output: StructuredOutput | None = Field(
        default=None, description="请求中约束输出格式的写法；null 为按 provider"
    )
    timeout_seconds: float = Field(default=120.0, ge=0.1, le=3600, description="一次调用的时限")
    first_byte_timeout_seconds: float = Field(
        default=60.0, ge=0.1, le=3600, description="一次调用中等待第一个字节的时限"
    )


class GenerationSettings(ChatSettings):
    provider: GenerationProvider = Field(
        default="auto", description="模型服务的种类：auto 按地址判断，local 为不用模型、按检索分数选条文"
    )

    @model_validator(mode="after")
    def _endpoint_has_a_model(self) -> Self:
        if self.provider != "local":
            check_pair("generation", self.endpoint, self.model)
        return self


def check_pair(section: str, endpoint: str, model: str) -> None:
    """Refuse an endpoint without a model and a model without an endpoint."""
    if bool(endpoint) == bool(model):
        return
    given, absent = ("endpoint", "model") if endpoint else ("model", "endpoint")
    refuse(f"{section}.{given}", f"已设置而 {section}.{absent} 未设置，两者须同时给出。")


class HybridGenerationSettings(ChatSettings):
    """The text model of vision/hybrid: endpoint, model and key are needed, or the mode is not configured."""

    provider: ProviderName = Field(default="auto", description="模型服务的种类：auto 按地址判断")
    api_key: Secret = Field(default=None, description="密钥；不可缺少，不用顶层的 api_key")


class VisionSettings(ChatSettings):
    """Without endpoint or model the vision modes are not configured; nothing else is the worse for it."""

    provider: ProviderName = Field(default="auto", description="模型服务的种类：auto 按地址判断")
    profile: ProfileName | None = Field(
        default=None, description="视觉版本；null 为按 agentic_workflow，两者都没有则为 e10"
    )
    agentic_workflow: Workflow | None = Field(
        default=None, description="旧键，仅在没有 profile 时有效：continuous 即 e10，controller 即 controller"
    )
    total_budget_seconds: float | None = Field(
        default=None, ge=1, le=3600, description="整单墙钟预算，排队在内；null 为按视觉版本（150 秒）"
    )
    sse_heartbeat_seconds: float = Field(
        default=15.0, ge=0, le=3600, description="流中多久没有内容就发一次心跳，所有流式接口共用；0 为不发"
    )
    strict_retrieval_failure: bool | None = Field(
        default=None, description="检索全部失败时在成文前拒绝请求；null 为按视觉版本"
    )
    max_images: int = Field(default=4, ge=1, le=64, description="一次请求的图片张数上限")
    max_image_bytes: int = Field(default=16777216, ge=1, le=268435456, description="一张图片解码后的字节上限")
    max_image_pixels: int = Field(
        default=100000000, ge=1, le=10000000000, description="一张图片的像素上限，按文件头所写的宽乘高"
    )
    max_search_rounds: int = Field(
        default=2, ge=1, le=3, description="智能生成的检索轮数上限，请求未指明时用它"
    )
    topk: int = Field(default=12, ge=1, le=200, description="智能生成每轮的检索候选数，请求未指明时用它")


class CriteriaSettings(Section):
    file: File | None = Field(
        default=None, description="重大事故隐患判定标准的条款清单；空为自带的，各地可换成官方全文"
    )


class RetrievalCapacity(Section):
    max: int = Field(default=16, ge=1, le=1024, description="同时进行的检索数")


class GenerationCapacity(Section):
    max: int = Field(default=4, ge=1, le=1024, description="同时进行的生成数；与上游模型的并发能力一致")


class VisionCapacity(Section):
    max: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="同时进行的视觉请求数；null 为与文字生成共用 generation 的空位",
    )


class CapacitySettings(Section):
    retrieval: RetrievalCapacity = Field(default_factory=RetrievalCapacity)
    generation: GenerationCapacity = Field(default_factory=GenerationCapacity)
    vision: VisionCapacity = Field(default_factory=VisionCapacity)
    wait_timeout_seconds: float = Field(
        default=5.0, ge=0, le=600, description="排队等待空位的最长时间，超过即 429"
    )


class CacheSettings(Section):
    max_bytes: int = Field(
        default=33554432, ge=0, le=68719476736, description="检索缓存的字节上限；0 为不缓存"
    )
    ttl_seconds: float = Field(default=3600.0, ge=1, le=2592000, description="一条缓存的有效时间")


class McpSettings(Section):
    enabled: bool = Field(default=True, description="开放 MCP 入口；首个请求到来时才导入（约一秒，30 MB）")
    allowed_origins: Origins = Field(
        default=(), description="除本机与同一地址外，还允许哪些网页来源（Origin）调用 MCP 入口"
    )


class Settings(Section):
    """Everything that an operator may set. load() makes paths absolute and reads the key files."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    active_scope: Scope = Field(default="full", description="请求未指明 scope 时的检索范围")
    profiles: Profiles = Field(
        default_factory=lambda: {"full": Profile(label="全库", include="all")},
        description="检索范围：名称到 label、retrieval_method、include 的映射",
    )
    index: IndexSettings = Field(default_factory=IndexSettings)
    embedding: EmbeddingSettings = Field(default_factory=EmbeddingSettings)
    retrieval: RetrievalSettings = Field(default_factory=RetrievalSettings)
    rerank: RerankSettings = Field(default_factory=RerankSettings)
    api_key: Secret = Field(default=None, description="上游模型共用的密钥；各节没有自己的密钥时用它")
    api_key_file: SecretFile = Field(default=None, description=SECRET_FILE_WORDS)
    generation: GenerationSettings = Field(default_factory=GenerationSettings)
    hybrid_generation: HybridGenerationSettings = Field(default_factory=HybridGenerationSettings)
    vision: VisionSettings = Field(default_factory=VisionSettings)
    criteria: CriteriaSettings = Field(default_factory=CriteriaSettings)
    capacity: CapacitySettings = Field(default_factory=CapacitySettings)
    cache: CacheSettings = Field(default_factory=CacheSettings)
    mcp: McpSettings = Field(default_factory=McpSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    strict_prompt_pins: bool = Field(
        default=False, description="提示词文件与 prompts/pins.json 的指纹不符时拒绝启动；false 则只告警"
    )

    @model_validator(mode="after")
    def _active_scope_exists(self) -> Self:
        if self.active_scope not in self.profiles:
            refuse(
                "active_scope",
                f"须为 profiles 中的一个（{'、'.join(self.profiles)}），收到 {self.active_scope}。",
            )
        return self


def generation_api_key(settings: Settings) -> SecretStr | None:
    """The key to send with text generation: its own, else the shared one, else none."""
    return settings.generation.api_key or settings.api_key

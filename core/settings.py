"""Every setting once: its key, type, default, bounds and meaning.

Rule: nothing about a setting is said twice. Its environment name, the sentence of an error message, the
comment in config.yaml and the row in docs/config.md derive from the models; tests hold the two files to them.
"""

from __future__ import annotations

import ipaddress
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

SCOPE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# A comma separates keys in CG_RAG_SERVER_API_KEYS; 512 keeps a key well inside one header line.
API_KEY = re.compile(r"[\x21-\x2b\x2d-\x7e]{16,512}")


def refuse(key: str, problem: str) -> NoReturn:
    """Raise the pydantic error that config.py prints as `<key> <problem>`; `key` "" is the field itself."""
    raise PydanticCustomError("rule", "{problem}", {"key": key, "problem": problem})


@dataclass(frozen=True, slots=True)
class Rule:
    """What a text must be: the words that a person reads, and the test."""

    words: str
    test: Callable[[str], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if not self.test(str(value)):
            refuse("", "")
        return value


def _is_one_line(text: str) -> bool:
    # Names of laws do hold ideographic spaces, which str.isprintable refuses.
    return all(c.isprintable() or c == "\u3000" for c in text)


def _is_host(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._:%-]{1,253}", text) is not None


Label = Annotated[str, Rule("1..64 个可见字符", lambda text: 0 < len(text) <= 64 and _is_one_line(text))]
Name = Annotated[str, Rule("1..200 个可见字符", lambda text: 0 < len(text) <= 200 and _is_one_line(text))]
Host = Annotated[str, Rule("IP 地址或主机名", _is_host)]
Scope = Annotated[str, Rule("profiles 中的一个名称", lambda text: bool(SCOPE_NAME.fullmatch(text)))]
Folder = Annotated[Path, Rule("文件夹路径", _is_one_line)]
File = Annotated[Path, Rule("文件路径", _is_one_line)]


def check_api_keys(value: object) -> Mapping[str, SecretStr]:
    """`{name: key}` or (name, key) pairs -> a read-only mapping.

    A refusal counts entries from 1 and quotes neither side: a key written in place of the name stays secret.
    """
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        refuse("", "须为“名称: 密钥”的映射（环境变量与密钥文件中写作 名称=密钥），内容不予显示。")
    keys: dict[str, str] = {}
    for number, (name, key) in enumerate(pairs, start=1):
        secret = key.get_secret_value() if isinstance(key, SecretStr) else key
        if not isinstance(name, str) or not KEY_NAME.fullmatch(name):
            refuse("", f"第 {number} 项的名称须为 1..64 个字母、数字或 . _ -。")
        if not isinstance(secret, str) or not API_KEY.fullmatch(secret):
            refuse(
                "", f"第 {number} 项的密钥须为 16..512 个可见 ASCII 字符，不含空格与逗号（纯数字请加引号）。"
            )
        if name in keys:
            refuse("", f"第 {number} 项的名称与前面的重复。")
        if secret in keys.values():
            refuse("", f"第 {number} 项的密钥与前面的重复，每个名称须有自己的密钥。")
        keys[name] = secret
    return types.MappingProxyType({name: SecretStr(key) for name, key in keys.items()})


ApiKeys = Annotated[Mapping[str, SecretStr], PlainValidator(check_api_keys), PlainSerializer(dict)]


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


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        hide_input_in_errors=True,
    )


class ServerSettings(Section):
    host: Host = Field(default="127.0.0.1", description="监听地址；非本机地址须配密钥或允许匿名")
    port: int = Field(default=8864, ge=0, le=65535, description="监听端口；0 表示任取一个空闲端口")
    api_keys: ApiKeys = Field(default_factory=dict, description="调用方名称到密钥的映射；空为不校验密钥")
    api_keys_file: File | None = Field(
        default=None, description="从文件读密钥：每行 名称=密钥，或 YAML 映射；与 api_keys 二选一"
    )
    allow_anonymous: bool = Field(
        default=False, description="允许在非本机地址上不设密钥；仅在网关已鉴权时开启"
    )
    max_inflight_body_bytes: int = Field(
        default=134217728,
        ge=2097152,  # below the largest body that a route takes, that body could never be admitted
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
    retrieval_method: Literal["lexical"] = Field(default="lexical", description="检索方法；本版仅有字面检索")
    include: Include = Field(description="范围内的条文：all 为全部，或选择器列表，命中任一选择器即在范围内")


def _scopes(profiles: Mapping[str, Profile]) -> Mapping[str, Profile]:
    if not profiles:
        refuse("", "至少要有一个检索范围。")
    for name in profiles:
        if not SCOPE_NAME.fullmatch(name):
            refuse(f"profiles.{name}", "名称须以小写字母开头，由 1..64 个小写字母、数字或下划线组成。")
    return types.MappingProxyType(dict(profiles))


Profiles = Annotated[Mapping[str, Profile], AfterValidator(_scopes), PlainSerializer(dict)]


class IndexSettings(Section):
    dir: Folder = Field(
        default_factory=lambda: default_index_dir(os.environ),
        description="索引所在文件夹；空为用户数据目录，相对路径以配置文件所在文件夹为准",
    )
    poll_seconds: float = Field(
        default=2.0, ge=0, le=3600, description="每隔多久查看有无新索引；0 为不查看，重启才换"
    )


class RetrievalSettings(Section):
    degrade: bool = Field(
        default=True, description="某一检索环节失败时降级作答并给出 warnings；false 则整次失败"
    )
    min_score: float | None = Field(
        default=None, ge=0, le=1000000, description="低于此分的条文不返回；空为不设，宁缺毋滥时再设"
    )


class RetrievalCapacity(Section):
    max: int = Field(default=16, ge=1, le=1024, description="同时进行的检索数")


class GenerationCapacity(Section):
    max: int = Field(default=4, ge=1, le=1024, description="同时进行的生成数；与上游模型的并发能力一致")


class CapacitySettings(Section):
    retrieval: RetrievalCapacity = Field(default_factory=RetrievalCapacity)
    generation: GenerationCapacity = Field(default_factory=GenerationCapacity)
    wait_timeout_seconds: float = Field(
        default=5.0, ge=0, le=600, description="排队等待空位的最长时间，超过即 429"
    )


class CacheSettings(Section):
    max_bytes: int = Field(
        default=33554432, ge=0, le=68719476736, description="检索缓存的字节上限；0 为不缓存"
    )
    ttl_seconds: float = Field(default=3600.0, ge=1, le=2592000, description="一条缓存的有效时间")


class LogSettings(Section):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="日志级别")
    format: Literal["json", "text"] = Field(
        default="json", description="日志格式：json 供机器读，text 供人读"
    )


class Settings(Section):
    """Everything that an operator may set. load() makes paths absolute and reads the key file."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    active_scope: Scope = Field(default="full", description="请求未指明 scope 时的检索范围")
    profiles: Profiles = Field(
        default_factory=lambda: {"full": Profile(label="全库", include="all")},
        description="检索范围：名称到 label、retrieval_method、include 的映射",
    )
    index: IndexSettings = Field(default_factory=IndexSettings)
    retrieval: RetrievalSettings = Field(default_factory=RetrievalSettings)
    capacity: CapacitySettings = Field(default_factory=CapacitySettings)
    cache: CacheSettings = Field(default_factory=CacheSettings)
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


INDEX_DIR = ("index", "dir")

Kind = Literal["bool", "int", "float", "text", "path", "choice", "keys", "map"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings.

    `path` is its place under `cg_rag` (("profiles", "<scope>", "include", "[]", "law") for what repeats),
    `env` its environment variable or None for what only a file can say, `rule` the values allowed in words,
    `default` as YAML would write it.
    """

    path: tuple[str, ...]
    env: str | None
    kind: Kind
    optional: bool
    rule: str
    default: Any
    required: bool
    description: str

    @property
    def key(self) -> str:
        return ".".join(self.path).replace(".[]", "[]")


@cache
def settings_table() -> tuple[Setting, ...]:
    """Every setting in the order of the models. Sections are no rows; `profiles` and what is below it are."""
    return tuple(_rows(Settings, ()))


def _rows(model: type[BaseModel], prefix: tuple[str, ...]) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _rows(field.annotation, path)
            continue
        yield _row(path, field)
        if path == ("profiles",):
            yield from _rows(Profile, (*path, "<scope>"))
        if path == ("profiles", "<scope>", "include"):
            yield from _rows(Selector, (*path, "[]"))


def _row(path: tuple[str, ...], field: Any) -> Setting:
    kind, words, optional = _describe(field.annotation, field.metadata)
    default: Any = None
    if not field.is_required():
        default = "" if path == INDEX_DIR else _plain_default(field.get_default(call_default_factory=True))
    return Setting(
        path=path,
        env=None if path[0] == "profiles" else "CG_RAG_" + "_".join(path).upper(),
        kind=kind,
        optional=optional,
        rule=words + ("或 null" if optional else ""),
        default=default,
        required=field.is_required(),
        description=field.description,
    )


def _plain_default(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: item.model_dump() if isinstance(item, Section) else item for name, item in value.items()}


def _describe(annotation: Any, metadata: list[Any]) -> tuple[Kind, str, bool]:
    """(kind, allowed values in words, whether null is allowed) of one annotated type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType) and type(None) in arguments:
        kind, words, _ = _describe(next(a for a in arguments if a is not type(None)), metadata)
        return kind, words, True
    if origin is Annotated:
        return _describe(arguments[0], [*metadata, *arguments[1:]])
    if origin is Literal:
        return "choice", " 或 ".join(arguments), False
    if annotation is bool:
        return "bool", "true 或 false", False
    if annotation in (int, float):
        low = next(m.ge for m in metadata if hasattr(m, "ge"))
        high = next(m.le for m in metadata if hasattr(m, "le"))
        is_int = annotation is int
        return ("int" if is_int else "float"), f"{low}..{high} 的{'整数' if is_int else '数'}", False
    if annotation in (str, Path):
        return (
            ("path" if annotation is Path else "text"),
            next(m.words for m in metadata if isinstance(m, Rule)),
            False,
        )
    if PlainSerializer in map(type, metadata):
        is_keys = any(isinstance(m, PlainValidator) for m in metadata)
        return ("keys", "名称到密钥的映射", False) if is_keys else ("map", "名称到范围的映射", False)
    return "map", "all 或选择器列表", False

"""The types of settings: what a value must be, and the words that say so.

Rule: a type that may hold a secret (keys, and URLs, in which people put keys) is never quoted when refused.
"""

from __future__ import annotations

import ipaddress
import re
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SecretStr,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_MILVUS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
SCOPE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# A comma separates keys in CG_RAG_SERVER_API_KEYS; 512 keeps a key well inside one header line.
API_KEY = re.compile(r"[\x21-\x2b\x2d-\x7e]{16,512}")
# What an Authorization header carries unchanged: spaces at an end would be lost on the way.
SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,4094}[\x21-\x7e])?")
SECRET_WORDS = "1..4096 个可打印 ASCII 字符（首尾非空格，不全为星号）"
# Without @ ? # and backslash: beside these stand passwords, queries and fragments, in which keys hide.
URL = re.compile(r"[!\"$->A-\[\]-~]{1,2000}")
MAX_TEMPLATE_CHARS = 2000


def or_null(rule: str) -> str:
    """`rule`, and null besides; a Latin word keeps its distance from the Chinese one."""
    return rule + (" 或 null" if rule[-1:].isascii() else "或 null")


def refuse(key: str, problem: str) -> NoReturn:
    """Raise the pydantic error that config.py prints as `<key> <problem>`; `key` "" is the field itself."""
    raise PydanticCustomError("rule", "{problem}", {"key": key, "problem": problem})


@dataclass(frozen=True, slots=True)
class Rule:
    """What a text must be: the words that a person reads, the test, and whether a refusal may quote the text."""

    words: str
    test: Callable[[str], bool]
    is_quoted: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        if not self.test(text):
            refuse("", "")
        return value


def _is_one_line(text: str) -> bool:
    # Names of laws do hold ideographic spaces, which str.isprintable refuses.
    return all(c.isprintable() or c == "\u3000" for c in text)


def _is_host(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._:%-]{1,253}", text) is not None


def is_endpoint(text: str) -> bool:
    """Whether `text` is an http(s) URL in ASCII, with a host, without user, password, query and fragment."""
    if not URL.fullmatch(text):
        return False
    try:
        url = urlsplit(text)
        url.port  # noqa: B018 - raises for one that is none
    except ValueError:
        return False
    return url.scheme in ("http", "https") and _is_url_host(url.hostname or "")


def is_origin(text: str) -> bool:
    """Whether `text` is an Origin as browsers write it: scheme and host, a port that is not the default."""
    return re.fullmatch(r"[a-z][a-z0-9+.-]{0,30}://[a-z0-9._:\[\]-]{1,255}", text) is not None


def _is_url_host(host: str) -> bool:
    if ":" not in host:
        # RFC 1035: a label is at most 63 letters, a name 253; the look-up of a longer one is no OSError.
        is_name = re.fullmatch(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", host)
        return is_name is not None and len(host) <= 253
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _is_secret(text: str) -> bool:
    # Stars alone are the mask of `config check`: its output is no configuration to be used as it is.
    return SECRET.fullmatch(text) is not None and set(text) != {"*"}


def _is_template(text: str, required: str, names: Collection[str]) -> bool:
    """The test of index/embedder.py (Templates), which core cannot import."""
    if len(text) > MAX_TEMPLATE_CHARS or not _is_one_line(text.replace("\n", "")):
        return False
    try:
        holes = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(text)]
    except ValueError:
        return False
    used = [name for name, _, _ in holes if name is not None]
    return required in used and set(used) <= set(names) and not any(s or c for _, s, c in holes)


def template_rule(required: str, *others: str) -> Rule:
    """A text with {holes}: `required` must be there, `others` may be, {{ and }} are braces themselves."""
    names = (required, *others)
    also = f"，还可用 {'、'.join('{' + name + '}' for name in others)}" if others else ""
    words = f"含 {{{required}}} 的模板{also}（花括号本身写两遍）"
    return Rule(words, lambda text: _is_template(text, required, names))


Label = Annotated[str, Rule("1..64 个可见字符", lambda text: 0 < len(text) <= 64 and _is_one_line(text))]
Name = Annotated[str, Rule("1..200 个可见字符", lambda text: 0 < len(text) <= 200 and _is_one_line(text))]
Host = Annotated[str, Rule("IP 地址或主机名", _is_host)]
Scope = Annotated[str, Rule("profiles 中的一个名称", lambda text: bool(SCOPE_NAME.fullmatch(text)))]
Folder = Annotated[Path, Rule("文件夹路径", _is_one_line)]
File = Annotated[Path, Rule("文件路径", _is_one_line)]
ModelName = Annotated[str, Rule("至多 200 个可见字符", lambda text: len(text) <= 200 and _is_one_line(text))]
Endpoint = Annotated[
    str,
    Rule(
        "http:// 或 https:// 开头的地址，不含 @ ? # 与空格",
        lambda text: not text or is_endpoint(text),
        is_quoted=False,
    ),
]
MilvusUri = Annotated[
    str,
    Rule(
        "http:// 或 https:// 开头的地址，不含 @ ? # 与空格，或以 .db 结尾的绝对路径",
        lambda text: not text or is_endpoint(text) or (text.startswith("/") and text.endswith(".db")),
        is_quoted=False,
    ),
]
# Milvus, limits: letters, digits and underscores, not a digit first; with the fingerprint it stays below 255.
MilvusName = Annotated[
    str,
    Rule(
        "至多 64 个字母、数字或下划线，不以数字开头",
        lambda text: not text or bool(_MILVUS_NAME.fullmatch(text)),
    ),
]
Origin = Annotated[str, Rule("协议://主机[:端口]（小写，末尾没有 /）", is_origin)]
# `strict` would refuse the list that YAML gives.
Origins = Annotated[tuple[Origin, ...], Field(strict=False)]
# Its sibling `…_file` is declared beside it as SecretFile; config_layers.py ties the two by their names.
Secret = Annotated[
    Annotated[SecretStr, Rule(SECRET_WORDS, _is_secret, is_quoted=False)] | None,
    BeforeValidator(lambda value: None if value == "" else value),
]
SecretFile = File | None
SECRET_FILE_WORDS = "从文件读 api_key：只有一行，首尾空白不计；与 api_key 二选一"
QueryTemplate = Annotated[str, template_rule("text")]
ArticleTemplate = Annotated[str, template_rule("contents", "law_name", "short_law_name", "article_number")]


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


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        hide_input_in_errors=True,
    )

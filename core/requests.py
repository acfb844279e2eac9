"""Field types that request models share, and the one Chinese message for a body that does not fit its model.

Rule: a model here is the only description of a request. HTTP validation, openapi.json and (with the MCP endpoint)
the tool schemas are made from it, so that no two of them can disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from cg_rag.core.body import LongString
from cg_rag.core.errors import CgError
from cg_rag.core.setting_types import or_null

MAX_QUERY_CHARACTERS = 2000
MAX_TOPK = 200
MAX_TEXT_CHARACTERS = 20_000

# A longer query is an error and never cut: half a question would be answered as if it were the whole one.
Query = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_QUERY_CHARACTERS)
]
TopK = Annotated[int, Field(ge=1, le=MAX_TOPK)]


def _short_text(value: object) -> object:
    """Text of 20,000 characters is more than 64 KiB of JSON where each is escaped."""
    is_short = isinstance(value, LongString) and value.num_bytes <= 4 * MAX_TEXT_CHARACTERS
    return value.text() if is_short and isinstance(value, LongString) else value


# One side of an earlier turn.
LongText = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARACTERS), BeforeValidator(_short_text)]

# An article, or a text to be verified. One annotation for all: a nested one would measure the text before it is stripped.
Text = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_TEXT_CHARACTERS),
    BeforeValidator(_short_text),
]


def without_default(schema: dict[str, Any]) -> None:
    """`json_schema_extra` of a field whose default is decided at run time."""
    schema.pop("default", None)


class RequestModel(BaseModel):
    """Strict types (`true` is no number, `1.0` no integer); unknown fields are ignored for newer callers."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


Model = TypeVar("Model", bound=RequestModel)


def parse_request(model: type[Model], body: Mapping[str, Any]) -> Model:
    """Check `body` against `model`; raises `invalid_request` naming the first bad field, its rule and the value."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=True)[0]
        raise _invalid_field(first, model.model_json_schema()) from None


_TYPES = {
    "string": "字符串",
    "integer": "整数",
    "number": "数字",
    "boolean": "布尔值 true 或 false",
    "array": "数组",
    "object": "对象",
}


def _invalid_field(error: ErrorDetails, schema: Mapping[str, Any]) -> CgError:
    path = _path(error["loc"])
    if error["type"] == "missing":
        return CgError("invalid_request", f"缺少必填字段 {path}。", {"field": path})
    rule = _rule(_find_schema(schema, error["loc"]))
    found = describe(error["input"])
    return CgError("invalid_request", f"{path} {rule}，收到{found}。", {"field": path, "rule": rule})


def _path(loc: Sequence[int | str]) -> str:
    """("images", 0, "data") -> images[0].data"""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc]
    return "".join(parts).removeprefix(".")


def _find_schema(schema: Mapping[str, Any], loc: Sequence[int | str]) -> Mapping[str, Any]:
    node: Mapping[str, Any] = schema
    for part in loc:
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
        while "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node


def _rule(node: Mapping[str, Any]) -> str:
    """The rule of a field, in words, from its JSON schema."""
    options = [option for option in node.get("anyOf", [node]) if option.get("type") != "null"]
    nullable = len(options) < len(node.get("anyOf", [node]))
    option = options[0] if options else {}
    rule = "须为" + _TYPES.get(option.get("type", ""), "合法的值")
    if "minimum" in option:
        top = option.get("maximum")
        rule = (
            "须为"
            + (f"不小于 {option['minimum']}" if top is None else f" {option['minimum']}..{top}")
            + " 的整数"
        )
    if "maxLength" in option:
        rule = f"须为 {option.get('minLength', 0)}..{option['maxLength']} 个字符（去除首尾空白后）的字符串"
    if "maxItems" in option:
        rule = f"须为 {option.get('minItems', 0)}..{option['maxItems']} 项的数组"
    elif "minItems" in option:
        rule = f"须为至少 {option['minItems']} 项的数组"
    return or_null(rule) if nullable else rule


def describe(value: object) -> str:
    """What came instead: short, and never more than a few characters of the caller's text."""
    if value is None:
        return " null"
    if isinstance(value, bool):
        return f"布尔值 {str(value).lower()}"
    if isinstance(value, int | float):
        return f" {value}"
    if isinstance(value, str):
        length = len(value.strip())
        return f" {length} 个字符的字符串" if length else "空字符串"
    if isinstance(value, LongString):
        return f" {value.num_bytes} 字节的字符串"
    if isinstance(value, list):
        return f" {len(value)} 项的数组"
    return "对象"

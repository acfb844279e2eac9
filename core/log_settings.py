"""The settings of the log."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from cg_rag.core.setting_types import File, Rule, Section

_UTC_OFFSET = re.compile(r"[+-](?:0\d|1[0-4]):[0-5]\d")

UtcOffset = Annotated[
    str,
    Rule(
        "+HH:MM 或 -HH:MM（YAML 中加引号），或空", lambda text: not text or bool(_UTC_OFFSET.fullmatch(text))
    ),
]


class LogSettings(Section):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="日志级别")
    format: Literal["json", "text"] = Field(
        default="json", description="日志格式：json 供机器读，text 供人读"
    )
    file: File | None = Field(
        default=None, description="日志写入的文件，被移走或删除后自动重新打开；空为写到标准错误"
    )
    utc_offset: UtcOffset = Field(
        default="", description="日志时间所用的时区，如 +08:00；空为系统时区，容器中没有时区数据时须设"
    )
    contents: bool = Field(
        default=False,
        description="在请求日志中记下问题与答复（各至多 4000 个字符），图片除外；仅在需要审计内容时开启",
    )

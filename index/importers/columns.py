"""Which column of a table stands for which field of an article, where a site calls its columns otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cg_rag.index.errors import SourceInvalid
from cg_rag.index.importers.input_file import ColumnMap
from cg_rag.index.importers.record import RESERVED_FIELDS, RecordInvalid

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# A comma separates two entries only where another `field=` follows: names of columns hold commas too.
_SEPARATOR = re.compile(r"[,，](?=\s*[A-Za-z_][A-Za-z0-9_]*=)")


def parse_columns(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`["law_name=法规名称,contents=正文", "contents=内容"]` -> {"law_name": ("法规名称",), "contents": ("正文", "内容")}.

    Several columns of one field are alternatives for several files. Raises SourceInvalid.
    """
    columns: dict[str, tuple[str, ...]] = {}
    for text in texts:
        for entry in _SEPARATOR.split(text):
            name, equals, column = (part.strip() for part in entry.partition("="))
            if not equals or not column or not _FIELD.fullmatch(name):
                raise SourceInvalid(
                    f"--map {entry}", "格式为 字段=列名，多个以逗号分隔，如 law_name=法规名称,contents=正文"
                )
            if name in RESERVED_FIELDS:
                raise SourceInvalid(f"--map {entry}", f"{name} 为服务所用，不能作为字段")
            columns[name] = (*columns.get(name, ()), column)
    owners = [column for names in columns.values() for column in names]
    twice = sorted({column for column in owners if owners.count(column) > 1})
    if twice:
        raise SourceInvalid("--map", f"列 {'、'.join(twice)} 对应了两个字段")
    return columns


def rename_columns(names: Iterable[str], columns: ColumnMap) -> list[str]:
    """The fields that `names` stand for, in their order. Raises RecordInvalid when two stand for one field."""
    field_of = {column: field for field, alternatives in columns.items() for column in alternatives}
    seen: dict[str, str] = {}
    fields = []
    for name in names:
        field = field_of.get(name, name)
        if field and field in seen:
            raise RecordInvalid(f"{seen[field]}、{name} 都对应 {field}" if field_of else f"重复的列名 {name}")
        seen[field] = name
        fields.append(field)
    return fields


def rename_fields(record: Mapping[str, Any], columns: ColumnMap) -> Mapping[str, Any]:
    """The record under the names of its fields; an empty alternative gives way. Raises RecordInvalid."""
    if not columns:
        return record
    given = {name: value for name, value in record.items() if value is not None and value != ""}
    return dict(zip(rename_columns(given, columns), given.values(), strict=True))

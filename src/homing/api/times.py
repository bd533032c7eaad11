"""Marks the time fields in the OpenAPI document, with their format and pattern."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import inspect

_PATTERN = r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$"


def tell_times(kinds: Iterable[Any], components: Mapping[str, Any]) -> None:
    """Adds the date-time format and a pattern to every time field in the component schemas.

    The pattern states exactly what the service accepts, because many tools treat the format as a hint only.
    msgspec itself marks only fields that require a time zone, but all times of the service have one.
    """
    seen: set[Any] = set()
    for info in inspect.multi_type_info(kinds):
        for struct in _structs(info, seen):
            for field in struct.fields:
                if any(isinstance(choice, inspect.DateTimeType) for choice in _choices(field.type)):
                    _mark(components[struct.cls.__name__]["properties"][field.encode_name])


def _structs(info: inspect.Type, seen: set[Any]) -> Iterator[inspect.StructType]:
    """Yields the structs in a type that are not in `seen`, and adds them to it."""
    match info:
        case inspect.StructType(cls=kind, fields=fields) if kind not in seen:
            seen.add(kind)
            yield info
            for field in fields:
                yield from _structs(field.type, seen)
        case inspect.UnionType(types=types):
            for choice in types:
                yield from _structs(choice, seen)
        case inspect.CollectionType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _structs(item, seen)
        case inspect.DictType(value_type=value):
            yield from _structs(value, seen)
        case inspect.Metadata(type=inner):
            yield from _structs(inner, seen)


def _choices(info: inspect.Type) -> Iterator[inspect.Type]:
    match info:
        case inspect.Metadata(type=inner):
            yield from _choices(inner)
        case inspect.UnionType(types=types):
            for choice in types:
                yield from _choices(choice)
        case _:
            yield info


def _mark(schema: dict[str, Any]) -> None:
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") == "string":
            choice |= {"format": "date-time", "pattern": _PATTERN}

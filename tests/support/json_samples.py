"""JSON samples of any struct, and the places in them where a field could be added."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect
from msgspec.inspect import Type

TEXTS = ("email", "primary", "critical", "22:00", "en-US", "simple", "*", "key=value")
"""Texts of which one matches each pattern."""

Path = tuple[str | int, ...]


def sample(info: Type) -> Any:
    """Returns JSON that has every field of the type, and one item in each list and mapping."""
    match info:
        case inspect.Metadata(type=inner):
            return sample(inner)
        case inspect.StructType(fields=fields):
            return {field.encode_name: sample(field.type) for field in fields}
        case inspect.UnionType(types=types):
            return sample(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.CollectionType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [sample(item)]
        case inspect.DictType(key_type=key, value_type=value):
            return {sample(key): sample(value)}
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.DateTimeType():
            return "2026-01-31T12:00:00Z"
        case inspect.BoolType():
            return True
        case inspect.IntType(ge=least) | inspect.FloatType(ge=least):
            return least or 1
        case inspect.StrType(pattern=pattern):
            return next(text for text in TEXTS if re.search(pattern or "", text))
        case _:
            return {"a": 1}


def objects(info: Type, value: Any, path: Path = ()) -> Iterator[Path]:
    """Yields the path of each JSON object that is a struct, which has named fields."""
    match info:
        case inspect.Metadata(type=inner):
            yield from objects(inner, value, path)
        case inspect.StructType(fields=fields):
            yield path
            for field in fields:
                yield from objects(field.type, value[field.encode_name], (*path, field.encode_name))
        case inspect.UnionType(types=types):
            for one in types:
                yield from objects(one, value, path)
        case inspect.CollectionType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from objects(item, value[0], (*path, 0))
        case inspect.DictType(value_type=item):
            for key, member in value.items():
                yield from objects(item, member, (*path, key))


def with_member(value: Any, path: Path, name: str) -> Any:
    """Returns a copy of the value with one more member in the object at the path."""
    changed = at = copy.deepcopy(value)
    for step in path:
        at = at[step]
    at[name] = 1
    return changed


def written(path: Path) -> str:
    """`("recipients", 0, "email")` → `recipients[0].email`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")

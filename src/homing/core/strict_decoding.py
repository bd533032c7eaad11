"""Decodes request bodies, and refuses unknown fields at every depth with their path.

Structs that are also read from the store or by an older client ignore unknown fields, because a newer release
may have added them. In a request, an unknown field is a mistake, such as `htlm` for `html`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import or_
from types import GenericAlias
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, inspect

from homing.core.plain_values import member_path
from homing.core.request_decoding import unknown_field_problem

_T = TypeVar("_T")

_SCALAR: Any = bool | int | float | str | None


class StrictDecoder(Generic[_T]):
    """Decodes JSON to a type. Raises `msgspec.ValidationError` for an unknown field at any depth.

    If the type contains structs that ignore unknown fields, the JSON is read a second time as an outline:
    structs with the same field names and without values. This costs a small part of the first time.
    """

    def __init__(self, kind: type[_T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        outline = _outline(inspect.type_info(kind))
        self._check = None if outline is None else msgspec.json.Decoder(outline).decode

    def decode(self, raw: bytes | Raw) -> _T:
        found = self._decode(raw)
        if self._check is not None:
            self._check(raw)
        return found


def explain_unknown_field(value: Any, kind: Any) -> tuple[str, str] | None:
    """Returns the path of the first unknown field in a value, and what is wrong with it.

    The value consists of mappings, sequences and plain values, such as decoded JSON. Returns None if all
    fields are known.
    """
    for path, name, known in _unknown_fields(value, _type_info(kind), ""):
        return path, unknown_field_problem(name, known)
    return None


@cache
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)  # slow: 0.8 ms for `SendRequest`


def _unknown_fields(value: Any, info: inspect.Type, where: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields the path and the name of each unknown field, and the known fields of its struct."""
    match info, value:
        case inspect.Metadata(type=inner), _:
            yield from _unknown_fields(value, inner, where)
        case inspect.UnionType(types=types), _:
            for choice in types:
                yield from _unknown_fields(value, choice, where)
        case inspect.StructType(fields=fields), Mapping():
            known = {field.encode_name: field.type for field in fields}
            for name, member in value.items():
                path = member_path(where, str(name)).removeprefix(".")
                if name not in known:
                    yield path, str(name), tuple(known)
                else:
                    yield from _unknown_fields(member, known[name], path)
        case inspect.CollectionType(item_type=item), (list() | tuple()):
            for index, member in enumerate(value):
                yield from _unknown_fields(member, item, f"{where}[{index}]")
        case inspect.DictType(value_type=item), Mapping():
            for name, member in value.items():
                yield from _unknown_fields(member, item, member_path(where, str(name)).removeprefix("."))


def _outline(info: inspect.Type) -> Any:
    """Returns a type that accepts the same JSON without unknown fields, and whose values are not decoded.

    Returns None if the type contains no struct that ignores unknown fields.
    """
    match info:
        case inspect.Metadata(type=inner):
            return _outline(inner)
        case inspect.UnionType(types=types):
            if not any(map(_outline, types)):
                return None
            return reduce(or_, [_outline(choice) or _not_decoded(choice) for choice in types])
        case inspect.CollectionType(item_type=item):
            return GenericAlias(list, (outline,)) if (outline := _outline(item)) else None
        case inspect.DictType(value_type=item):
            return GenericAlias(dict, (str, outline)) if (outline := _outline(item)) else None
        case inspect.StructType(cls=cls, fields=fields, forbid_unknown_fields=is_strict):
            inside = {field.name: _outline(field.type) for field in fields}
            if is_strict and not any(inside.values()):
                return None
            # The first decoder has checked the names of a strict struct. Here its other fields are skipped.
            checked = [
                (name, outline or Raw, None) for name, outline in inside.items() if outline or not is_strict
            ]
            return msgspec.defstruct(
                f"{cls.__name__}Outline",
                checked,
                rename={field.name: field.encode_name for field in fields},
                forbid_unknown_fields=not is_strict,
                gc=False,
            )
    return None


def _not_decoded(info: inspect.Type) -> Any:
    """Returns a type that accepts all JSON of the same kind: objects, arrays or plain values."""
    match info:
        case inspect.Metadata(type=inner):
            return _not_decoded(inner)
        case inspect.CollectionType():
            return list[Raw]
        case inspect.StructType() | inspect.DictType():
            return dict[str, Raw]
    return _SCALAR

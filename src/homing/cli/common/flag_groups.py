"""Flag groups: flags that several commands have in common, defined once in a dataclass.

Typer reads flags only from the parameters of a function. `with_flags` turns groups into such parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import typer


class FlagGroup:
    """Base class of dataclasses whose fields are flags.

    A command with a parameter of such a class has all its flags, and gets their values in one object. A field
    may be a group itself. `Annotated[Group, LeaveOut("name")]` is a group without some of its flags.
    """

    __slots__ = ()


class LeaveOut:
    """Names the flags of a group that a command does not have. They keep their default values."""

    def __init__(self, *names: str) -> None:
        self.names = names


def with_flags(run: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Returns a function that has one parameter per flag, and calls `run` with an object per group.

    `run` gets the typer context first. `parameters` are its other parameters, in the order of the help.
    """
    flags = [flag for parameter in parameters for flag in _flags(parameter)]

    def call(ctx: typer.Context, **given: Any) -> None:
        run(ctx, **{parameter.name: _value(parameter, given) for parameter in parameters})

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    call.__signature__ = inspect.Signature([context, *flags])  # type: ignore[attr-defined]
    call.__annotations__ = {flag.name: flag.annotation for flag in (context, *flags)}
    return call


def _flags(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yields the flags of a group, or the parameter itself if its type is not a group."""
    group = _group(parameter.annotation)
    if group is None:
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    for member in group.members:
        yield from _flags(member)


def _value(parameter: inspect.Parameter, given: Mapping[str, Any]) -> Any:
    """Returns the value of a parameter from the values of all flags."""
    group = _group(parameter.annotation)
    if group is None:
        return given[parameter.name]
    return group.kind(**{member.name: _value(member, given) for member in group.members})


class _Group:
    """A group as one command has it."""

    def __init__(self, kind: Any, marks: Sequence[LeaveOut]) -> None:
        left_out = {name for mark in marks for name in mark.names}
        self.kind = kind
        self.members = [member for member in _fields(kind) if member.name not in left_out]


def _group(annotation: Any) -> _Group | None:
    """Returns the group that a parameter's type names, or None if the type is not a group."""
    kind, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    return _Group(kind, marks) if isinstance(kind, type) and issubclass(kind, FlagGroup) else None


@cache
def _fields(kind: Any) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(kind, eval_str=True).parameters.values())

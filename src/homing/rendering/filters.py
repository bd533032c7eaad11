"""The filters that a template may use: those whose cost is bounded by the size of their input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2 import Environment, Undefined, pass_environment, pass_eval_context
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.runtime import markup_join, str_join
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from homing.rendering.meter import Stopped, account, rounds, step, weigh, write

_TEXT = (
    *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "title", "trim", "truncate"),
    *("upper", "urlencode", "wordcount"),
)
"""Filters that take a single text or number."""

_PLAIN = (
    *("abs", "count", "d", "default", "dictsort", "filesizeformat", "first", "float", "groupby", "int"),
    *("items", "last", "length", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "select"),
    *("selectattr", "sort", "unique"),
)

_MAX_DECIMALS = 12

Filter = Callable[..., Any]


def text_of(value: Any) -> Any:
    """Returns the value if it is a text or a number, the only types that a template may output.

    `None`, `True` or a whole list in a message would be a mistake visible to the recipient, so they raise
    `RenderStopped`.
    """
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is Markup or isinstance(value, Undefined):
        return value
    if value is None:
        raise Stopped("outputs null; provide the value, or use {{ … | default('', true) }}")
    if kind is bool:
        raise Stopped("outputs true or false; write it in words: {{ 'yes' if … else 'no' }}")
    if isinstance(value, (list, tuple, dict)):
        raise Stopped("outputs a whole list or mapping; loop over it, or use join or tojson")
    raise Stopped("outputs a value that is not text; loop over it, or call it")


def allowed_filters() -> dict[str, Filter]:
    """Returns the filters by name.

    Others (`attr`, `format`, `center`, `indent`, `xmlattr`, …) do not exist.
    """
    found = {name: _metered(FILTERS[name]) for name in _PLAIN}
    found |= {name: _metered(_of_text(FILTERS[name])) for name in _TEXT}
    found |= {name: _metered(own) for name, own in _REPLACED.items()}
    return found | {ROUNDS: rounds, CONCAT: _concat, BUILT: account}


def _metered(inner: Filter) -> Filter:
    @wraps(inner)
    def run(*args: Any, **named: Any) -> Any:
        step(1)
        return account(inner(*args, **named))

    return run


def _of_text(inner: Filter) -> Filter:
    place = 1 if hasattr(inner, "jinja_pass_arg") else 0

    @wraps(inner)
    def run(*args: Any, **named: Any) -> Any:
        value = text_of(args[place])
        step(1 + len(value) // 64 if isinstance(value, str) else 1)
        return inner(*args, **named)

    return run


# Filters that could turn a small input into a large output -------------------------------------------


@pass_eval_context
def _join(context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    items = [text_of(item) for item in _read_items(context.environment, value, attribute)]
    write(len(str(d)) * len(items) + sum(len(str(item)) for item in items))
    joined: str = FILTERS["join"](context, items, str(text_of(d)) if not isinstance(d, Markup) else d)
    return joined


@pass_eval_context
def _replace(context: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    text, before, after = str(text_of(s)), str(text_of(old)), str(text_of(new))
    write(len(text) + text.count(before) * len(after) * 6)  # escaping turns one character into up to six
    replaced: str = FILTERS["replace"](context, s, before, new if isinstance(new, Markup) else after, count)
    return replaced


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if not -_MAX_DECIMALS <= precision <= _MAX_DECIMALS:
        raise Stopped(f"rounds to more than {_MAX_DECIMALS} decimal places")
    rounded: float = FILTERS["round"](value, precision, method)
    return rounded


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | None = None) -> float:
    total: float = 0
    for item in _read_items(environment, iterable, attribute):
        if isinstance(item, bool) or not isinstance(item, (int, float)):
            raise Stopped("uses sum on a value that is not a number")
        total += item
    return total


def _tojson(value: Any) -> Markup:
    weigh(value)
    return htmlsafe_json_dumps(value)


def _read_items(environment: Environment, value: Iterable[Any], attribute: str | None) -> list[Any]:
    items = list(rounds(value))
    return items if attribute is None else list(map(make_attrgetter(environment, attribute), items))


_REPLACED: dict[str, Filter] = {
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "tojson": _tojson,
}

# Filters that the compiler inserts into templates. The space keeps templates from naming them. -------

ROUNDS = " rounds"
CONCAT = " concat"
BUILT = " built"


@pass_eval_context
def _concat(context: EvalContext, parts: list[Any]) -> str:
    """Implements `a ~ b`. The length is charged before the text is built."""
    write(sum(len(str(text_of(part))) for part in parts))
    return (markup_join if context.autoescape else str_join)(parts)

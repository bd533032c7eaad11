"""The filters that a template may use. Their cost is bounded by the size of their input."""

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

from homing.rendering.render_budget import (
    RenderStopped,
    charge_characters,
    charge_iterations,
    charge_steps,
    charge_value,
    measure_value,
)

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

FilterFunction = Callable[..., Any]


def require_text_or_number(value: Any) -> Any:
    """Returns the value if it is a text or a number, the only types that a template may output.

    `None`, `True` or a whole list in a message would be a mistake visible to the recipient, so they raise
    `RenderStopped`.
    """
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is Markup or isinstance(value, Undefined):
        return value
    if value is None:
        raise RenderStopped("outputs null; provide the value, or use {{ … | default('', true) }}")
    if kind is bool:
        raise RenderStopped("outputs true or false; write it in words: {{ 'yes' if … else 'no' }}")
    if isinstance(value, (list, tuple, dict)):
        raise RenderStopped("outputs a whole list or mapping; loop over it, or use join or tojson")
    raise RenderStopped("outputs a value that is not text; loop over it, or call it")


def allowed_filters() -> dict[str, FilterFunction]:
    """Returns the filters by name.

    Jinja's other filters (`attr`, `format`, `center`, `indent`, `xmlattr`, …) are not available to templates.
    """
    found = {name: _metered(FILTERS[name]) for name in _PLAIN}
    found |= {name: _metered(_of_text(FILTERS[name])) for name in _TEXT}
    found |= {name: _metered(own) for name, own in _REPLACED.items()}
    return found | {
        CHARGE_ITERATIONS: charge_iterations,
        CHARGE_CONCAT: _concat,
        CHARGE_LITERAL: charge_value,
    }


def _metered(inner: FilterFunction) -> FilterFunction:
    @wraps(inner)
    def run(*args: Any, **named: Any) -> Any:
        charge_steps(1)
        return charge_value(inner(*args, **named))

    return run


def _of_text(inner: FilterFunction) -> FilterFunction:
    place = 1 if hasattr(inner, "jinja_pass_arg") else 0

    @wraps(inner)
    def run(*args: Any, **named: Any) -> Any:
        value = require_text_or_number(args[place])
        charge_steps(1 + len(value) // 64 if isinstance(value, str) else 1)
        return inner(*args, **named)

    return run


# Filters that could turn a small input into a large output -------------------------------------------


@pass_eval_context
def _join(context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    items = [require_text_or_number(item) for item in _read_items(context.environment, value, attribute)]
    charge_characters(len(str(d)) * len(items) + sum(len(str(item)) for item in items))
    joined: str = FILTERS["join"](
        context, items, str(require_text_or_number(d)) if not isinstance(d, Markup) else d
    )
    return joined


@pass_eval_context
def _replace(context: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    text, before, after = (
        str(require_text_or_number(s)),
        str(require_text_or_number(old)),
        str(require_text_or_number(new)),
    )
    charge_characters(
        len(text) + text.count(before) * len(after) * 6
    )  # escaping turns one character into up to six
    replaced: str = FILTERS["replace"](context, s, before, new if isinstance(new, Markup) else after, count)
    return replaced


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if not -_MAX_DECIMALS <= precision <= _MAX_DECIMALS:
        raise RenderStopped(f"rounds to more than {_MAX_DECIMALS} decimal places")
    rounded: float = FILTERS["round"](value, precision, method)
    return rounded


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | None = None) -> float:
    total: float = 0
    for item in _read_items(environment, iterable, attribute):
        if isinstance(item, bool) or not isinstance(item, (int, float)):
            raise RenderStopped("uses sum on a value that is not a number")
        total += item
    return total


def _tojson(value: Any) -> Markup:
    measure_value(value)
    return htmlsafe_json_dumps(value)


def _read_items(environment: Environment, value: Iterable[Any], attribute: str | None) -> list[Any]:
    items = list(charge_iterations(value))
    return items if attribute is None else list(map(make_attrgetter(environment, attribute), items))


_REPLACED: dict[str, FilterFunction] = {
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "tojson": _tojson,
}

# Filters that the compiler inserts into templates. The space keeps templates from naming them. -------

CHARGE_ITERATIONS = " rounds"
CHARGE_CONCAT = " concat"
CHARGE_LITERAL = " built"


@pass_eval_context
def _concat(context: EvalContext, parts: list[Any]) -> str:
    """Implements `a ~ b`. The length is charged before the text is built."""
    charge_characters(sum(len(str(require_text_or_number(part))) for part in parts))
    return (markup_join if context.autoescape else str_join)(parts)

"""A Jinja environment in which templates can use only what is listed here.

Jinja's own sandbox forbids what is known to be dangerous. This one allows only what is known to be harmless:
plain JSON values with a few of their methods, Jinja's own helpers, and operators with a bounded result. Every
loop iteration, call, filter and piece of text is charged against the limits of `render_budget`, so that every
render ends.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from jinja2 import DictLoader, StrictUndefined, Template, TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateNotFound as PartialNotFound
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from homing.rendering.filters import (
    CHARGE_CONCAT,
    CHARGE_ITERATIONS,
    CHARGE_LITERAL,
    allowed_filters,
    require_text_or_number,
)
from homing.rendering.render_budget import (
    RenderStopped,
    charge_characters,
    charge_steps,
    charge_text,
    charge_value,
    current_meter,
)

MAX_RANGE_LENGTH = 10_000
MAX_INTEGER_BITS = 4096
"""Largest integer that a template may compute, in bits."""

_TEXT_METHODS = frozenset(
    ("capitalize", "endswith", "lower", "lstrip", "rstrip", "split", "startswith", "strip", "title", "upper")
)
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: _TEXT_METHODS,
    Markup: _TEXT_METHODS,
    dict: frozenset(("get", "items", "keys", "values")),
    LoopContext: frozenset(
        (
            *("changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length"),
            *("nextitem", "previtem", "revindex", "revindex0"),
        )
    ),
    Cycler: frozenset(("current", "next", "reset")),
}
"""Attributes that templates may use, by exact type. Those that are methods are harmless to call."""

_MISSING = object()

_NUMBER_CHARACTERS = 32
"""Number of characters that the output of a number is charged as."""


def bounded_range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > MAX_RANGE_LENGTH:
        raise RenderStopped(f"uses a range of more than {MAX_RANGE_LENGTH:,} numbers")
    return made


_CALLABLE: tuple[Any, ...] = (bounded_range, Namespace, Cycler, Joiner)
_CALLABLE_TYPES = (Macro, BlockReference, Joiner, Undefined)


class FreshTemplate(Template):
    """A template that each render imports afresh, so that renders cannot see each other's variables."""

    def _get_default_module(self, ctx: Context | None = None) -> TemplateModule:
        return self.make_module()


class _ChargingCodeGenerator(CodeGenerator):
    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.written({super()._output_const_repr(group)})"


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of all templates of a folder. Only `partials` can be included, extended or imported."""

    code_generator_class = _ChargingCodeGenerator
    template_class = FreshTemplate
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self, partials: Mapping[str, str]) -> None:
        super().__init__(
            loader=DictLoader(dict(partials)),
            autoescape=lambda name: bool(name) and str(name).endswith(".html"),
            undefined=StrictUndefined,
            finalize=_finalize,
            optimized=False,  # no expression is evaluated at compile time
            auto_reload=False,
            cache_size=-1,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.filters = allowed_filters()
        self.globals = {
            "range": bounded_range,
            "namespace": Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
        }
        self.written = charge_text
        """Charges the template's own text. Called by the compiled code."""

    def make_globals(self, d: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
        """Returns a plain mapping, which every context copies. Globals are not added later."""
        return {**self.globals, **(d or {})}

    def template(self, source: str | nodes.Template, name: str) -> Template:
        """Compiles a template. `name` appears in its errors."""
        return FreshTemplate.from_code(self, self.compile(source, name), self.make_globals(None))

    # Attributes and items --------------------------------------------------------------------------

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns a member of the data or else an allowed attribute. A member `items` hides the method."""
        if isinstance(obj, dict) and (found := obj.get(attribute, _MISSING)) is not _MISSING:
            return found
        if attribute in _ATTRIBUTES.get(type(obj), ()):
            return getattr(obj, attribute)
        if attribute.startswith("_"):
            return self.unsafe_undefined(obj, attribute)
        if isinstance(obj, Namespace):
            return getattr(obj, attribute, self.undefined(obj=obj, name=attribute))
        if isinstance(obj, TemplateModule):
            return vars(obj).get(attribute, self.undefined(obj=obj, name=attribute))
        if isinstance(obj, TemplateReference):
            return obj[attribute]
        if isinstance(obj, tuple) and attribute in getattr(obj, "_fields", ()):
            return getattr(obj, attribute)  # the named tuple of a group that `groupby` returns
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, (dict, list, tuple, str)):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                return self.undefined(obj=obj, name=argument)
        return (
            self.getattr(obj, argument)
            if isinstance(argument, str)
            else self.undefined(obj=obj, name=argument)
        )

    # Calls and operators ---------------------------------------------------------------------------

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, _CALLABLE_TYPES) or any(obj is one for one in _CALLABLE):
            return True
        names = _ATTRIBUTES.get(type(getattr(obj, "__self__", None)), ())
        return getattr(obj, "__name__", "") in names

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:
        charge_steps(5)
        if not self.is_safe_callable(obj):
            raise SecurityError("calls something that templates must not call")
        return charge_value(context.call(obj, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        charge_steps(1)
        return _OPERATORS[operator](left, right)

    def join_path(self, template: str, parent: str) -> str:
        """Returns the name of a file to include. Rejects text in HTML, where it would not be escaped, and
        HTML in text.
        """
        charge_steps(20)
        if template.endswith(".html") != parent.endswith(".html"):
            raise PartialNotFound(
                template[:100], "cannot be included here; use .html in HTML, .txt elsewhere"
            )
        return template

    # Compiling -------------------------------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        guarded: nodes.Template = _ChargeInserter(name).visit(tree)
        return guarded


class _ChargeInserter(NodeTransformer):
    """Adds a charge to every loop, concatenation and literal, and rejects what cannot be charged."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.recursive:
            raise TemplateSyntaxError("uses a recursive loop, which is not allowed", node.lineno, self._name)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, CHARGE_ITERATIONS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), CHARGE_CONCAT)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, CHARGE_LITERAL)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, CHARGE_LITERAL)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx != "load" else _filtered(node, CHARGE_LITERAL)

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:  # noqa: N802
        raise TemplateSyntaxError(
            "uses autoescape, which is not allowed; use | safe", node.lineno, self._name
        )


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context  # the context is unused, but keeps Jinja from evaluating constants at compile time
def _finalize(context: Context, value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is int:  # hot path, so it inlines the charge, like `charge_text`
        meter = current_meter()
        meter.characters -= len(value) if kind is str else _NUMBER_CHARACTERS
        if meter.characters < 0:
            charge_characters(0)
        return value
    found = require_text_or_number(value)
    charge_characters(len(found) if isinstance(found, str) else _NUMBER_CHARACTERS)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _add(left: Any, right: Any) -> Any:
    if all(isinstance(value, (str, list, tuple)) for value in (left, right)):
        charge_characters((len(left) + len(right)) * 6)  # escaping turns one character into up to six
        return charge_value(left + right)
    return _bounded(operator.add)(left, right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_INTEGER_BITS:
        raise RenderStopped("computes a number that is too large")
    return _bounded(operator.pow)(left, right)


def _bounded(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(left: Any, right: Any) -> Any:
        for value in (left, right):
            if isinstance(value, Undefined):
                str(value)  # raises an error with the undefined name
            if not _is_number(value):
                kind = _KINDS.get(type(value), "something else")
                raise RenderStopped(f"uses {kind} in arithmetic; only numbers are allowed")
        result = work(left, right)
        if isinstance(result, int) and result.bit_length() > MAX_INTEGER_BITS:
            raise RenderStopped("computes a number that is too large")
        return result

    return run


_KINDS: dict[type, str] = {
    str: "text",
    Markup: "text",
    type(None): "null",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": _add,
    "-": _bounded(operator.sub),
    "*": _bounded(operator.mul),
    "/": _bounded(operator.truediv),
    "//": _bounded(operator.floordiv),
    "%": _bounded(operator.mod),
    "**": _power,
}

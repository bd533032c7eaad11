"""Jinja with closed doors: what is not named here does not exist for a template.

Jinja's own sandbox forbids what is known to be dangerous. This one allows what is known to be harmless: the
plain values of JSON with a few of their methods, Jinja's own helpers, operators whose result is bounded.
Every round of a loop, call, filter and piece of text is charged (see `meter`), so a render always ends.
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

from homing.rendering.filters import BUILT, CONCAT, ROUNDS, allowed_filters, text_of
from homing.rendering.meter import Stopped, account, step, write, written

MOST_ROUNDS_OF_RANGE = 10_000
MOST_BITS = 4096
"""Of a whole number that is worked out."""

_OF_TEXT = frozenset(
    ("capitalize", "endswith", "lower", "lstrip", "rstrip", "split", "startswith", "strip", "title", "upper")
)
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: _OF_TEXT,
    Markup: _OF_TEXT,
    dict: frozenset(("get", "items", "keys", "values")),
    LoopContext: frozenset(
        (
            *("changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length"),
            *("nextitem", "previtem", "revindex", "revindex0"),
        )
    ),
    Cycler: frozenset(("current", "next", "reset")),
}
"""Attributes that exist, by exact type; those that can be called are harmless to call."""

_MISSING = object()


def bounded_range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > MOST_ROUNDS_OF_RANGE:
        raise Stopped(f"has a range of more than {MOST_ROUNDS_OF_RANGE:,}")
    return made


_CALLABLE: tuple[Any, ...] = (bounded_range, Namespace, Cycler, Joiner)
_CALLABLE_TYPES = (Macro, BlockReference, Joiner, Undefined)


class FreshTemplate(Template):
    """Imported anew by each render: what one recipient's render keeps in it, no other one finds."""

    def _get_default_module(self, ctx: Context | None = None) -> TemplateModule:
        return self.make_module()


class _Code(CodeGenerator):
    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.written({super()._output_const_repr(group)})"


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of all templates of a folder; `partials` are the only files that one may include."""

    code_generator_class = _Code
    template_class = FreshTemplate
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self, partials: Mapping[str, str]) -> None:
        super().__init__(
            loader=DictLoader(dict(partials)),
            autoescape=lambda name: bool(name) and str(name).endswith(".html"),
            undefined=StrictUndefined,
            finalize=_finalize,
            optimized=False,  # nothing of a template runs before it is rendered
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
        self.written = written
        """Text of the template itself, charged like all other."""

    def make_globals(self, d: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
        """A plain mapping, which every context copies: nobody adds to the globals later."""
        return {**self.globals, **(d or {})}

    def template(self, source: str | nodes.Template, name: str) -> Template:
        """Compiled under the name that errors tell."""
        return FreshTemplate.from_code(self, self.compile(source, name), self.make_globals(None))

    # Reading ---------------------------------------------------------------------------------------

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A member of the data first (`order.items` is the order's), then what its type allows."""
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
            return getattr(obj, attribute)  # what groupby gives
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

    # Doing -----------------------------------------------------------------------------------------

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, _CALLABLE_TYPES) or any(obj is one for one in _CALLABLE):
            return True
        names = _ATTRIBUTES.get(type(getattr(obj, "__self__", None)), ())
        return getattr(obj, "__name__", "") in names

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:
        step(5)
        if not self.is_safe_callable(obj):
            raise SecurityError("calls what cannot be called")
        return account(context.call(obj, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        step(1)
        return _OPERATORS[operator](left, right)

    def join_path(self, template: str, parent: str) -> str:
        """Text has no place in HTML, where it would not be escaped; and neither has HTML in text."""
        step(20)
        if template.endswith(".html") != parent.endswith(".html"):
            raise PartialNotFound(template[:100], "cannot be included: HTML takes .html, all else .txt")
        return template

    # Compiling -------------------------------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        guarded: nodes.Template = _Guards(name).visit(tree)
        return guarded


class _Guards(NodeTransformer):
    """Puts a charge around what could go on for ever, and refuses what cannot be charged."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.recursive:
            raise TemplateSyntaxError("a recursive loop is not allowed", node.lineno, self._name)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, ROUNDS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), CONCAT)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, BUILT)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, BUILT)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx != "load" else _filtered(node, BUILT)

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:  # noqa: N802
        raise TemplateSyntaxError("autoescape is not allowed; say | safe", node.lineno, self._name)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context  # not for the context: it keeps Jinja from writing constants out while it compiles
def _finalize(context: Context, value: Any) -> Any:
    if type(value) is str:
        return written(value)
    found = text_of(value)
    write(len(found) if isinstance(found, str) else 32)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _added(left: Any, right: Any) -> Any:
    if all(isinstance(value, (str, list, tuple)) for value in (left, right)):
        write((len(left) + len(right)) * 6)  # escaped, one character may become six
        return account(left + right)
    return _worked_out(operator.add)(left, right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MOST_BITS:
        raise Stopped("works out a number that is too large")
    return _worked_out(operator.pow)(left, right)


def _worked_out(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(left: Any, right: Any) -> Any:
        for value in (left, right):
            if isinstance(value, Undefined):
                str(value)  # says which name is undefined
            if not _is_number(value):
                raise Stopped(f"calculates with {_KINDS.get(type(value), 'something')}; only numbers can be")
        result = work(left, right)
        if isinstance(result, int) and result.bit_length() > MOST_BITS:
            raise Stopped("works out a number that is too large")
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
    "+": _added,
    "-": _worked_out(operator.sub),
    "*": _worked_out(operator.mul),
    "/": _worked_out(operator.truediv),
    "//": _worked_out(operator.floordiv),
    "%": _worked_out(operator.mod),
    "**": _power,
}

"""Compiles a template's files into functions that return the parts of a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import msgspec
from jinja2 import Template, TemplateSyntaxError, UndefinedError, nodes
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateNotFound as PartialNotFound
from jinja2.runtime import Context

from homing.core.errors import TemplateFailed
from homing.core.notifications import Channel, Content
from homing.rendering.folder_templates import TemplateFile, TemplateSources
from homing.rendering.render_budget import RenderStopped, measure_value, start_metering
from homing.rendering.sandbox import TemplateSandbox

TemplateValues = dict[str, Any]

CompiledPart = Callable[[TemplateValues], Any]
"""Function that renders one part of a message from a mapping with the data and the globals."""


_ONE_LINE = frozenset({"subject", "title"})


class CompiledTemplate:
    """One template in one locale, compiled once and rendered any number of times."""

    def __init__(self, sandbox: TemplateSandbox, locale: str, written: TemplateSources) -> None:
        self.locale, self.version, self.channels = locale, written.version, written.channels
        self._given = {**sandbox.globals, "locale": locale}
        self._parts: dict[Channel, list[tuple[TemplateFile, CompiledPart]]] = {}
        for source in written.sources:
            part = call_or_fail(source.name, partial(_compile_part, sandbox, source))
            self._parts.setdefault(source.channel, []).append((source, part))

    def render(self, channel: Channel, data: Mapping[str, Any]) -> Content:
        """Returns the content. Raises `TemplateFailed` with file and line if the template fails."""
        values = {**self._given, **data}
        found: dict[str, Any] = {}
        try:
            for source, part in self._parts[channel]:
                start_metering()
                found[source.part] = part(values)
        except Exception as error:
            raise build_template_error(source.name, error) from None
        return Content(**found)


def call_or_fail(name: str, make: Callable[[], Any]) -> Any:
    """Returns the result of `make`. Turns any exception into a `TemplateFailed` for the file `name`."""
    try:
        return make()
    except Exception as error:  # from Jinja or from Python's compiler, such as too deep nesting
        raise build_template_error(name, error) from None


def build_template_error(name: str, error: Exception) -> TemplateFailed:
    """Returns the error with its file and line. For a shared file, it names the template that uses it."""
    if isinstance(error, TemplateSyntaxError):
        where, line = error.name or name, error.lineno
    else:
        where, line = _innermost(error.__traceback__) or (name, 0)
    place = f"{where}, line {line}" if line else where
    inside = f" (used by {name})" if not where.startswith(name) else ""
    return TemplateFailed("templateKey", f"{place}{inside}: {_describe(error)}")


def _compile_part(sandbox: TemplateSandbox, source: TemplateFile) -> CompiledPart:
    if source.part == "data":
        return _compile_data_part(sandbox, source)
    written = _Text(sandbox.template(source.text, source.name))
    return written.line if source.part in _ONE_LINE else written


class _Text:
    """A compiled template as a function that returns text."""

    def __init__(self, template: Template) -> None:
        self._root, self._blocks = template.root_render_func, template.blocks
        # The context of each render is a copy of this one, which has all that is the same in every render.
        first = Context(template.environment, {}, template.name, {}, template.globals)
        self._context = vars(first)

    def __call__(self, values: TemplateValues) -> str:
        return "".join(self._root(self.context(values)))

    def line(self, values: TemplateValues) -> str:
        return "".join(self._root(self.context(values))).strip()

    def context(self, values: TemplateValues) -> Context:
        """Returns a new context. `values` already include the globals, because all parts share them."""
        made = Context.__new__(Context)
        made.__dict__ = {
            **self._context,
            "parent": values,
            "vars": {},
            "exported_vars": set(),
            "blocks": {name: [block] for name, block in self._blocks.items()} if self._blocks else {},
        }
        return made

    def result(self, values: TemplateValues) -> Any:
        """Runs a template that only assigns the variable `result`, and returns that variable."""
        context = self.context(values)
        for _ in self._root(context):
            """Runs the template; it outputs nothing."""
        return context.vars["result"]


def _compile_data_part(sandbox: TemplateSandbox, source: TemplateFile) -> CompiledPart:
    """Compiles JSON whose texts are templates, so that no data can change the JSON around it."""
    try:
        tree = msgspec.json.decode(source.text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RenderStopped(f"is not a JSON object: {error}") from None
    part = _compile_node(sandbox, tree, source.name, "")

    def run(values: TemplateValues) -> Any:
        found = part(values)
        measure_value(found)
        return found

    return run


def _compile_node(sandbox: TemplateSandbox, tree: Any, name: str, member: str) -> CompiledPart:
    if isinstance(tree, str):
        return _compile_text(sandbox, tree, f"{name} ({member})")
    if isinstance(tree, dict):
        members = {
            key: _compile_node(sandbox, value, name, f"{member}.{key}"[-100:]) for key, value in tree.items()
        }
        return lambda values: {key: part(values) for key, part in members.items()}
    if isinstance(tree, list):
        items = [_compile_node(sandbox, value, name, f"{member}[{i}]"[-100:]) for i, value in enumerate(tree)]
        return lambda values: [part(values) for part in items]
    return lambda values: tree


def _compile_text(sandbox: TemplateSandbox, text: str, name: str) -> CompiledPart:
    """Compiles one text. If it is a single `{{ … }}`, its value keeps its type: a number stays a number."""
    tree = sandbox._parse(text, name, None)
    match tree.body:
        case [nodes.Output(nodes=[nodes.Expr() as only])] if not isinstance(only, nodes.TemplateData):
            result = nodes.Assign(nodes.Name("result", "store", lineno=1), only, lineno=1)
            expression = _Text(sandbox.template(nodes.Template([result], lineno=1), name))
            return lambda values: _to_json_value(expression.result(values))
    return _Text(sandbox.template(text, name))


def _to_json_value(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, list, dict)):
        return str(value) if isinstance(value, str) else value
    str(value)  # raises an error with the name if the value is undefined
    raise RenderStopped("returns a value that JSON does not have; use list or tojson")


def _innermost(trace: TracebackType | None) -> tuple[str, int] | None:
    found = None
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if isinstance(template, Template):
            found = template.name or "", template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return found


def _describe(error: Exception) -> str:
    """Returns the error in words, without any of the data."""
    match error:
        case TemplateSyntaxError() | UndefinedError() | SecurityError():
            return error.message or "is not allowed"
        case PartialNotFound():
            known = error.message if error.message and error.message != error.name else "is not a shared file"
            return f"{error.name}: {known}; shared files are in folders whose names start with _"
        case RenderStopped():
            return str(error)
        case RecursionError():
            return "is nested too deeply"
        case ZeroDivisionError():
            return "divides by zero"
        case SyntaxError():
            return f"is nested too deeply, or too complex ({error.msg})"
    return f"cannot be rendered with this data ({type(error).__name__})"


def compile_partials(sandbox: TemplateSandbox, names: Iterable[str]) -> None:
    """Compiles the shared files in advance, so that no render has to compile them."""
    for name in names:
        call_or_fail(name, partial(sandbox.get_template, name))

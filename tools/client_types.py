"""How the types of the service are written in the client: the core's by name, the service's own anew."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

from homing.core.reading import camel

STRUCTS = "homing.client.structs"
WRITTEN = "Written by tools/make_client.py."
_BUILT_IN = (str, int, float, bool, bytes, dict, list, tuple)
_WIDTH = 110


class Library:
    """The structs and enumerations of the service, each in the module of the subject that needs it first."""

    def __init__(self) -> None:
        self.modules: dict[str, StructModule] = {}
        self._owners: dict[str, tuple[type, str]] = {}

    def place(self, kind: type[Struct] | type[Enum], subject: str) -> str:
        """The module that has it, in which it is written if it is new."""
        known, owner = self._owners.setdefault(kind.__name__, (kind, subject))
        assert known is kind, f"{kind.__name__} is in {known.__module__} and in {kind.__module__}: rename one"
        self.modules.setdefault(owner, StructModule(owner, self)).write(kind)
        return owner


class Module:
    """One file: what it imports, and how a type is called in it."""

    def __init__(self, subject: str, library: Library) -> None:
        self.subject = subject
        self._library = library
        self._imports: dict[str, set[str]] = {}

    def use(self, module: str, name: str) -> str:
        """A name from elsewhere."""
        self._imports.setdefault(module, set()).add(name)
        return name

    def expression(self, kind: Any) -> str:
        """A type as it is written here; what it needs is imported."""
        if kind is None or kind is type(None):
            return "None"
        if kind is Any:
            return self.use("typing", "Any")
        if isinstance(kind, TypeVar):
            return "_T"
        origin, inside = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.expression(inside[0])
        if origin in (Union, types.UnionType):
            return " | ".join(self.expression(one) for one in inside)
        if origin is Literal:
            return f"{self.use('typing', 'Literal')}[{', '.join(map(repr, inside))}]"
        if origin is None:
            return self.named(kind)
        base = origin if origin in _BUILT_IN or issubclass(origin, Struct) else dict
        own = ", ".join("..." if one is Ellipsis else self.expression(one) for one in inside)
        return f"{self.named(base)}[{own}]"

    def named(self, kind: type) -> str:
        """A class by its name."""
        if kind in _BUILT_IN:
            return kind.__name__
        if kind is UnsetType:
            return self.use("msgspec", "UnsetType")
        if kind is datetime or kind.__module__.startswith("homing.core."):
            return self.use(kind.__module__, kind.__name__)
        assert issubclass(kind, (Struct, Enum)), f"the client cannot have {kind}"
        owner = self._library.place(kind, self.subject)
        return self.use(f"{STRUCTS}.{owner}", kind.__name__)

    def value(self, value: Any) -> str:
        """A default."""
        if value is UNSET:
            return self.use("msgspec", "UNSET")
        if isinstance(value, Enum):
            return f"{self.named(type(value))}.{value.name}"
        if isinstance(value, tuple):
            return f"({''.join(f'{self.value(one)}, ' for one in value)})"
        if isinstance(value, Struct):
            own = [(one, getattr(value, one.name)) for one in fields(value)]
            given = ", ".join(f"{one.name}={self.value(has)}" for one, has in own if has != usual(one))
            return f"{self.named(type(value))}({given})"
        return repr(value)

    def text(self, title: str, blocks: Iterable[str]) -> str:
        """The file."""
        head = [f'"""{title}\n\n{WRITTEN}\n"""', "from __future__ import annotations", *self._import_blocks()]
        if "TypeVar" in self._imports.get("typing", ()):
            head.append('_T = TypeVar("_T")')
        return "\n\n".join(head) + "\n\n\n" + "\n\n\n".join(blocks) + "\n"

    def _import_blocks(self) -> list[str]:
        """In the usual order: the standard library, others, our own."""
        groups: dict[int, list[str]] = {}
        for module, names in sorted(self._imports.items()):
            rank = 2 if module.startswith("homing") else 1 if module == "msgspec" else 0
            groups.setdefault(rank, []).append(f"from {module} import {', '.join(_sorted(names))}")
        return ["\n".join(groups[rank]) for rank in sorted(groups)]


class StructModule(Module):
    """The structs of one subject."""

    def __init__(self, subject: str, library: Library) -> None:
        super().__init__(subject, library)
        self._written: dict[str, str] = {}

    def use(self, module: str, name: str) -> str:
        return name if module == f"{STRUCTS}.{self.subject}" else super().use(module, name)

    def write(self, kind: type[Struct] | type[Enum]) -> None:
        """Writes it out, after what it is made of."""
        if kind.__name__ in self._written:
            return
        self._written[kind.__name__] = ""  # it may be in itself
        text = self._struct(kind) if issubclass(kind, Struct) else self._enum(kind)
        del self._written[kind.__name__]
        self._written[kind.__name__] = text

    def source(self) -> str:
        title = f"What the service takes and answers with: {self.subject.replace('_', ' ')}."
        return self.text(title, self._written.values())

    def _enum(self, kind: type[Enum]) -> str:
        self.use("enum", "StrEnum")
        members = [f"    {one.name} = {one.value!r}" for one in kind]
        return "\n".join([f"class {kind.__name__}(StrEnum):", doc(inspect.getdoc(kind), 1), "", *members])

    def _struct(self, kind: type[Struct]) -> str:
        bases = [self.use("msgspec", "Struct")]
        if getattr(kind, "__parameters__", ()):
            self.use("typing", "TypeVar")
            bases.append(f"{self.use('typing', 'Generic')}[_T]")
        bases += ["frozen=True", "kw_only=True", "omit_defaults=True"]
        if kind.__struct_encode_fields__ != kind.__struct_fields__:
            assert kind.__struct_encode_fields__ == tuple(map(camel, kind.__struct_fields__)), kind
            bases.append('rename="camel"')
        if (tag := kind.__struct_config__.tag) is not None:
            bases += [f"tag={tag!r}", f"tag_field={kind.__struct_config__.tag_field!r}"]
        hints, said = get_type_hints(kind), _field_docs(kind)
        lines = [f"class {kind.__name__}({', '.join(bases)}):", doc(inspect.getdoc(kind), 1)]
        for one in fields(kind):
            lines.append(f"    {one.name}: {self.expression(hints[one.name])}{self._default(one)}")
            if one.name in said:
                lines.append(doc(said[one.name], 1))
        return "\n".join(lines)

    def _default(self, one: FieldInfo) -> str:
        if one.default_factory is not NODEFAULT:
            return f" = {self.use('msgspec', 'field')}(default_factory={one.default_factory.__name__})"
        return "" if one.default is NODEFAULT else f" = {self.value(one.default)}"


def usual(one: FieldInfo) -> Any:
    """What a field has when nothing is said."""
    return one.default_factory() if one.default_factory is not NODEFAULT else one.default


def doc(text: str | None, level: int) -> str:
    """A docstring, at this depth."""
    indent = "    " * level
    paragraphs = [" ".join(one.split()) for one in (text or "").strip().split("\n\n") if one.strip()]
    wrapped = "\n\n".join(textwrap.fill(one, _WIDTH - 6 - len(indent)) for one in paragraphs)
    return textwrap.indent(f'"""{wrapped}{chr(10) if chr(10) in wrapped else ""}"""', indent)


def _field_docs(kind: type[Struct]) -> dict[str, str]:
    """What is written under the fields of a struct, and of those that it extends."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if not issubclass(one, Struct) or one is Struct:
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(node, ast.ClassDef), "the source of a class"
        for before, after in zip(node.body, node.body[1:], strict=False):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                match before.target, after.value:
                    case ast.Name(id=name), ast.Constant(value=str(text)):
                        found[name] = text
    return found


def _sorted(names: Iterable[str]) -> list[str]:
    """Constants, then classes, then the rest: as the linter wants them."""
    return sorted(names, key=lambda name: (0 if name.isupper() else 1 if name[0].isupper() else 2, name))

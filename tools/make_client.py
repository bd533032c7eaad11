"""Writes the calls of `homing.client`: a method for each operation of the service, from its own routes.

`--check` only says whether they are what would be written.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from client_types import WRITTEN, Library, Module, doc, usual
from homing.api.all_routes import all_routes
from homing.api.routing import Route

TARGET = Path(__file__).parents[1] / "src" / "homing" / "client"
FOLDERS = ("structs", "calls", "async_calls")
_KEY = "Idempotency-Key"


class Calls(Module):
    """The operations of one subject as the methods of one class."""

    def __init__(self, subject: str, library: Library, *, asynchronous: bool) -> None:
        super().__init__(subject, library)
        self._async = asynchronous

    @property
    def class_name(self) -> str:
        words = "".join(word.title() for word in self.subject.split("_"))
        return f"{'Async' if self._async else ''}{words}"

    def source(self, routes: Iterable[Route]) -> str:
        base = self.use("homing.client.calling", "AsyncCalling" if self._async else "Calling")
        subject = self.subject.replace("_", " ")
        head = f'class {self.class_name}({base}):\n    """The operations on {subject}."""'
        body = "\n\n".join([head, *(self._method(route) for route in routes)])
        title = f"{subject.capitalize()}, operation by operation{', for asyncio' if self._async else ''}."
        return self.text(title, [body])

    def _method(self, route: Route) -> str:
        """The path's parameters, then by name what goes into the query, the body and the headers."""
        named: list[str] = []
        query, body = self._made(route, route.query, named), self._made(route, route.body, named)
        headers = self._headers(route, named)
        given = [f"{name}: {self.expression(kind)}" for name, kind in route.params.items()]
        if named:
            given += ["*", *sorted(named, key=lambda one: "=" in one)]
        signature = ", ".join(["self", *given])
        if (item := _items_of(route)) is not None:
            iterator = self.use("collections.abc", "AsyncIterator" if self._async else "Iterator")
            head = f"def {route.handler.__name__}({signature}) -> {iterator}[{self.expression(item)}]:"
            call = f"return self._pages({self.expression(route.answer)}, {self._path(route)}, {query})"
        else:
            answer = self.expression(route.answer)
            kind = "type(None)" if answer == "None" else answer
            parts = {"query": query, "body": body, "headers": headers, "keyed": _KEY in route.headers}
            asked = [kind, repr(route.method), self._path(route)]
            asked += [f"{name}={made}" for name, made in parts.items() if made]
            head = f"def {route.handler.__name__}({signature}) -> {answer}:"
            call = f"{'await ' if self._async else ''}self._ask({', '.join(asked)})"
            call = call if answer == "None" else f"return {call}"
            head = f"async {head}" if self._async else head
        return f"    {head}\n{doc(route.summary, 2)}\n        {call}"

    def _path(self, route: Route) -> str:
        if not route.params:
            return f'"{route.path}"'
        part = self.use("homing.client.asking", "part")
        pieces = (f"{{{part}({one[1:-1]})}}" if one[:1] == "{" else one for one in _pieces(route.path))
        return f'f"{"".join(pieces)}"'

    def _made(self, route: Route, kind: Any, named: list[str]) -> str:
        """A query or body as it is made from the method's parameters, which are put into `named`."""
        if kind is None:
            return ""
        if not (isinstance(kind, type) and issubclass(kind, Struct)):
            named.append(f"body: {self.expression(kind)}")
            return "body"
        hints, given = get_type_hints(kind), []
        for one in fields(kind):
            if one.name == "cursor" and _items_of(route) is not None:
                continue  # followed by the client itself
            name = f"{one.name}_" if one.name in route.params else one.name
            known, default = self.expression(hints[one.name]), usual(one)
            if default is NODEFAULT:
                named.append(f"{name}: {known}")
            elif _is_made(default):
                named.append(f"{name}: {known} | None = None")
                given.append(f"{one.name}={self.value(default)} if {name} is None else {name}")
                continue
            else:
                named.append(f"{name}: {known} = {self.value(default)}")
            given.append(f"{one.name}={name}")
        return f"{self.named(kind)}({', '.join(given)})"

    def _headers(self, route: Route, named: list[str]) -> str:
        """Headers that the body has no field for, by their names; one that can only be `true` is a flag."""
        given = {}
        for header, kind in route.headers.items():
            name = header.removeprefix("X-").lower().replace("-", "_")
            if header == _KEY or any(one.startswith(f"{name}:") for one in named):
                continue
            is_flag = get_args(kind)[:1] == (Literal["true"],)
            named.append(f"{name}: bool = False" if is_flag else f"{name}: str | None = None")
            given[header] = f'"true" if {name} else None' if is_flag else name
        pairs = ", ".join(f"{header!r}: {name}" for header, name in given.items())
        return f"{self.use('homing.client.asking', 'given')}({{{pairs}}})" if given else ""


def files(routes: Iterable[Route]) -> dict[str, str]:
    """What is to be in each file."""
    library = Library()
    subjects: dict[str, list[Route]] = {}
    for route in routes:
        if not route.scopes:
            continue  # for providers, recipients and probes: not called with a key
        subject = route.handler.__module__.rpartition(".")[2]
        operations = subjects.setdefault(subject, [])
        if route.raw:  # its method is written by hand, in client/batches.py; its answer is not
            library.place(route.answer, subject)
        else:
            operations.append(route)
    made: dict[str, str] = {}
    for folder, asynchronous in (("calls", False), ("async_calls", True)):
        modules = {
            name: Calls(name, library, asynchronous=asynchronous) for name, has in subjects.items() if has
        }
        for name, module in modules.items():
            made[f"{folder}/{name}.py"] = module.source(subjects[name])
        made[f"{folder}/__init__.py"] = _together(folder, modules)
    for name, structs in library.modules.items():
        made[f"structs/{name}.py"] = structs.source()
    made["structs/__init__.py"] = f'"""What the service takes and answers with.\n\n{WRITTEN}\n"""\n'
    return {name: _formatted(text) for name, text in made.items()}


def _together(folder: str, modules: Mapping[str, Calls]) -> str:
    """One class that has them all."""
    imports = [
        f"from homing.client.{folder}.{name} import {modules[name].class_name}" for name in sorted(modules)
    ]
    name = "Calls" if folder == "calls" else "AsyncCalls"
    bases = ", ".join(module.class_name for module in modules.values())
    head = f'"""Every operation of the service.\n\n{WRITTEN}\n"""\n\nfrom __future__ import annotations'
    body = f'class {name}({bases}):\n    """Every operation of the service, as a method."""'
    return "\n\n".join([head, "\n".join(imports)]) + f"\n\n\n{body}\n"


def _items_of(route: Route) -> Any:
    """What a paged list is a list of; None: it is not paged."""
    if not (isinstance(route.answer, type) and issubclass(route.answer, Struct)) or route.query is None:
        return None
    if "cursor" not in route.answer.__struct_fields__ or "cursor" not in route.query.__struct_fields__:
        return None
    return get_args(get_type_hints(route.answer)["items"])[0]


def _is_made(default: Any) -> bool:
    """A default that must not be shared by all calls, or that is too much to read in a signature."""
    return isinstance(default, (Struct, dict, list)) or (isinstance(default, tuple) and bool(default))


def _pieces(path: str) -> Iterator[str]:
    """`/a/{id}/b` → `/a/`, `{id}`, `/b`."""
    while "{" in path:
        before, _, path = path.partition("{")
        inside, _, path = path.partition("}")
        yield from (before, f"{{{inside}}}")
    yield path


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET / "x.py"), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return done.stdout


def main() -> int:
    made = files(all_routes())
    there = {
        str(path.relative_to(TARGET)): path for folder in FOLDERS for path in (TARGET / folder).glob("*.py")
    }
    wrong = sorted(
        n for n in {*made, *there} if n not in made or n not in there or there[n].read_text() != made[n]
    )
    if "--check" in sys.argv:
        print(f"not up to date: {', '.join(wrong)}" if wrong else "up to date")
        return bool(wrong)
    for name in wrong:
        path = TARGET / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(made[name]) if name in made else path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

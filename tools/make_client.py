"""Generates the Python client from the service's routes: a method per operation, and the types they use.

With `--check`, it only reports whether the generated modules are up to date.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from client_types import Module, TypesModule, default_of, doc
from homing.api.all_routes import all_routes
from homing.api.http.routing import Route

TARGET = Path(__file__).parents[1] / "src" / "homing" / "client"
_IDEMPOTENCY_KEY = "Idempotency-Key"


class CallsModule(Module):
    """The module with one class that has a method for every operation."""

    def __init__(self, types_module: TypesModule, *, is_async: bool) -> None:
        super().__init__(types_module)
        self._async = is_async

    def source(self, subjects: Mapping[str, Sequence[Route]]) -> str:
        prefix, way = ("Async", "with asyncio") if self._async else ("Sync", "synchronously")
        base = self.use("homing.client.base", f"{prefix}Base")
        parts = [f'class {prefix}Calls({base}):\n    """Every operation of the service, as a method."""']
        for subject, routes in subjects.items():
            parts.append(f"    # {subject}")
            parts += [self._method(route) for route in routes]
        return self.text(f"The operations of the REST API, called {way}.", ["\n\n".join(parts)])

    def _method(self, route: Route) -> str:
        """Returns the source of a method.

        Path parameters come first, then query, body and headers as keyword arguments.
        """
        named: list[str] = []
        query = self._constructed(route, route.query, named)
        body = self._constructed(route, route.body, named)
        headers = self._headers(route, named)
        given = [f"{name}: {self.expression(kind)}" for name, kind in route.params.items()]
        if named:
            given += ["*", *sorted(named, key=lambda parameter: "=" in parameter)]
        signature = ", ".join(["self", *given])
        if (item := _items_of(route)) is not None:
            iterator = self.use("collections.abc", "AsyncIterator" if self._async else "Iterator")
            head = f"def {route.handler.__name__}({signature}) -> {iterator}[{self.expression(item)}]:"
            call = f"return self._iterate({self.expression(route.answer)}, {self._path(route)}, {query})"
        else:
            answer = self.expression(route.answer)
            kind = "type(None)" if answer == "None" else answer
            parts = {
                "query": query,
                "body": body,
                "headers": headers,
                "keyed": _IDEMPOTENCY_KEY in route.headers,
            }
            arguments = [kind, repr(route.method), self._path(route)]
            arguments += [f"{name}={part}" for name, part in parts.items() if part]
            head = f"def {route.handler.__name__}({signature}) -> {answer}:"
            call = f"{'await ' if self._async else ''}self._request({', '.join(arguments)})"
            call = call if answer == "None" else f"return {call}"
            head = f"async {head}" if self._async else head
        return f"    {head}\n{doc(route.summary, 2)}\n        {call}"

    def _path(self, route: Route) -> str:
        if not route.params:
            return f'"{route.path}"'
        escape = self.use("homing.client.requests", "path_segment")
        pieces = (
            f"{{{escape}({piece[1:-1]})}}" if piece[:1] == "{" else piece for piece in _pieces(route.path)
        )
        return f'f"{"".join(pieces)}"'

    def _constructed(self, route: Route, kind: Any, named: list[str]) -> str:
        """Returns the source of a query or body, and appends its fields to `named` as keyword arguments."""
        if kind is None:
            return ""
        if not (isinstance(kind, type) and issubclass(kind, Struct)):
            named.append(f"body: {self.expression(kind)}")
            return "body"
        hints, given = get_type_hints(kind), []
        for field in fields(kind):
            if field.name == "cursor" and _items_of(route) is not None:
                continue  # the client follows the cursor itself
            name = f"{field.name}_" if field.name in route.params else field.name
            kind_text, default = self.expression(hints[field.name]), default_of(field)
            if default is NODEFAULT:
                named.append(f"{name}: {kind_text}")
            elif _needs_none(default):
                named.append(f"{name}: {kind_text} | None = None")
                given.append(f"{field.name}={self.value(default)} if {name} is None else {name}")
                continue
            else:
                named.append(f"{name}: {kind_text} = {self.value(default)}")
            given.append(f"{field.name}={name}")
        return f"{self.named(kind)}({', '.join(given)})"

    def _headers(self, route: Route, named: list[str]) -> str:
        """Returns the source of the headers that have no body field, and appends them to `named`.

        A header that can only be `true` becomes a flag.
        """
        given = {}
        for header, kind in route.headers.items():
            name = header.removeprefix("X-").lower().replace("-", "_")
            if header == _IDEMPOTENCY_KEY or any(known.startswith(f"{name}:") for known in named):
                continue
            is_flag = get_args(kind)[:1] == (Literal["true"],)
            named.append(f"{name}: bool = False" if is_flag else f"{name}: str | None = None")
            given[header] = f'"true" if {name} else None' if is_flag else name
        pairs = ", ".join(f"{header!r}: {name}" for header, name in given.items())
        return f"{self.use('homing.client.requests', 'without_none')}({{{pairs}}})" if given else ""


def generate(routes: Iterable[Route]) -> dict[str, str]:
    """Returns the source of each generated module by its file name."""
    types_module = TypesModule()
    subjects: dict[str, list[Route]] = {}
    for route in routes:
        if not route.scopes:
            continue  # called by providers, recipients and probes, without an API key
        if route.raw:  # the method is handwritten in client/batches.py, but the response type is generated
            types_module.write(route.answer)
        else:
            subjects.setdefault(route.tag, []).append(route)
    sources = {
        f"{name}.py": CallsModule(types_module, is_async=is_async).source(subjects)
        for name, is_async in (("sync_calls", False), ("async_calls", True))
    }
    sources["types.py"] = types_module.source()
    return {name: _formatted(text) for name, text in sources.items()}


def _items_of(route: Route) -> Any:
    """Returns the type of the items of a paged list, or None if the route does not return pages."""
    if not (isinstance(route.answer, type) and issubclass(route.answer, Struct)) or route.query is None:
        return None
    if "cursor" not in route.answer.__struct_fields__ or "cursor" not in route.query.__struct_fields__:
        return None
    return get_args(get_type_hints(route.answer)["items"])[0]


def _needs_none(default: Any) -> bool:
    """Returns True if a parameter must default to None instead of this value.

    This is the case for dicts and lists, which are mutable, and for structs and non-empty tuples, which are
    too long to read in a signature.
    """
    return isinstance(default, (Struct, dict, list)) or (isinstance(default, tuple) and bool(default))


def _pieces(path: str) -> Iterator[str]:
    """Splits a path at its parameters: `/a/{id}/b` yields `/a/`, `{id}` and `/b`."""
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
    sources = generate(all_routes())
    outdated = [name for name, text in sources.items() if _current(TARGET / name) != text]
    if "--check" in sys.argv:
        print(f"not up to date: {', '.join(outdated)}" if outdated else "up to date")
        return bool(outdated)
    for name in outdated:
        (TARGET / name).write_text(sources[name])
    return 0


def _current(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())

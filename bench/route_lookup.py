"""Measures how long the API takes to find the route of a request, compared with trying route by route.

    python bench/route_lookup.py [--rounds N]

Every route of the service is looked up, with a value for each parameter. Rounds alternate in one process, so
other load affects both. The figures to read are the ratios. The script fails if the two disagree about any
path, also with encoded slashes, empty segments and paths that do not exist.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from homing.api.all_routes import all_routes
from homing.api.http.bodies import ApiError
from homing.api.http.routing import Route, RouteTable

_CALLS = 3_000

Find = Callable[[str, str], tuple[Route, dict[str, str]]]


class RouteByRoute:
    """The comparison: compares the segments of a path with those of one route after another."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._shapes: dict[int, dict[tuple[str, ...], dict[str, Route]]] = {}
        self._without_parameters: dict[str, dict[str, Route]] = {}
        for route in sorted(routes, key=lambda route: route.path.count("{")):
            shape = tuple(route.path.split("/"))
            known = self._shapes.setdefault(len(shape), {})
            if "{" in route.path:
                known.setdefault(shape, {})[route.method] = route
            else:
                self._without_parameters.setdefault(route.path, {})[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        methods = self._without_parameters.get(path)
        if methods is not None:
            return methods[method], {}
        parts = tuple(map(unquote, path.split("/")) if "%" in path else path.split("/"))
        for shape, methods in self._shapes.get(len(parts), {}).items():
            if all(own[:1] == "{" or own == given for own, given in zip(shape, parts, strict=True)):
                pairs = zip(shape, parts, strict=True)
                params = {own[1:-1]: given for own, given in pairs if own[:1] == "{"}
                if all(params.values()):
                    return methods[method], params
        raise ApiError("NOT_FOUND", "")


def took_us(find: Find, method: str, path: str) -> float:
    began = time.process_time()
    for _ in range(_CALLS):
        find(method, path)
    return (time.process_time() - began) / _CALLS * 1e6


def found(find: Find, method: str, path: str) -> Any:
    try:
        return find(method, path)
    except (ApiError, KeyError):
        return None


def variants(path: str) -> tuple[str, ...]:
    """Returns the path as it is, and with what a lookup can get wrong."""
    values = ("a%2Fb", "%00%0a%2F", "", "retry", "\n")
    return (
        *(path, f"{path}/", f"/{path}", path.replace("/v1", "/v%31")),
        *(path.replace("x1", value) for value in values),
    )


def disagreements(old: Find, new: Find, paths: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{method} {odd!r}"
        for method, path in paths
        for odd in variants(path)
        if found(old, method, odd) != found(new, method, odd)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    old, new = RouteByRoute(all_routes()).find, RouteTable(all_routes()).find
    paths = [(route.method, re.sub(r"\{\w+\}", "x1", route.path)) for route in all_routes()]
    if wrong := disagreements(old, new, paths):
        sys.exit("the two find different routes for:\n" + "\n".join(wrong))
    before: dict[tuple[str, str], list[float]] = {}
    after: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for each in paths:
            before.setdefault(each, []).append(took_us(old, *each))
            after.setdefault(each, []).append(took_us(new, *each))
    with_parameters = [each for each in paths if "x1" in each[1]]
    print(f"{len(paths)} routes, {len(with_parameters)} of them with parameters, {rounds} rounds")
    for name, figures in (("route by route", before), ("one pattern per length", after)):
        each_us = sorted(statistics.median(figures[each]) for each in with_parameters)
        print(f"{name:24} median {statistics.median(each_us):5.2f} µs, longest {each_us[-1]:5.2f} µs")
    ratios = [statistics.median(after[each]) / statistics.median(before[each]) for each in with_parameters]
    print(f"ratio of the two, per route: median {statistics.median(ratios):.2f}, highest {max(ratios):.2f}")


if __name__ == "__main__":
    main()

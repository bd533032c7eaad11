"""Measures what the API pays for the pages beside it: one call with and without the switch between them.

    python bench/page_switch.py [--rounds N]

The application behind the switch does nothing, so the difference is the switch alone. A Starlette application
with the API mounted behind as many routes as the API has is the comparison. Rounds alternate in one process,
so other load affects all. The figures to read are the differences of the CPU times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from homing.api.all_routes import all_routes
from homing.dashboard.pages import PATHS, PREFIX
from homing.http_server.asgi import AsgiApp, PrefixSwitch

_CALLS = 50_000

_PATH = "/api/v1/notifications/send"


async def do_nothing(scope: Any, receive: Any, send: Any) -> None:
    """Is the API in this measurement."""


async def show_page(request: Request) -> Response:
    return Response()


def mounted() -> AsgiApp:
    """Returns what a framework would do: try the pages' routes first, then the API as a mount."""
    count = len({route.path for route in all_routes()})
    pages = [Route(f"/ui/page{number}", show_page) for number in range(count)]
    return Starlette(routes=[*pages, Mount("/", app=do_nothing)])


def run(call: Callable[[], Awaitable[None]], calls: int) -> float:
    """Drives coroutines that never wait, without an event loop. Returns µs of CPU time per call."""
    began = time.process_time()
    for _ in range(calls):
        try:
            call().__await__().__next__()
        except StopIteration:
            continue
        raise AssertionError("the application waits for something")
    return (time.process_time() - began) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    apps: dict[str, tuple[AsgiApp, int]] = {
        "without pages": (do_nothing, _CALLS),
        "prefix switch": (PrefixSwitch(do_nothing, do_nothing, paths=PATHS, prefix=PREFIX), _CALLS),
        "Starlette mount": (mounted(), _CALLS // 50),
    }
    figures: dict[str, list[float]] = {name: [] for name in apps}
    for _ in range(rounds):
        for name, (app, calls) in apps.items():
            figures[name].append(run(lambda app=app: app(_scope(), None, None), calls))  # type: ignore[misc]
    base = statistics.median(figures["without pages"])
    for name, each in figures.items():
        print(f"{name:16} {statistics.median(each):7.2f} µs, {statistics.median(each) - base:+7.2f} µs")


def _scope() -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": _PATH, "root_path": "", "headers": []}


if __name__ == "__main__":
    main()

"""Opens the engine together with its metrics and traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from homing.cli.collector import calm_collector
from homing.cli.shared import Options, engine

if TYPE_CHECKING:
    from homing.compose import Watchers
    from homing.config import Settings
    from homing.library import Homing


@asynccontextmanager
async def watched(
    options: Options, settings: Settings, *, count: bool = False
) -> AsyncIterator[tuple[Homing, Watchers]]:
    """Opens the engine with the telemetry of the settings.

    `count` collects metrics even if the settings have no address to serve them on.
    """
    from homing import compose

    watchers = compose.watchers(settings, count=count)
    counted, traced = watchers
    async with AsyncExitStack() as stack:
        if traced is not None:
            stack.push_async_callback(asyncio.to_thread, traced.close)
        homing = await stack.enter_async_context(engine(options, settings, watchers.all))
        if counted is not None and settings.metrics.listen:
            endpoint = await stack.enter_async_context(compose.endpoint(settings, counted, homing))
            options.screen.line(f"metrics on http://{endpoint.address}/metrics")
        elif counted is not None:
            counted.watch(homing)
        calm_collector()
        yield homing, watchers

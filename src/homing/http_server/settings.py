"""Limits of the HTTP server. They can be loaded without uvicorn."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from homing.core.bounds import NOT_A_SETTING, PositiveCount, PositiveDurationMs


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Limits of the server's connections."""

    head_bytes: Annotated[int, NOT_A_SETTING] = 32 * 1024
    """Maximum size of the head of a request."""
    head_ms: PositiveDurationMs = 10_000
    """Maximum time for the head of a request to arrive."""
    write_ms: Annotated[int, NOT_A_SETTING] = 60_000
    """Maximum time for which a response may wait for its client to read it."""
    keep_alive_ms: PositiveDurationMs = 75_000
    """Maximum time for which an idle connection is kept open."""
    max_connections: PositiveCount = 4_000
    """Maximum number of open connections. Further connections get 503."""
    stop_ms: Annotated[int, NOT_A_SETTING] = 30_000
    """Maximum time for which a stop waits for requests in progress. The service uses its `answer_ms`."""

"""Settings of the service. Settings can be loaded without the rest of the service, which needs uvicorn."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.core.bounds import (
    NOT_A_SETTING,
    Count,
    PerSecond,
    PositiveBytes,
    PositiveCount,
    PositiveDurationMs,
)

PublicUrl = Annotated[
    str,
    Meta(
        pattern=r"^(https?://[^\s/?#]+(/[^\s?#]*)?)?\Z",
        extra={"form": "a URL like https://notify.example.org"},
    ),
]


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Limits of the server's connections."""

    head_ms: PositiveDurationMs = 10_000
    """Maximum time for the head of a request to arrive."""
    keep_alive_ms: PositiveDurationMs = 75_000
    """Maximum time for which an idle connection is kept open."""
    max_connections: PositiveCount = 4_000
    """Maximum number of open connections. Further connections get 503."""
    stop_ms: Annotated[int, NOT_A_SETTING] = 30_000
    """Maximum time for which a stop waits for requests in progress. The service uses its `answer_ms`."""


class ServiceSettings(ServerSettings, frozen=True, kw_only=True):
    """Limits and addresses of the service."""

    public_url: PublicUrl = ""
    """Base URL under which providers and recipients reach the service. If empty, that of each request."""
    body_bytes: PositiveBytes = 1024 * 1024
    """Maximum size of a request body after decompression."""
    batch_bytes: PositiveBytes = 32 * 1024 * 1024
    """Maximum size of the body of a batch after decompression."""
    buffer_bytes: PositiveBytes = 256 * 1024 * 1024
    """Maximum total size of all bodies in memory. Excess requests get 503."""
    read_ms: PositiveDurationMs = 10_000
    """Maximum time for a request body to arrive."""
    answer_ms: PositiveDurationMs = 30_000
    """Maximum time for handling a request. Time left over from `read_ms` is added."""
    max_requests: PositiveCount = 1_000
    """Maximum number of concurrent requests. Excess requests get 503."""
    rate_per_second: PerSecond = 0.0
    """Maximum requests per second of callers without a rate limit of their own. 0 means no limit."""
    rate_burst: Count = 0
    """Bucket size for that rate limit. 0 means two seconds' worth of requests."""

"""Settings of the service. Settings can be loaded without the rest of the service, which needs uvicorn."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from homing.core.access.api_keys import MAX_RATE_PER_SECOND
from homing.core.bounds import Count, PositiveBytes, PositiveCount, PositiveDurationMs
from homing.http_server.settings import ServerSettings

PublicUrl = Annotated[
    str,
    Meta(
        pattern=r"^(https?://[^\s/?#]+(/[^\s?#]*)?)?\Z",
        extra={"form": "a URL like https://notify.example.org"},
    ),
]

RequestRate = Annotated[float, Meta(ge=0, le=MAX_RATE_PER_SECOND, extra={"unit": "per second"})]


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
    rate_per_second: RequestRate = 0.0
    """Maximum requests per second of callers without a rate limit of their own. 0 means no limit."""
    rate_burst: Count = 0
    """Bucket size for that rate limit. 0 means two seconds' worth of requests."""

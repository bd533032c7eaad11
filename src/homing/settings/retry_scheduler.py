"""The environment variables of the retry scheduler, the service that consumes and publishes to RabbitMQ.

`homing bridge rabbitmq` needs no settings file: these names, which such services already use, are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homing.core.errors import ConfigError

BRIDGE = "rabbitmq"
"""Name of the bridge and of the provider."""

MANUAL_REVIEW_SINK = "manual-review"

_LAST_PORT = 65_535

_LONGEST_DELAY_MS = 365 * 86_400_000

_MAX_RETRIES = 999


def read_retry_scheduler_variables(env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings that the variables stand for, with the defaults of the service.

    Raises `ConfigError` with the name of a variable that is wrong.
    """
    service = env.get("SERVICE_NAME", "").strip() or "retry-scheduler"
    port = _number(env, "HTTP_PORT", 8086, 0, _LAST_PORT)
    poll_ms = _number(env, "RETRY_POLL_INTERVAL_MS", 10_000, 1, _LONGEST_DELAY_MS)
    retries = _number(env, "DEFAULT_MAX_RETRIES", 3, 0, _MAX_RETRIES)
    base_ms = _number(env, "BASE_DELAY_MS", 2_000, 1, _LONGEST_DELAY_MS)
    cap_ms = _number(env, "MAX_DELAY_MS", 60_000, 1, _LONGEST_DELAY_MS)
    url, queue = env.get("RABBITMQ_URL", "").strip(), env.get("RETRY_QUEUE", "").strip()
    review, store = env.get("MANUAL_REVIEW_QUEUE", "").strip(), env.get("DATABASE_URL", "").strip()
    if store and store != "memory:" and not store.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "DATABASE_URL",
            "must be a URL like postgresql://user@host/database, or memory:; "
            "for another store, unset it and set HOMING_STORE",
        )
    bridge = {
        **({"url": url} if url else {}),
        **({"queue": queue} if queue else {}),
        **({"manual_review_queue": review} if review else {}),
    }
    return {
        **({"store": store} if store else {}),
        "preset": "broker",
        "rules": [
            {
                "name": "retry-scheduler",
                "channel": "queue",
                "max_attempts": retries + 1,
                "base_ms": min(base_ms, cap_ms),
                "cap_ms": cap_ms,
            }
        ],
        "worker": {"poll_ms": poll_ms},
        "metrics": {"listen": f"127.0.0.1:{port}"},  # they need no key, so other hosts must be allowed
        "tracing": {"service_name": service},
        "log": {"format": "json", "level": "info"},
        "bridges": {BRIDGE: bridge},
    }


def _number(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    given = env.get(name, "").strip()
    if not given:
        return default
    if not (given.isascii() and given.isdigit()) or not least <= int(given[:20]) <= most:
        raise ConfigError(name, f"is {given[:40]!r}; it must be a whole number between {least} and {most}")
    return int(given)

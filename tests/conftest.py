"""Settings of all suites. This file also makes pytest put tests/ on the import path, for `support`."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import HealthCheck, settings

# Property tests are judged by what they find, never by how fast the machine generates examples. The other
# settings are Hypothesis' own: random examples, and with CI=true the same ones in every run.
settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.load_profile("unhurried")

# Assertions outside of test modules explain their failures only if pytest rewrites them.
pytest.register_assert_rewrite("homing.testing.store_suite", "homing.testing.provider_suite", "support")
pytest_plugins = [
    "support.engine_fixtures",
    "support.event_loops",
    "support.fresh_seeds",
    "support.kafka_broker",
    "support.mongo_server",
    "support.postgres_servers",
    "support.rabbitmq_server",
    "support.redis_server",
    "support.running_service",
    "support.shared_fixtures",
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs slow tests first, spread over the processes, so that no process has one left at the end."""
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = iter([item for item in items if not item.get_closest_marker("slow")])
    share = len(items) // processes  # pytest-xdist gives each process that many tests, in this order
    shared = [slow[number::processes] for number in range(processes)]
    items[:] = [item for mine in shared for item in (*mine, *islice(others, max(0, share - len(mine))))]
    items.extend(others)

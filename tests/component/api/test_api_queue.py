"""The queue operations over real HTTP: the same numbers as from Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from homing import Homing, Listed, Outcome, OutcomeKind, PolicyPatch, Rule
from homing.core.notifications import Channel
from homing.core.ports.providers import Delivery
from homing.core.retry.presets import find_preset
from homing.engine.operations.policies import Policies
from homing.engine.system_runtime import SystemClock
from support.heap_timer import HeapTimer
from support.local_broker import LocalBridge
from support.running_service import RunningService

Serve = Callable[..., RunningService]


class OutcomeByAddress:
    """A provider whose outcome depends on the address."""

    async def send(self, delivery: Delivery) -> Outcome:
        name = delivery.address.partition("@")[0]
        if name == "busy" or (name == "flaky" and delivery.attempt == 1):
            return Outcome(OutcomeKind.TRANSIENT, error_code="503", error="busy")
        if name == "nobody":
            return Outcome(OutcomeKind.BAD_RECIPIENT, error_code="550", error="no such mailbox")
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"m-{delivery.notification_id}")


@pytest.fixture
def service(serve: Serve) -> RunningService:
    """Five notifications: sent at once, sent after a retry, dead, in backoff, and not attempted yet."""
    pigeon = Listed(id="pigeon", provider=OutcomeByAddress(), channels=(Channel.EMAIL,))  # type: ignore[arg-type]
    rules = [Rule(name="quick", type="quick", policy=PolicyPatch(base_ms=0, cap_ms=0))]
    service = serve(store="memory:", providers={"pigeon": pigeon}, preset="simple", rules=rules)
    for name, type in (("ada", "x"), ("flaky", "quick"), ("nobody", "x"), ("busy", "x")):
        send(service, name, type)
    service.on_loop(lambda engine: engine.process())
    service.on_loop(lambda engine: engine.process())
    send(service, "new", "x")
    return service


def send(service: RunningService, name: str, type: str) -> None:
    to = {"email": f"{name}@example.org"}
    request = {"recipient": to, "channel": "email", "type": type, "content": {"body": "x"}}
    assert service.call("POST", "/api/v1/notifications/send", request).status == 202


def get(service: RunningService, path: str, **options: Any) -> Any:
    found = service.call("GET", f"/api/v1/queue/{path}", **options)
    assert found.status == 200, found
    return found.json


def names(found: Any) -> list[str]:
    return [one["recipient"]["email"].partition("@")[0] for one in found["items"]]


def test_the_numbers_equal_those_from_python(service: RunningService) -> None:
    async def told(engine: Homing) -> Any:
        return {
            "counts": await engine.queue_counts(),
            "statistics": {"items": await engine.retry_statistics()},
            "success-by-attempt": {"items": await engine.success_by_attempt()},
            "errors": {"items": await engine.error_groups()},
            "roll-ups": {"items": await engine.roll_ups()},
        }

    for path, numbers in msgspec.json.decode(msgspec.json.encode(service.on_loop(told))).items():
        assert get(service, path) == numbers, path


def test_statistics_show_the_success_of_retries(service: RunningService) -> None:
    counts = get(service, "counts")
    assert {name: count for name, count in counts.items() if count} == {
        "pending": 1, "retrying": 1, "sent": 2, "failed": 1
    }  # fmt: skip
    assert get(service, "statistics")["items"] == [
        {"attempts": 1, "count": 2, "pendingCount": 1, "failedCount": 1},
    ]
    assert get(service, "success-by-attempt")["items"] == [
        {"attempts": 1, "total": 3, "succeeded": 1, "failed": 1, "successRate": 33.33},
        {"attempts": 2, "total": 1, "succeeded": 1, "failed": 0, "successRate": 100.0},
    ]
    (group,) = get(service, "errors")["items"]
    assert (group["reason"], group["errorCode"], group["count"]) == ("BAD_RECIPIENT", "550", 1)
    (hour,) = get(service, "roll-ups?sinceMs=3600000")["items"]
    assert (hour["accepted"], hour["sent"], hour["failed"], hour["retried"]) == (5, 2, 1, 2)


def test_health_has_its_thirteen_numbers_and_the_thresholds(service: RunningService) -> None:
    health = get(service, "health")
    assert health.pop("healthy") is True
    thresholds = {one["metric"]: one for one in health.pop("thresholds")}
    assert list(thresholds) == [
        *("pendingRetryCount", "recentFailureRate", "oldestRetry", "newDeadLettersAgainstHourBefore"),
        *("unacknowledgedDeadLetters", "oldestDeadLetterMs", "withinGoalStandard"),
    ]
    assert {one["name"] for one in thresholds.values() if one["exceeded"]} == set()
    assert (thresholds["pendingRetryCount"]["value"], thresholds["pendingRetryCount"]["limit"]) == (1, 100)
    assert (thresholds["recentFailureRate"]["value"], thresholds["recentFailureRate"]["limit"]) == (33.3, 5)
    assert len(health) == 13
    assert health["oldestRetry"].endswith("Z")
    assert (health["totalNotifications"], health["sentCount"], health["recoveredByRetryCount"]) == (5, 2, 1)
    assert (health["successRate"], health["failureRate"], health["retryRecoveryRate"]) == (40.0, 20.0, 50.0)


def test_pending_and_waiting_accept_other_settings_and_change_nothing(service: RunningService) -> None:
    assert names(get(service, "pending")) == ["new"]
    assert names(get(service, "waiting")) == ["busy"]
    assert sorted(names(get(service, "pending?delayMs=0"))) == ["busy", "new"]
    assert names(get(service, "pending?delayMs=0&maxAttempts=1")) == ["new"]
    assert names(get(service, "waiting?delayMs=0")) == []
    assert names(get(service, "waiting?by=last-attempt")) == ["busy"]
    (waits,) = get(service, "errors?status=retrying")["items"]
    assert (waits["count"], waits["unacknowledged"], waits["lastError"]) == (1, 0, "busy")
    (own,), (longer,) = (get(service, path)["items"] for path in ("waiting", "waiting?delayMs=3600000"))
    assert longer["nextRetryAt"] > own["nextRetryAt"]
    assert names(get(service, "pending")) == ["new"]
    assert get(service, "waiting")["items"] == [own]


def test_a_delay_is_calculated_from_a_base_or_by_the_policy(service: RunningService) -> None:
    assert get(service, "delay?attempt=2&delayMs=300000") == {
        "attempt": 2, "delayMs": 600_000, "delayMinutes": 10.0, "shouldRetry": True
    }  # fmt: skip
    assert not get(service, "delay?attempt=3")["shouldRetry"]
    assert get(service, "delay?attempt=1&type=incident")["delayMinutes"] == 10.0
    assert get(service, "delay?attempt=3&type=quick")["delayMs"] == 0


def test_a_delay_is_that_of_a_rule_which_another_process_has_just_changed(service: RunningService) -> None:
    async def change(engine: Homing) -> None:
        elsewhere = Policies(
            find_preset("simple"),
            (),
            registry=engine._backend,
            clock=SystemClock(),
            random_source=random.Random(1),
        )
        await elsewhere.set(Rule(name="slow", type="x", policy=PolicyPatch(base_ms=90_000)), who="ada")

    assert get(service, "delay?attempt=1&type=x")["delayMs"] == 300_000
    service.on_loop(change)
    assert get(service, "delay?attempt=1&type=x")["delayMs"] == 90_000
    assert get(service, "delay?attempt=1&priority=normal") == get(service, "delay?attempt=1&priority=medium")
    assert get(service, "delay?attempt=0&delayMs=300000")["delayMs"] == 0
    assert get(service, "delay?attempt=1&jitter=true&type=incident")["delayMinutes"] == 10.0, "it has none"


def test_an_invalid_parameter_is_named(service: RunningService) -> None:
    for query, field in (
        ("delay", "attempt"),
        ("delay?attempt=-1001", "attempt"),
        ("pending?limit=0", "limit"),
        ("waiting?delayMs=-5", "delayMs"),
        ("delay?attempt=1&channel=pigeon", "channel"),
        ("roll-ups?since=1h", "since"),
    ):
        refused = service.call("GET", f"/api/v1/queue/{query}")
        assert (refused.status, refused.json["error"]["field"]) == (400, field), refused


def test_another_tenant_sees_nothing(service: RunningService) -> None:
    assert not any(get(service, "counts", key="other").values())
    assert get(service, "health", key="other")["totalNotifications"] == 0
    for path in ("pending", "waiting", "statistics", "success-by-attempt", "errors", "roll-ups"):
        assert get(service, path, key="other") == {"items": []}, path
    assert service.call("GET", "/api/v1/queue/counts", key="default:send").status == 403


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("queue/waiting?by=foo", "by: is 'foo'; it must be one of due, last-attempt"),
        ("queue/errors?status=foo", "status: is 'foo'; it must be one of failed, retrying"),
        ("notifications?metadata=foo", "metadata[0]: must be key=value, both without commas"),
    ],
)
def test_a_wrong_parameter_is_told_what_is_allowed(service: RunningService, path: str, message: str) -> None:
    found = service.call("GET", f"/api/v1/{path}")
    assert (found.status, found.json["error"]["message"]) == (400, message)


def test_the_parts_of_all_processes_are_listed_with_what_waits(serve: Serve) -> None:
    bridge = LocalBridge()
    service = serve(store="memory:", bridges={"local": bridge}, timers={"heap": HeapTimer()})
    send(service, "ada", "x")
    service.on_loop(start_bridges)
    found = service.call("GET", "/api/v1/system").json
    (one,) = found["bridges"]
    assert (one["name"], one["live"], one["waiting"]) == ("local", True, None)
    (timer,) = found["timers"]
    assert (timer["name"], timer["process"]) == ("heap", one["process"])
    (sink,) = found["sinks"]
    assert (sink["parked"], sink["oldestAt"]) == (0, None)
    assert found["workers"] == []


async def start_bridges(engine: Homing) -> None:
    engine.bridges.start()


def test_parked_events_of_a_sink_are_released_and_the_action_is_recorded(service: RunningService) -> None:
    (sink,) = service.call("GET", "/api/v1/system").json["sinks"]
    answer = service.call("POST", f"/api/v1/sinks/{sink['name']}/retry")
    assert answer.json == {"name": sink["name"], "releasedEvents": 0}
    assert service.call("POST", "/api/v1/sinks/none/retry").status == 404
    assert [note[1:3] for note in service.trail.notes] == [("sink.retry", sink["name"])]

"""Policies over HTTP: the effective rules, changes, and simulated outages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from homing import Homing
from homing.core.errors import ConfigError
from homing.core.rehearsal import Rehearsal, RehearsalReport
from homing.rehearsal.rehearse import rehearse_in_subprocess
from support.running_service import RunningService

Serve = Callable[..., RunningService]
RULES = [{"name": "bills", "type": "bill", "max_attempts": 9}]


@pytest.fixture
def service(serve: Serve) -> RunningService:
    return serve(store="memory:", rules=RULES)


def rules(service: RunningService, key: str = "default") -> dict[str, Any]:
    found = service.call("GET", "/api/v1/policies", key=key).json["rules"]
    return {rule["name"]: rule for rule in found}


def test_the_effective_rules_show_their_origin(service: RunningService) -> None:
    body = {"type": "otp", "policy": {"maxAttempts": 2, "baseMs": 500}, "why": "hurry"}
    assert service.call("PUT", "/api/v1/policies/otp-fast", body).status == 200
    found = service.call("GET", "/api/v1/policies").json
    assert (found["preset"], [rule["name"] for rule in found["presetRules"]]) == (
        "priority",
        ["critical", "high", "medium", "low"],
    )
    assert found["presetRules"][0]["source"] == "preset"
    bills, otp = found["rules"]
    assert (bills["name"], bills["source"], bills["policy"]) == ("bills", "configured", {"maxAttempts": 9})
    assert (otp["source"], otp["changedBy"], otp["type"]) == ("changed", "key:default", "otp")
    assert otp["policy"] == {"maxAttempts": 2, "baseMs": 500}
    assert service.call("GET", "/api/v1/policies/otp-fast").json == otp
    assert service.call("GET", "/api/v1/policies/nobody").status == 404


def test_a_change_is_recorded_with_who_why_before_and_after(service: RunningService) -> None:
    changed = service.call("PUT", "/api/v1/policies/bills", {"type": "bill", "policy": {"maxAttempts": 4}})
    assert changed.json["before"]["policy"] == {"maxAttempts": 9}
    assert changed.json["after"]["policy"] == {"maxAttempts": 4}
    gone = service.call("DELETE", "/api/v1/policies/bills?why=not%20needed")
    assert (gone.status, gone.json["after"], gone.json["why"]) == (200, None, "not needed")
    assert rules(service) == {}
    history = service.call("GET", "/api/v1/policies/history").json["items"]
    assert {(one["rule"], one["who"], one["why"]) for one in history} == {
        ("bills", "key:default", "not needed"),
        ("bills", "key:default", ""),
    }
    assert service.call("DELETE", "/api/v1/policies/bills").status == 404
    assert [note[1:3] for note in service.trail.notes] == [
        ("policy.set", "bills"),
        ("policy.unset", "bills"),
    ]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"policy": {"maxAttempts": 0}}, 400, "policy.maxAttempts"),
        ({"policy": {"maxAtempts": 3}}, 400, "policy.maxAtempts"),
        ({"channel": "pigeon"}, 400, "channel"),
        ({"policy": {"backoff": "fixed"}}, 422, "policy.stepsMs"),
        ({"policy": {"baseMs": 5000, "capMs": 10}}, 422, "policy.capMs"),
        ({"policy": {"backoff": "callable", "call": "os:system"}}, 422, "policy.call"),
    ],
)
def test_an_invalid_rule_is_refused_and_changes_nothing(
    service: RunningService, body: Any, status: int, field: str
) -> None:
    before = service.call("GET", "/api/v1/policies").json
    refused = service.call("PUT", "/api/v1/policies/new", body)
    assert (refused.status, refused.json["error"]["field"]) == (status, field)
    assert service.call("GET", "/api/v1/policies").json == before
    assert service.trail.notes == []


def test_the_winning_rule_is_explained_with_exact_delays(service: RunningService) -> None:
    said = service.call("GET", "/api/v1/policies/explain?type=bill&channel=sms&priority=normal").json
    assert (said["rule"], said["presetRule"], said["mode"]) == ("bills", "medium", "standard")
    assert said["keys"] == {
        "tenant": "default",
        "type": "bill",
        "origin": "",
        "channel": "sms",
        "priority": "medium",
    }
    assert said["policy"]["maxAttempts"] == 9
    assert said["sources"]["maxAttempts"] == "rule bills"
    assert said["sources"]["baseMs"] == "preset priority/medium"
    table = service.call("GET", "/api/v1/policies/table?type=bill&channel=sms").json
    assert (table["rule"], table["maxAttempts"], table["delays"]) == ("bills", 9, said["delays"])
    assert table["delays"][:2] == [
        {"attempt": 1, "minMs": 120_000, "maxMs": 156_000, "cumulativeMinMs": 120_000},
        {"attempt": 2, "minMs": 240_000, "maxMs": 312_000, "cumulativeMinMs": 360_000},
    ]


def test_a_tenant_neither_sees_nor_changes_a_rule_for_another(service: RunningService) -> None:
    for tenant in ("acme", "other"):
        body = {"tenant": tenant, "policy": {"maxAttempts": 3}}
        assert service.call("PUT", f"/api/v1/policies/for-{tenant}", body).status == 200
    assert set(rules(service, "acme:read")) == {"bills", "for-acme"}
    assert set(rules(service)) == {"bills", "for-acme", "for-other"}
    assert service.call("GET", "/api/v1/policies/for-other", key="acme:read").status == 404
    said = service.call("GET", "/api/v1/policies/explain?type=x", key="acme:read").json
    assert (said["rule"], said["rules"]) == ("for-acme", ["bills", "for-acme"])
    key = "acme:read,operate,manage,send"
    assert service.call("PUT", "/api/v1/policies/mine", {}, key=key).status == 403
    assert service.call("DELETE", "/api/v1/policies/for-acme", key=key).status == 403
    assert service.call("GET", "/api/v1/policies/history", key=key).status == 403


def test_a_change_applies_from_the_next_decision_on(service: RunningService) -> None:
    service.call("PUT", "/api/v1/policies/everything", {"policy": {"maxAttempts": 1}})

    async def allowed(engine: Homing) -> int:
        sent = await engine.send("a@example.org", channel="email", body="x")
        return (await engine.retry_info(sent.id)).max_attempts

    assert service.on_loop(allowed) == 1


def test_a_rule_s_name_is_a_single_line(service: RunningService) -> None:
    refused = service.call("PUT", "/api/v1/policies/otp%0A", {"policy": {"maxAttempts": 2}})
    assert (refused.status, refused.json["error"]["field"]) == (422, "name")
    assert list(rules(service)) == ["bills"]


# Simulated outages --------------------------------------------------------------------------------------


def simulating(service: RunningService, simulate: Any) -> None:
    service.app.service.simulate = simulate


def test_an_outage_is_simulated_with_the_engine_itself(service: RunningService) -> None:
    simulating(service, partial(rehearse_in_subprocess, within_ms=60_000))  # for a busy machine
    body = {
        "policy": {"maxAttempts": 1, "backoff": "fixed", "stepsMs": [1000], "jitter": "none"},
        "traffic": {"perSecond": 1.0, "durationMs": 60_000},
        "outages": [{"startMs": 10_000, "durationMs": 20_000}],
        "notifications": 50,
    }
    answer = service.call("POST", "/api/v1/policies/simulate", body, key="default:manage")
    assert answer.status == 200, answer.body
    report = answer.json
    assert report["notifications"] == 50
    assert report["delivered"] + report["deadLetters"] + report["unfinished"] == 50
    assert (report["deadLetters"] > 0, report["delivery"]["p50"] > 0) == (True, True)
    assert report["recoveryPeaks"]
    assert service.call("POST", "/api/v1/policies/simulate", body).json == report
    assert service.call("GET", "/api/v1/notifications").json["items"] == []


def test_without_parameters_the_caller_s_effective_policies_are_simulated(service: RunningService) -> None:
    asked: list[Rehearsal] = []

    async def simulate(rehearsal: Rehearsal) -> RehearsalReport:
        asked.append(rehearsal)
        raise ConfigError("notifications", "is too much")

    simulating(service, simulate)
    body = {"traffic": {"tenant": "other"}}
    refused = service.call("POST", "/api/v1/policies/simulate", body, key="acme")
    assert (refused.status, refused.json["error"]["code"]) == (422, "CONFIG_ERROR")
    (rehearsal,) = asked
    assert [rule.name for rule in rehearsal.rules] == ["bills"]
    assert rehearsal.traffic.tenant == "acme"
    assert not any(service.app.service.working.values())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"traffic": {"type": "two words"}}, 400),
        ({"preset": "daily"}, 400),
        ({"notifications": 100_000}, 400),
        ({"outages": [{"providers": ["secondary"]}]}, 422),
        ({"traffic": {"priorities": {}}}, 422),
        ({"policy": {"backoff": "fixed"}}, 422),
    ],
)
def test_an_invalid_simulation_is_refused(service: RunningService, body: Any, status: int) -> None:
    simulating(service, rehearse_in_subprocess)
    assert service.call("POST", "/api/v1/policies/simulate", body).status == status


def test_a_tenant_runs_one_simulation_at_a_time(serve: Serve, tmp_path: Path) -> None:
    service = serve(store=str(tmp_path / "homing.db"))
    asked, most = threading.Barrier(8), [0]
    answered = threading.Event()

    async def simulate(rehearsal: Rehearsal) -> RehearsalReport:
        most[0] = max(most[0], service.app.service.working["simulations", "*"])
        if most[0] > 1:
            answered.set()
        await asyncio.to_thread(answered.wait, 60)
        raise ConfigError("notifications", "is too much")

    def ask(_: int) -> int:
        asked.wait(60)
        status = int(service.call("POST", "/api/v1/policies/simulate", {}).status)
        if status == 503:  # the others are refused while one is running
            answered.set()
        return status

    simulating(service, simulate)
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(ask, range(8)))
    assert (most[0] <= 1, 503 in statuses, set(statuses) <= {422, 503}) == (True, True, True)
    assert not any(service.app.service.working.values())


@pytest.mark.parametrize(
    "path", ["/policies/simulate", "/templates/check", "/templates/order_confirmed/preview"]
)
def test_simulations_previews_and_checks_need_the_scope_manage(service: RunningService, path: str) -> None:
    assert service.call("POST", f"/api/v1{path}", {}, key="default:read").status == 403


def test_a_process_without_the_simulator_returns_an_error(service: RunningService) -> None:
    refused = service.call("POST", "/api/v1/policies/simulate", {})
    assert (refused.status, refused.json["error"]["code"]) == (422, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"policy": {"maxAttempts": 0}}, "policy.maxAttempts: must be a whole number, at least 1"),
        (
            {"policy": {"backoff": "double"}},
            "policy.backoff: is 'double'; it must be one of exponential, linear, fibonacci, fixed, callable",
        ),
        ({"policy": {"baseMs": "5m"}}, "policy.baseMs: must be a whole number, not a string"),
        (None, "the body is empty; send JSON"),
    ],
)
def test_a_malformed_rule_is_refused_in_plain_words(
    service: RunningService, body: dict[str, Any] | None, message: str
) -> None:
    refused = service.call("PUT", "/api/v1/policies/bills", body)
    assert (refused.status, refused.json["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        (
            "POST",
            "tenants",
            {"name": "a b"},
            "name: must be letters, digits and . _ -, starting with a letter or digit",
        ),
        (
            "POST",
            "jobs/x/stop",
            None,
            "id: has a form that is not allowed; it must match ^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        ),
    ],
)
def test_text_of_a_wrong_form_is_refused_in_plain_words(
    service: RunningService, method: str, path: str, body: dict[str, Any] | None, message: str
) -> None:
    refused = service.call(method, f"/api/v1/{path}", body)
    assert (refused.status, refused.json["error"]["message"]) == (400, message)

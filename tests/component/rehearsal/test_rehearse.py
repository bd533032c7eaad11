"""Simulated outages: the effect of a policy, computed by the engine's own code."""

from __future__ import annotations

import logging
from functools import cache
from xml.etree import ElementTree

import msgspec
import pytest

from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Priority
from homing.core.rehearsal import Outage, OutageKind, Rehearsal, RehearsalReport, Traffic
from homing.core.retry.policy import OnTimeout, PolicyPatch, RetryPolicy, Rule
from homing.core.routing.breaker import BreakerPolicy
from homing.rehearsal.chart import draw_svg
from homing.rehearsal.rehearse import rehearse

MINUTE_MS = 60_000
SOME = Traffic(per_second=1.0, duration_ms=20 * MINUTE_MS)
TEN_MINUTES = Outage(start_ms=MINUTE_MS, duration_ms=10 * MINUTE_MS)
NO_BREAKER = BreakerPolicy(failures=10**6)


LONG = pytest.mark.no_cover
"""Twenty minutes with traffic. Other tests execute the same lines, and tracing each of them takes long."""


@cache
def reported(providers: int = 1) -> RehearsalReport:
    """Returns the report of an outage of the first provider. The same plan always has the same report."""
    return rehearse(Rehearsal(traffic=SOME, outages=(TEN_MINUTES,), providers=providers))


def counts(report: RehearsalReport) -> dict[str, int]:
    found: dict[str, int] = {}
    for ending in report.endings:
        found[ending.status] = found.get(ending.status, 0) + ending.count
    return found


@LONG
def test_without_an_outage_everything_is_delivered_at_once() -> None:
    report = rehearse(Rehearsal(traffic=SOME, outages=()))
    assert report.delivered == report.notifications == report.attempts == 1200
    assert report.delivery is not None
    assert report.delivery.p50 < report.delivery.p99 <= report.delivery.max < 1_000
    assert report.largest_backlog < 10
    assert report.breaker_changes == ()
    assert report.recovery_peaks == ()


@LONG
def test_a_ten_minute_outage_under_the_default_policy_loses_nothing() -> None:
    report = reported()
    assert report.policy == "preset priority"
    assert report.delivered == report.notifications
    assert report.dead_letters == report.unfinished == 0
    assert report.delivery is not None
    assert report.delivery.p99 > 9 * MINUTE_MS
    assert report.delivery.max < 20 * MINUTE_MS
    assert 550 < report.largest_backlog < 650


@LONG
def test_a_second_provider_takes_over_at_once() -> None:
    report = reported(providers=2)
    assert report.delivered == report.notifications
    assert report.delivery is not None
    assert report.delivery.max < 2_000


@pytest.mark.parametrize("providers", [1, 2])
def test_if_all_providers_are_down_a_second_one_neither_shortens_nor_lengthens_the_retries(
    providers: int,
) -> None:
    down = Outage(providers=("primary", "secondary")[:providers], start_ms=0, duration_ms=40 * MINUTE_MS)
    traffic = Traffic(per_second=0.2, duration_ms=MINUTE_MS)
    report = rehearse(
        Rehearsal(preset="simple", traffic=traffic, outages=(down,), providers=providers, breaker=NO_BREAKER)
    )
    assert report.dead_letters == report.notifications
    assert report.attempts == 3 * providers * report.notifications
    assert 15 * MINUTE_MS < report.ended_ms < 18 * MINUTE_MS


@LONG
def test_the_breaker_opens_in_the_outage_and_closes_after_it() -> None:
    changes = reported().breaker_changes
    assert (changes[0].before, changes[0].after) == ("closed", "open")
    assert MINUTE_MS < changes[0].at_ms < MINUTE_MS + 30_000
    assert (changes[-1].before, changes[-1].after) == ("half_open", "closed")
    assert TEN_MINUTES.end_ms <= changes[-1].at_ms < TEN_MINUTES.end_ms + 61_000


@LONG
def test_the_few_retries_of_the_broker_preset_do_not_outlast_a_throttled_provider() -> None:
    throttle = Outage(start_ms=MINUTE_MS, duration_ms=10 * MINUTE_MS, kind=OutageKind.THROTTLE)
    report = rehearse(Rehearsal(preset="broker", traffic=SOME, outages=(throttle,)))
    hit = 600
    assert report.dead_letters > 0.7 * hit
    assert [e.reason for e in report.endings if e.status == "failed"] == ["RETRIES_EXHAUSTED"]


@LONG
def test_without_a_breaker_the_broker_preset_uses_up_its_attempts_during_an_outage() -> None:
    plan = Rehearsal(preset="broker", traffic=SOME, outages=(TEN_MINUTES,))
    with_breaker = rehearse(plan)
    without = rehearse(msgspec.structs.replace(plan, breaker=NO_BREAKER))
    assert with_breaker.dead_letters < 10
    assert without.dead_letters > 500


@LONG
def test_a_second_provider_takes_over() -> None:
    report = reported(providers=2)
    assert report.delivered == report.notifications
    assert report.delivery is not None
    assert report.delivery.p95 < 1_000
    during = [b for b in report.buckets if 2 * MINUTE_MS <= b.start_ms < 10 * MINUTE_MS]
    assert sum(b.sends_per_second["secondary"] for b in during) > 0
    after = [b for b in report.buckets if b.start_ms > TEN_MINUTES.end_ms + MINUTE_MS]
    assert sum(b.sends_per_second["primary"] for b in after) > 0


@LONG
def test_recovery_ramps_up_instead_of_sending_the_backlog_at_once() -> None:
    report = reported()
    (peak,) = report.recovery_peaks
    assert peak.provider == "primary"
    assert peak.at_ms > TEN_MINUTES.end_ms
    assert peak.times_normal > 1
    assert peak.per_second < report.largest_backlog / 10, "all at once would be this much"


@LONG
def test_notifications_that_waited_too_long_for_their_provider_are_counted_separately() -> None:
    rule = Rule(name="soon or never", policy=PolicyPatch(max_age_ms=5 * MINUTE_MS))
    report = rehearse(Rehearsal(rules=(rule,), traffic=SOME, outages=(TEN_MINUTES,)))
    reasons = {e.reason: e.count for e in report.endings if e.status == "failed"}
    assert reasons["PROVIDER_UNAVAILABLE"] > 250


@LONG
def test_a_missing_response_is_held_if_the_policy_says_so() -> None:
    slow = Outage(start_ms=MINUTE_MS, duration_ms=5 * MINUTE_MS, kind=OutageKind.SLOW, share=0.5)
    policy = RetryPolicy(on_timeout=OnTimeout.HOLD, timeout_ms=5_000)
    report = rehearse(Rehearsal(policy=policy, traffic=SOME, outages=(slow,), breaker=NO_BREAKER))
    assert counts(report)["in_doubt"] == report.unfinished > 50
    assert report.policy == "own policy, 6 attempts, exponential"


@LONG
def test_rules_and_priorities_have_an_effect() -> None:
    rule = Rule(name="one shot", priority="low", policy=PolicyPatch(max_attempts=1))
    traffic = msgspec.structs.replace(SOME, priorities={Priority.LOW: 1, Priority.HIGH: 1})
    report = rehearse(Rehearsal(rules=(rule,), traffic=traffic, outages=(TEN_MINUTES,), breaker=NO_BREAKER))
    assert 0.3 < report.dead_letters / 600 < 0.7, "the low half of what the outage hit"
    assert report.policy == "preset priority and 1 rule"


def test_the_same_simulation_gives_the_same_report() -> None:
    plan = Rehearsal(traffic=Traffic(per_second=2.0, duration_ms=5 * MINUTE_MS), providers=2, seed=7)
    report = msgspec.json.encode(rehearse(plan))
    assert msgspec.json.encode(rehearse(plan)) == report
    other = msgspec.structs.replace(plan, seed=8)
    assert msgspec.json.encode(rehearse(other)) != report


def test_the_number_of_notifications_is_limited() -> None:
    assert rehearse(Rehearsal(traffic=SOME, outages=(), notifications=50)).notifications == 50


@pytest.mark.parametrize("channel", [c for c in Channel if c is not Channel.EMAIL])
def test_every_channel_can_be_simulated(channel: Channel) -> None:
    traffic = Traffic(per_second=1.0, duration_ms=MINUTE_MS, channel=channel)
    assert rehearse(Rehearsal(traffic=traffic, outages=())).delivered == 60


def test_the_report_survives_json() -> None:
    report = rehearse(Rehearsal(traffic=Traffic(duration_ms=MINUTE_MS)))
    assert msgspec.json.decode(msgspec.json.encode(report), type=RehearsalReport) == report


def test_the_chart_is_well_formed_and_labelled() -> None:
    report = reported(providers=2)
    root = ElementTree.fromstring(draw_svg(report))
    assert root.tag.endswith("svg")
    words = " ".join(node.text or "" for node in root.iter() if node.tag.endswith("text"))
    for said in (
        "preset priority",
        "sends to primary",
        "sends to secondary",
        "backlog",
        "primary down",
        "time",
    ):
        assert said in words
    numbers = [float(v) for node in root.iter() for k, v in node.attrib.items() if k in ("x", "y")]
    assert all(0 <= number <= 960 for number in numbers)


def test_simulated_events_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        rehearse(Rehearsal(traffic=Traffic(duration_ms=3 * MINUTE_MS)))
    assert not [record for record in caplog.records if record.name.startswith("homing")]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"providers": 3}, "providers"),
        ({"outages": (Outage(providers=("secondary",)),)}, r"outages\[0\].providers"),
        ({"outages": (Outage(share=0.0),)}, r"outages\[0\].share"),
        ({"outages": (Outage(duration_ms=0),)}, r"outages\[0\].duration_ms"),
        ({"traffic": Traffic(per_second=0)}, "traffic.per_second"),
        ({"traffic": Traffic(priorities={})}, "traffic.priorities"),
        ({"notifications": 10**9}, "notifications"),
        ({"policy": RetryPolicy(), "rules": (Rule(name="x"),)}, "rules"),
    ],
)
def test_an_invalid_simulation_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}: "):
        Rehearsal(**fields)  # type: ignore[arg-type]


def test_the_smallest_outage_is_allowed() -> None:
    outage = Outage(start_ms=0, duration_ms=1, share=1, latency_ms=0, retry_after_ms=0)
    assert Rehearsal(outages=(outage,)).outages == (outage,)

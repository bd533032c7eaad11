"""The docs match the code: their tables have the same rows, and their examples say whether they run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from homing import Homing
from homing.core import errors
from homing.core.durations import parse_duration
from homing.core.lifecycle import events, states
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import (
    Channel,
    Content,
    Filter,
    Message,
    Mode,
    Notification,
    OutcomeKind,
    Reason,
    Recipient,
    Status,
)
from homing.core.retry.policy import MODE_DEFAULTS, Backoff, Jitter, OnTimeout, PolicyPatch, RetryPolicy
from homing.core.retry.presets import PRESETS
from homing.core.routing.breaker import PUSH_BREAKER, BreakerPolicy
from homing.core.routing.delivery_modes import MODE_INFO
from homing.core.send_request import SendRequest
from homing.engine.intake.accept import Rejection, SendResult
from homing.settings import default_settings_text
from support.docs_pages import inline_code

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def _all_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _rows(page: str, heading: str, *, table: int = 0) -> list[list[str]]:
    """Returns the cells of a table below a heading, without its head and without backquotes."""
    text = (REFERENCE / page).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
    assert found, f"{page} has no heading {heading!r}"
    section = re.split(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], flags=re.MULTILINE)[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    lines = tables[table].splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def _names(page: str, heading: str, *, table: int = 0) -> list[str]:
    return [row[0] for row in _rows(page, heading, table=table)]


def _listed(page: str, start: str) -> set[str]:
    """Returns the names in the paragraph that starts with this text."""
    text = (REFERENCE / page).read_text()
    paragraph = text[text.index(start) :].partition("\n\n")[0].partition(";")[0]
    return set(re.findall(r"`(\w+)`", paragraph.removeprefix(start)))


def _ms(text: str) -> int:
    return parse_duration(text.replace("min", "m").replace(" ", ""), "docs")


def test_every_code_block_that_imports_homing_is_marked_as_runnable_or_not() -> None:
    """An unmarked block that could run would not be tested."""
    for page in _all_pages():
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            assert "from homing import" not in block, f"{page.name}: mark it runnable, or no-run"


COMING_FROM = sorted((ROOT / "docs" / "coming-from").glob("*.md"))


@pytest.mark.parametrize("page", COMING_FROM, ids=lambda page: page.stem)
def test_every_block_of_a_page_for_newcomers_runs(page: Path) -> None:
    opened = re.findall(r"^```(\w.*)\n", page.read_text(), re.MULTILINE)
    assert all(info == "text output" or info.endswith(" runnable") for info in opened), opened


@pytest.mark.parametrize("page", COMING_FROM, ids=lambda page: page.stem)
def test_the_names_on_a_page_for_newcomers_exist(page: Path) -> None:
    """Their own names are in the first column of a table, and Homing's in the others."""
    from homing.api.all_routes import all_routes
    from homing.compose import LISTED_KEYS
    from homing.telemetry.metric_catalog import CATALOGUE

    schema = "".join(path.read_text() for path in (ROOT / "src/homing/stores/postgres/sql").glob("*.sql"))
    sql = set(re.findall(r"(?:FUNCTION|VIEW|TABLE) homing\.(\w+)", schema))
    routes = {f"{route.method} {route.path}" for route in all_routes()}
    settings = {key for key, _, _ in _rows("settings.md", "Settings")}
    tables = {key.partition(".")[0] for key in settings if "." in key}
    keys = {*settings, *LISTED_KEYS, *PolicyPatch.__struct_fields__, "headers"}
    metrics = {metric.name for metric in CATALOGUE}
    alerts = set(_names("events.md", "Alert", table=1))
    for code in inline_code(page):
        if found := re.match(r"homing\.([a-z]\w+)", code):
            assert found[1] in sql | {"db", "toml"}, code
        elif re.match(r"(GET|POST|PUT|DELETE) /", code):
            assert code in routes, code
        elif re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)+", code) and code.partition(".")[0] in tables:
            assert code in settings, code
        elif found := re.match(r"([a-z_.]+) = ", code):
            assert found[1] in keys, code
        elif found := re.match(r"((?:homing_|retry_|retries_)\w+(?:_total|_depth|_seconds))", code):
            assert found[1] in metrics, code
    for alert in re.findall(r"alert `(\w+)`", page.read_text()):
        assert alert in alerts, alert


THEIR_NAMES = {
    "a-priority-retry-service": """
        DeliveryFailed AssessingRetry SchedulingRetry AwaitingRetry Retrying DeliverySucceeded
        PermanentFailure PriorityConfig maxRetries baseDelayMs maxDelayMs RetryConfig
        getPriorityConfig getPriorityBackoff shouldRetry calculateBackoffDelay addJitter Redis Kafka
        MongoDB""",
    "a-queue-table-with-cron": """
        maxRetryAttempts retryDelayMinutes queueBatchSize gibbonSetting gibbonNotificationQueue
        gibbonNotificationQueueID gibbonPersonID attempts lastAttemptAt sentAt errorMessage
        timestampCreated status_attempts selectPendingNotifications calculateRetryDelay
        getNextRetryTime isReadyForRetry getRetryInfo getRetryStatistics
        selectNotificationsPendingRetry getRetryHealthMetrics getNotificationByID
        getRetrySettingsByType --purge-days --interval=30 pending_retry_count retry_recovery_rate""",
    "a-delivery-service-with-failover": """
        DetermineDeliveryMode DeliveryTimeoutException serviceOrigin maxAttempts baseDelaySeconds
        backoffFactor maxBackoffSeconds jitterMs timeoutSeconds ExponentialBackoffRetryService
        ProviderMessageIds ProviderNames AttemptCount LastAttemptAt RetryWithSecondaryProviderAsync
        spam_report opened clicked TemplateNotFoundException ResolveLocaleAsync PreferredLocale
        RenderedContent NotificationQueue FailedAt LastError providerAttempts forceProvider
        retryAttemptId estimatedDeliveryTime X-Admin-Override""",
    "triggers-with-a-retry-table": """
        push_notification_queue push_notification_dead_letter license_key payload retry_count
        max_retries next_retry_at last_error_at succeeded notification_type entry_id announcement_id
        final_error acknowledged_by view_failed_notifications process_notification_queue
        cleanup_old_queue_entries move_to_dead_letter queue_failed_notification calculate_next_retry
        update_push_notification_secrets push_notification_config process-notifications""",
    "a-retry-scheduler-on-rabbitmq": """
        retry.scheduled manual-review.pending RetryMessage message_id original_payload
        original_queue error_reason retry_count max_retries next_retry_at_ms calculateNextRetryDelay
        retry_queue idx_retry_next_retry retried consumeRetryMessages saveRetryTask getDueRetryTasks
        republishMessage updateRetryTask moveToManualReview SERVICE_NAME HTTP_PORT RABBITMQ_URL
        RETRY_QUEUE MANUAL_REVIEW_QUEUE DEFAULT_MAX_RETRIES BASE_DELAY_MS MAX_DELAY_MS
        RETRY_POLL_INTERVAL_MS DATABASE_URL retries_scheduled_total retries_executed_total
        retries_exhausted_total retry_queue_depth""",
}
"""Names that the readers of each page use today."""


@pytest.mark.parametrize("page", THEIR_NAMES)
def test_a_page_for_newcomers_has_the_names_that_they_know(page: str) -> None:
    text = (ROOT / "docs" / "coming-from" / f"{page}.md").read_text()
    assert [name for name in THEIR_NAMES[page].split() if name not in text] == []


def test_all_statuses_are_described() -> None:
    assert _names("statuses-and-transitions.md", "Statuses") == [
        "pending", "sending", "retrying", *(s.value for s in Status if s not in states.LIVE)
    ]  # fmt: skip


def test_the_transitions_by_claim_and_settlement_match_the_code() -> None:
    claims = {
        (Status(before), Status(after))
        for before, after in _rows("statuses-and-transitions.md", "By a claim")
    }
    assert claims == set(states.CLAIM.items())
    settled = {(Status(r[0]), Status(r[1])) for r in _rows("statuses-and-transitions.md", "By a settlement")}
    assert settled == {(before, after) for before, ends in states.SETTLE.items() for after in ends}


def test_the_transitions_by_command_match_the_code() -> None:
    told = {
        (CommandName(command), Status(before), Status(after))
        for command, before, after in _rows("statuses-and-transitions.md", "By a command")
    }
    real = {(name, before, after) for name, way in states.COMMANDS.items() for before, after in way.items()}
    real.add((CommandName.RESOLVE, Status.IN_DOUBT, Status.FAILED))
    assert told == real


def test_the_ranks_of_receipts_match_the_code() -> None:
    told = {event: int(rank) for event, rank, _ in _rows("statuses-and-transitions.md", "By a receipt")}
    assert told.pop("failed, final") == states.FINAL_FAILURE_RANK
    assert told == {event.value: rank for event, rank in states.RECEIPT_RANK.items()}
    assert set(told) == {event.value for event in ReceiptEvent}


def test_every_term_of_the_sources_has_one_of_ours() -> None:
    rows = _rows("statuses-and-transitions.md", "Status names of other systems")
    for _, _, ours in rows:
        assert Status(ours.partition(",")[0])
    assert {preset for preset, _, _ in rows} == set(PRESETS)


def test_all_outcomes_and_reasons_are_described() -> None:
    assert _names("outcomes-and-reasons.md", "Outcomes") == [kind.value for kind in OutcomeKind]
    assert _names("outcomes-and-reasons.md", "Reasons") == [reason.value for reason in Reason]
    for _, with_statuses, _ in _rows("outcomes-and-reasons.md", "Reasons"):
        assert all(Status(name) for name in with_statuses.split(", "))


def test_the_effect_of_each_outcome_on_a_breaker_matches_the_code() -> None:
    from homing.core.routing.breaker import blames_provider

    words = {True: "failure", False: "success", None: "ignored"}
    for kind, _, _, breaker in _rows("outcomes-and-reasons.md", "Outcomes"):
        assert breaker == words[blames_provider(OutcomeKind(kind))], kind


def test_the_error_codes_match_the_code() -> None:
    told = {(code, name) for code, name, _ in _rows("errors.md", "Errors")}
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.HomingError)
    ]
    assert told == {(kind.code, kind.__name__) for kind in kinds}


def test_the_error_tree_matches_the_module() -> None:
    tree = re.search(r"```text\n(HomingError.*?)```", (REFERENCE / "errors.md").read_text(), re.DOTALL)
    assert tree
    doc = (errors.__doc__ or "").partition("\n\n")[2].splitlines()
    assert tree[1].split("\n")[:-1] == [re.sub(r"(\w) {2,}.*", r"\1", line) for line in doc]


def test_the_settings_match_the_default_file() -> None:
    def flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    told = [
        (key, tomllib.loads(f"value = {default}")["value"])
        for key, default, _ in _rows("settings.md", "Settings")
    ]
    assert told == list(flat(tomllib.loads(default_settings_text())))


def test_the_default_file_names_every_kind_of_sink() -> None:
    from homing.compose.factories import SINKS

    lines = " ".join(default_settings_text().replace("# ", "").split())
    listed = lines.partition("One table per event sink: kind ")[2].partition(", or a kind")[0]
    assert set(listed.split(", ")) == set(SINKS)


def test_the_settings_without_a_default_are_described() -> None:
    headings = re.findall(r"^### `\[+(\w+)", (REFERENCE / "settings.md").read_text(), re.MULTILINE)
    empty = {key for key, value in tomllib.loads(default_settings_text()).items() if value == {}}
    assert set(headings) == empty | {"sinks", "rules"}


def test_the_settings_of_a_provider_are_those_that_the_code_reads() -> None:
    from homing.compose import LISTED_KEYS

    assert set(_names("settings.md", "`[providers.NAME]`")) == set(LISTED_KEYS)


def test_the_fields_of_a_policy_match_the_code() -> None:
    told = {
        field: default for field, default, _ in _rows("policies-and-presets.md", "The fields of a policy")
    }
    policy = RetryPolicy()
    assert told == {name: str(getattr(policy, name)) for name in RetryPolicy.__struct_fields__}
    assert set(RetryPolicy.__struct_fields__) == set(PolicyPatch.__struct_fields__)


def test_every_backoff_and_jitter_is_described() -> None:
    assert _names("policies-and-presets.md", "Backoff") == [kind.value for kind in Backoff]
    assert _names("policies-and-presets.md", "Jitter") == [kind.value for kind in Jitter]
    assert all(
        f"`{choice.value}`" in (REFERENCE / "policies-and-presets.md").read_text() for choice in OnTimeout
    )


@pytest.mark.parametrize("preset", ["priority", "simple", "channel"])
def test_the_rows_of_a_preset_match_its_rules(preset: str) -> None:
    heading = "`priority` (the default)" if preset == "priority" else f"`{preset}`"
    told = {row[0]: row[1:] for row in _rows("policies-and-presets.md", heading)}
    fields = ("base_ms", "cap_ms", "jitter_ms", "timeout_ms")
    assert list(told) == [rule.name for rule in PRESETS[preset].rules]
    for rule in PRESETS[preset].rules:
        attempts, *durations = told[rule.name]
        assert int(attempts) == rule.policy.max_attempts
        for field, duration in zip(fields, durations, strict=False):
            assert _ms(duration) == getattr(rule.policy, field), (rule.name, field)


def test_every_preset_is_described() -> None:
    headings = re.findall(r"^### `(\w+)`", (REFERENCE / "policies-and-presets.md").read_text(), re.MULTILINE)
    assert set(headings) == set(PRESETS)
    assert PRESETS["fixed"].rules[0].policy.steps_ms == tuple(map(_ms, ("1m", "5m", "15m", "1h", "6h")))


def test_the_modes_match_the_code() -> None:
    rows = {row[0]: row[2] for row in _rows("policies-and-presets.md", "Delivery modes")}
    assert set(rows) == {mode.value for mode in Mode}
    for mode, words in rows.items():
        attempts, seconds = (
            MODE_DEFAULTS[Mode(mode)]["max_attempts"],
            MODE_DEFAULTS[Mode(mode)]["timeout_ms"] // 1000,
        )
        assert re.search(
            rf"{'one attempt' if attempts == 1 else f'{attempts} attempts'}\D+{seconds} s", words
        ), mode
    for mode, _, _, queue_name, goal, _ in _rows("policies-and-presets.md", "Delivery modes"):
        info = MODE_INFO[Mode(mode)]
        assert queue_name == info.queue_name or (not info.queue_name and queue_name.startswith("none"))
        assert _ms(goal) == info.latency_goal_ms


def test_the_breaker_s_defaults_match_the_code() -> None:
    text = (REFERENCE / "policies-and-presets.md").read_text().partition("## Breakers")[2]
    usual = BreakerPolicy()
    text = " ".join(text.split())
    assert f"{usual.failures} consecutive failures, for {usual.open_ms // 1000} s" in text
    assert f"after {PUSH_BREAKER.failures} failures, for {PUSH_BREAKER.open_ms // 1000} s" in text
    assert f"called every {usual.health_every_ms // 1000} s" in text
    assert f"with {usual.ramp_per_second:.0f} attempts per second" in text


def test_the_fields_of_events_match_the_published_ones() -> None:
    message = Message(recipient=Recipient(id="u"), content=Content(body="x"))
    failed = events.notification_failed(
        notification_id="n", tenant="t", channel=Channel.EMAIL, message=message, attempts=(),
        attempt_count=1, reason=None, last_error=None, at=0,
    )  # fmt: skip
    changed = events.status_changed(
        notification_id="n", batch_id="b", before=None, after=Status.SENT, attempts=1, reason=None, at=0
    )
    assert _names("events.md", "An event in Python") == list(Event.__struct_fields__)
    assert _names("events.md", "StatusChanged") == list(changed)
    assert _names("events.md", "NotificationFailed") == list(failed)
    assert _names("events.md", "Alert")[:-1] == list(events.alert("n", "m", 0))


def test_every_alert_that_the_engine_raises_is_described() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/homing/engine").rglob("*.py"))
    call = r"(?:_raise_alert|alerts\.add|(?:alerts|self)\.add_once)"
    raised = set(re.findall(call + r"\(\s*(?:f\"[^\"]*\",\s*)?\"([A-Z]\w+)\"", source))
    raised |= set(re.findall(r"ThresholdCheck\(\s*name=\"(\w+)\"", source))
    assert set(_names("events.md", "Alert", table=1)) == raised


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("`Recipient`:", Recipient),
        ("`Content`:", Content),
        ("`Filter`, for `list` and `bulk`:", Filter),
        ("`Rejection`:", Rejection),
    ],
)
def test_all_fields_of_a_struct_are_named(start: str, kind: type[Struct]) -> None:
    assert _listed("python-api.md", start) == set(kind.__struct_fields__)


def test_all_fields_of_a_notification_and_a_result_are_named() -> None:
    text = (REFERENCE / "python-api.md").read_text()
    paragraph = text.partition("<!-- notification: ")[2].partition("<!-- end -->")[0]
    assert re.findall(r"`(\w+)`", paragraph) == list(Notification.__struct_fields__)
    answer = text.partition("`SendResult`:")[2].partition("`Rejection`:")[0]
    assert set(SendResult.__struct_fields__) <= set(re.findall(r"`(\w+)`", answer))


def test_all_fields_of_a_request_are_described() -> None:
    told = [name for cell in _names("python-api.md", "`SendRequest`") for name in cell.split(", ")]
    assert told == list(SendRequest.__struct_fields__)


def test_the_reference_has_exactly_the_public_methods() -> None:
    text = (REFERENCE / "python-api.md").read_text()
    calls = set(re.findall(r"^\| `(?:await |async for … in )?(\w+)\(", text, re.MULTILINE)) | {"stop_worker"}
    public = {
        name for name in dir(Homing) if not name.startswith("_") and callable(getattr(Homing, name))
    } - {"open", "close", "submit_many"}
    assert calls == public

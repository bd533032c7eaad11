"""`homing explain`: shows one notification's history, its policy and its next step."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from homing.cli.common.exit_codes import ExitCode
from homing.cli.common.masking import RecipientMask
from homing.cli.common.options import Json, NotificationId, Options, command, open_engine
from homing.cli.common.screen import Screen, print_json, styled
from homing.cli.common.units import format_local_time
from homing.cli.operations.policy_output import show_policy_fields
from homing.cli.root import app
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from homing.core.notifications import Attempt, Cause, History, Notification
    from homing.engine.operations.explain import Explanation


_WIDE = 100
"""Width of a terminal, in characters, from which on each time of the history is shown with its date."""


@command(app, "explain")
async def explain(options: Options, id: NotificationId, json: Json = False) -> int:
    """Explain what happened to a notification, and what is next."""
    from homing.engine.operations.explain import explanation_view

    async with open_engine(options, existing=True) as homing:
        found = await homing.explain(id)
    if json:
        print_json(options.privacy.wire(explanation_view(found), found.history.notification.recipient))
    else:
        show_explanation(options.screen, options.privacy, found)
    return ExitCode.OK


def show_explanation(screen: Screen, privacy: RecipientMask, found: Explanation) -> None:
    """Prints the whole explanation of a notification."""
    n, resolution = found.history.notification, found.resolution
    head = f"{n.id}  {n.type} by {n.channel.value} to {privacy.recipient(n)}"
    screen.line(head, style="bold")
    screen.line("verdict  ", privacy.error(found.verdict, n.recipient))
    screen.line("next     ", found.next_step)
    if found.split is not None:
        screen.line("split    ", f"accepted while its channel was split {found.split.describe()}")
    timeline = build_timeline(found.history, privacy)
    days, on = {at.partition(" ")[0] for at, *_ in timeline}, ""
    if screen.columns is not None and screen.columns < _WIDE and len(days) == 1:
        on = f" on {days.pop()}"
        timeline = [(at.partition(" ")[2], *rest) for at, *rest in timeline]
    screen.heading(f"What happened{on} (times are local, UTC{format_utc_offset(n.created_at)})")
    screen.table(("AT", "AFTER>", "WHAT", "WHERE", "RESULT", "DETAIL~"), timeline)
    chosen = f"rule {resolution.rule}" if resolution.rule else f"preset rule {resolution.preset_rule}"
    screen.heading(f"Its policy, from {chosen}")
    show_policy_fields(screen, resolution)


def build_timeline(history: History, privacy: RecipientMask) -> list[tuple[Any, ...]]:
    """Returns a table row for the acceptance, each attempt and each other change, oldest first."""
    n = history.notification
    rows: list[tuple[datetime, int, tuple[Any, ...]]] = [
        (n.created_at, 0, ("accepted", "", "", _acceptance_detail(n)))
    ]
    rows += [(a.started_at, 1, _attempt(a, n, privacy)) for a in history.attempts]
    rows += [(c.at, 2, _cause(c, privacy)) for c in history.causes]
    if n.delivered_at and not any(c.status_after == "delivered" for c in history.causes):
        rows.append((n.delivered_at, 3, ("delivered", n.provider, styled("delivered"), "")))
    rows.sort(key=lambda row: (row[0], row[1]))
    begin = n.created_at
    return [(format_local_time(at, millis=True), _after(at - begin), *what) for at, _, what in rows]


def format_utc_offset(at: datetime) -> str:
    """Returns the UTC offset of the local time zone at that time, such as `+02:00`."""
    text = at.astimezone().strftime("%z")
    return f"{text[:3]}:{text[3:]}"


def _acceptance_detail(n: Notification) -> str:
    parts = [f"{n.mode.value} mode, {n.priority.value} priority"]
    if n.channel.value == "sms" and (segments := _sms_segments(n)):
        parts.append(segments)
    if n.resend_of:
        parts.append(f"resend of {n.resend_of}")
    if n.attempts_before:
        parts.append(f"attempts made elsewhere: {n.attempts_before}")
    if n.max_attempts is not None:
        parts.append(f"own limit of attempts: {n.max_attempts}")
    if n.send_at:
        parts.append(f"not before {format_local_time(n.send_at)}")
    if n.expires_at:
        parts.append(f"not after {format_local_time(n.expires_at)}")
    return "; ".join(parts)


def _sms_segments(n: Notification) -> str:
    """Returns how many SMS segments the text takes, or an empty string if it fits into one."""
    from homing.core.content.sms import sms_size

    size = sms_size(n.content.text or n.content.body or "")
    return f"{size.segments} SMS segments ({size.encoding})" if size.segments > 1 else ""


def _attempt(a: Attempt, n: Notification, privacy: RecipientMask) -> tuple[Any, ...]:
    code = f"[{a.error_code}] " if a.error_code and a.error_code != a.error else ""
    detail = (
        f"{code}{privacy.error(a.error, n.recipient)}" if a.error or a.error_code else a.provider_message_id
    )
    return (f"attempt {a.number}", a.provider, _took(a), detail or "")


def _took(a: Attempt) -> tuple[Any, ...]:
    return styled(a.outcome.value), styled(f" in {format_duration(a.latency_ms)}", "bright_black")


def _cause(c: Cause, privacy: RecipientMask) -> tuple[Any, ...]:
    changed = styled(c.status_after.value) if c.status_after != c.status_before else ""
    why = f"by {c.who}" if c.kind == "command" else ""
    detail = ": ".join(part for part in (why, privacy.error(c.why)) if part)
    return (f"{c.kind} {c.name}", c.who if c.kind == "receipt" else "", changed, detail)


def _after(since: timedelta) -> str:
    return f"+{format_duration(max(0, since.total_seconds() * 1000))}"

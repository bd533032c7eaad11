"""`homing status`, `list`, `waiting` and `retry-info`: show notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.filters import FilterFlags
from homing.cli.common.flag_groups import LeaveOut
from homing.cli.common.masking import RecipientMask
from homing.cli.common.options import (
    Cursor,
    Json,
    Limit,
    NotificationId,
    Options,
    command,
    open_engine,
    show_cursor,
)
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_local_time, format_relative_time, parse_delay
from homing.cli.root import app
from homing.core.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from homing.core.notifications import Notification


DelayFlag = Annotated[
    str | None,
    typer.Option(
        "--delay",
        metavar="DURATION",
        help="Compute with this base delay, doubled per retry. Changes nothing.",
    ),
]


_HEADER = ("ID", "STATUS", "CHANNEL", "TYPE", "TO", "ATTEMPTS>", "PROVIDER", "ACCEPTED", "LAST ERROR~")
_FIRST_LINE = 4


@command(app, "status")
async def status(options: Options, id: NotificationId, json: Json = False) -> int:
    """Show the status and details of one notification."""
    async with open_engine(options, existing=True) as homing:
        found = await homing.get(id)
    if json:
        print_json(options.privacy.wire(found, found.recipient))
    else:
        options.screen.fields(_facts(found, options.privacy))
    return ExitCode.OK


@command(app, "batch")
async def batch(
    options: Options,
    id: Annotated[str, typer.Argument(metavar="ID", help="The batch's id.")],
    json: Json = False,
) -> int:
    """Count the notifications of a batch by status."""
    async with open_engine(options, existing=True) as homing:
        found = await homing.batch(id)
    if json:
        print_json(found)
        return ExitCode.OK
    options.screen.fields(
        (
            ("batch", found.batch_id),
            ("accepted", format_local_time(found.accepted_at)),
            ("notifications", f"{found.total:,}" + ("" if found.complete else " and more")),
            ("channels", ", ".join(f"{name.value} {number:,}" for name, number in found.channels.items())),
        )
    )
    options.screen.table(
        ("STATUS", "NUMBER>"),
        [(styled(name.value), f"{number:,}") for name, number in found.statuses.items()],
    )
    return ExitCode.OK


@command(app, "list")
async def list_(
    options: Options,
    filters: Annotated[FilterFlags, LeaveOut("error_code")],
    limit: Limit = 50,
    cursor: Cursor = None,
    json: Json = False,
) -> int:
    """List notifications, newest first."""
    from homing.engine.operations.workers import describe_unattended

    chosen, settings = filters.build(), options.settings()
    async with open_engine(options, settings, existing=True) as homing:
        page = await homing.list(chosen, limit=limit, cursor=cursor)
        has_waiting = any(one.status.value in ("pending", "retrying") for one in page.items)
        unattended_ms = 0 if json or not has_waiting else await homing.unattended_ms()
    if json:
        print_json(options.privacy.wire(page))
        return ExitCode.OK
    if not page.items:
        options.notes.line("no notifications found")
        return ExitCode.OK
    options.screen.table(
        _HEADER,
        [_row(one, options.privacy) for one in page.items],
        first_line=_FIRST_LINE,
    )
    show_cursor(options, page.cursor)
    if unattended_ms > settings.thresholds.unattended_ms:
        options.notes.line(describe_unattended(unattended_ms))
    return ExitCode.OK


@command(app, "find")
async def find(
    options: Options,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="An id or its beginning, an address, the id of a recipient, batch or provider's message,"
            " or KEY=VALUE in the metadata.",
        ),
    ],
    filters: Annotated[FilterFlags, LeaveOut("address", "batch")],
    limit: Limit = 50,
    cursor: Cursor = None,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print all matches as CSV.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Print all matches, one JSON object per line.")
    ] = False,
) -> int:
    """Search for notifications, newest first."""
    chosen = filters.build()
    if csv + json + json_lines > 1:
        raise CliError("--csv, --json and --json-lines exclude each other; choose one")
    async with open_engine(options, existing=True) as homing:
        if csv or json_lines:
            await _export(options, homing.find_all(text, chosen), as_csv=csv)
            return ExitCode.OK
        page = await homing.find(text, chosen, limit=limit, cursor=cursor)
    if json:
        print_json(options.privacy.wire(page))
        return ExitCode.OK
    if page.items:
        rows = [_row(one, options.privacy) for one in page.items]
        options.screen.table(_HEADER, rows, first_line=_FIRST_LINE)
    else:
        options.notes.line("no notifications found")
    if not page.complete:
        options.notes.line("not complete: older notifications were not compared; the next page goes on there")
    show_cursor(options, page.cursor)
    return ExitCode.OK


async def _export(options: Options, found: AsyncIterator[Notification], *, as_csv: bool) -> None:
    import sys

    import msgspec
    from msgspec.structs import replace

    from homing.engine.operations.search_export import csv_header, csv_line

    if as_csv:
        sys.stdout.write(csv_header())
    async for one in found:
        if as_csv:
            masked = replace(one, last_error=options.privacy.error(one.last_error, one.recipient))
            sys.stdout.write(csv_line(masked, options.privacy.recipient(one)))
        else:
            wire = options.privacy.wire(one, one.recipient)
            sys.stdout.write(msgspec.json.encode(wire).decode() + "\n")


@command(app, "waiting")
async def waiting(
    options: Options,
    delay_: DelayFlag = None,
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="ORDER", help="due (soonest first), or last-attempt (all retries, oldest first)."
        ),
    ] = "due",
    limit: Limit = 50,
    json: Json = False,
) -> int:
    """List notifications that wait for a retry, soonest first."""
    import msgspec

    base = parse_delay(delay_, "--delay")
    if by not in ("due", "last-attempt"):
        raise CliError(f"--by: is {by!r}; it must be due or last-attempt")
    async with open_engine(options, existing=True) as homing:
        found = await homing.waiting(base, limit=limit, by="due" if by == "due" else "last-attempt")
        due = [homing.next_retry_time(one, base) for one in found]
    if json:
        items = msgspec.to_builtins(
            [{"notification": n, "nextRetryAt": at} for n, at in zip(found, due, strict=True)]
        )
        merged = [{**item["notification"], "nextRetryAt": item["nextRetryAt"]} for item in items]
        print_json(options.privacy.wire(merged))
        return ExitCode.OK
    if not found:
        options.notes.line("no notification waits for a retry")
        return ExitCode.OK
    options.screen.table(
        ("ID", "TYPE", "CHANNEL", "TO", "ATTEMPTS>", "NEXT ATTEMPT", "", "PROVIDER", "LAST ERROR~"),
        [
            (
                one.id,
                one.type,
                one.channel.value,
                options.privacy.recipient(one),
                one.attempt_count,
                format_local_time(at),
                format_relative_time(at),
                one.provider,
                options.privacy.error(one.last_error, one.recipient),
            )
            for one, at in zip(found, due, strict=True)
        ],
        first_line=3,
    )
    return ExitCode.OK


@command(app, "retry-info")
async def retry_info(
    options: Options,
    id: NotificationId,
    max_attempts: Annotated[
        int | None,
        typer.Option("--max-attempts", metavar="N", help="Compute with this maximum. Changes nothing."),
    ] = None,
    delay_: DelayFlag = None,
    json: Json = False,
) -> int:
    """Show attempts, delays and next retry of one notification."""
    async with open_engine(options, existing=True) as homing:
        info = await homing.retry_info(id, max_attempts, parse_delay(delay_, "--delay"))
        to = (await homing.get(id)).recipient
    if json:
        print_json(options.privacy.wire(info, to))
        return ExitCode.OK
    options.screen.fields(
        [
            ("notification", info.notification_id),
            ("status", styled(info.status.value)),
            ("attempts", f"{info.current_attempts - info.moves} of {info.max_attempts}"),
            ("not counted", str(info.moves)),
            ("spent providers", ", ".join(info.spent)),
            ("retries remaining", str(info.retries_remaining)),
            ("has more retries", _yes(info.has_more_retries)),
            ("last attempt", _when(info.last_attempt_at)),
            ("next retry", _when(info.next_retry_at)),
            ("ready for retry", _yes(info.is_ready_for_retry)),
            ("current delay", format_duration(info.current_delay_minutes * 60_000)),
            ("next delay", format_duration(info.next_delay_minutes * 60_000)),
            ("error", options.privacy.error(info.error_message, to)),
        ]
    )
    return ExitCode.OK


def _facts(n: Notification, privacy: RecipientMask) -> list[tuple[str, Any]]:
    summary = n.content.subject or n.content.title or n.content.body or n.content.text or ""
    reason = f" ({n.reason.value})" if n.reason else ""
    pinned = " (forced, no failover)" if n.pinned else ""
    return [
        ("id", n.id),
        ("status", (styled(n.status.value), reason)),
        ("to", privacy.recipient(n)),
        ("channel", f"{n.channel.value}, {n.mode.value} mode, {n.priority.value} priority"),
        ("type", n.type + (f" (category {n.category})" if n.category != n.type else "")),
        ("origin", n.origin),
        ("content", summary[:80] + ("…" if len(summary) > 80 else "")),
        ("attempts", str(n.attempt_count) + (f" ({n.moves} not counted)" if n.moves else "")),
        ("spent providers", ", ".join(n.spent)),
        ("provider", f"{n.provider}{pinned}"),
        ("accepted", _when(n.created_at)),
        ("send at", _when(n.send_at)),
        ("expires", _when(n.expires_at)),
        ("next attempt", _when(n.next_retry_at)),
        ("last attempt", _when(n.last_attempt_at)),
        ("sent", _when(n.sent_at)),
        ("delivered", _when(n.delivered_at)),
        ("failed", _when(n.failed_at)),
        ("last error", privacy.error(n.last_error, n.recipient)),
        ("acknowledged", _acknowledged(n)),
        ("resend of", n.resend_of),
        ("resent as", n.resent_as),
        ("cancel", "requested; there will be no further attempt" if n.cancel_requested else None),
        ("message ids", ", ".join(id for id in n.provider_message_ids if id)),
        ("batch", n.batch_id),
        ("tenant", n.tenant),
    ]


def _acknowledged(n: Notification) -> str | None:
    if n.acknowledged_at is None:
        return None
    why = f": {n.acknowledged_why}" if n.acknowledged_why else ""
    return f"{_when(n.acknowledged_at)} by {n.acknowledged_by}{why}"


def _row(n: Notification, privacy: RecipientMask) -> tuple[Any, ...]:
    return (
        n.id,
        styled(n.status.value),
        n.channel.value,
        n.type,
        privacy.recipient(n),
        n.attempt_count,
        n.provider,
        format_relative_time(n.created_at),
        privacy.error(n.last_error, n.recipient),
    )


def _when(at: Any) -> str | None:
    return f"{format_local_time(at)} ({format_relative_time(at)})" if at is not None else None


def _yes(value: bool) -> str:
    return "yes" if value else "no"

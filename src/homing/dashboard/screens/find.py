"""Finds notifications with one box and filters that are part of the address, and shows one of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import RedirectResponse, Response, StreamingResponse

from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest, NotFound
from homing.core.lifecycle.states import LIVE, WAITING
from homing.core.notifications import Cause, Channel, Filter, History, Notification, Status
from homing.core.redaction import HIDDEN, redact
from homing.core.request_decoding import read_filter
from homing.core.search import SearchKind
from homing.dashboard.visits import Screens, Visit, read_span
from homing.engine.operations.searches import MOST_EXPORTED

screens = Screens()

_PAGE = 50

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_FILTERS = ("status", "channel", "type", "provider", "batch")

_WORDS = {
    SearchKind.ID: "ids",
    SearchKind.ADDRESS: "addresses",
    SearchKind.RECIPIENT: "recipients",
    SearchKind.BATCH: "batches",
    SearchKind.PROVIDER_MESSAGE: "providers' message ids",
    SearchKind.METADATA: "metadata",
}
"""What a search compares → its name on the screen."""

FRAME_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox"
)
"""Policy of a rendered message: no scripts, no forms, and nothing is loaded from anywhere."""


@screens.get("find")
async def show_found(visit: Visit) -> Response:
    """Shows the notifications that match, newest first. An id leads to its notification at once."""
    words = visit.query.get("q", "").strip()[:300]
    if _UUID.fullmatch(words.lower()):
        try:
            found = await visit.api.get(words.lower())
            return RedirectResponse(visit.to(f"notifications/{found.id}"), 303)
        except NotFound:
            pass
    chosen = _filter(visit)
    page = await visit.api.find(words, chosen, limit=_PAGE, cursor=visit.query.get("cursor") or None)
    next_page = _next(visit, page.cursor)
    if "hx-request" in visit.request.headers and visit.query.get("cursor"):
        return visit.page("rows_more.html", page=page, next_page=next_page)
    return visit.page(
        "find.html",
        find=words,
        page=page,
        next_page=next_page,
        compared=_listed([_WORDS[kind] for kind in page.compared_with]),
        chosen={name: visit.query.get(name, "") for name in _FILTERS},
        statuses=list(Status),
        channels=list(Channel),
        any_filter=bool(words or any(visit.query.get(name) for name in _FILTERS)),
        export=visit.to("export", **_kept(visit)),
        act=_job_plan(visit, words),
    )


@screens.get("export")
async def export_found(visit: Visit) -> Response:
    """Returns everything that a search finds, as one JSON object per line."""
    words, chosen = visit.query.get("q", "").strip()[:300], _filter(visit)
    first = await visit.api.find(words, chosen, limit=1)  # so that an invalid search is an error page
    await visit.note("notification.export", redact(words))

    async def lines() -> AsyncIterator[bytes]:
        if first.items or first.cursor:
            async for one in visit.api.find_all(words, chosen, most=MOST_EXPORTED):
                yield msgspec.json.encode(one) + b"\n"

    headers = {"Content-Disposition": 'attachment; filename="notifications.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


def _filter(visit: Visit) -> Filter:
    fields: dict[str, Any] = {
        {"batch": "batchId", "status": "statuses"}.get(name, name): value
        for name in _FILTERS
        if (value := visit.query.get(name, "").strip())
    }
    return read_filter(fields)


def _kept(visit: Visit) -> dict[str, str]:
    """Returns the search in the address, without the page."""
    return {name: value for name, value in visit.query.items() if name in ("q", *_FILTERS)}


def _listed(words: Sequence[str]) -> str:
    """Returns words as a list in a sentence."""
    *others, last = words or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _job_plan(visit: Visit, words: str) -> str:
    """Returns the address of the plan of a job that acts on all that the filters select.

    Empty if there is no filter, if the words of a search are compared too, or if no command can be applied to
    what has this status.
    """
    chosen = {name: visit.query.get(name, "") for name in _FILTERS}
    if words or not any(chosen.values()) or chosen["status"] not in ("", "failed", *WAITING):
        return ""
    batch_id, status = chosen.pop("batch"), chosen.pop("status") or "waiting"
    return visit.to("find/plan", **chosen, batch_id=batch_id, status=status)


def _next(visit: Visit, cursor: str | None) -> str | None:
    return None if cursor is None else visit.to("find", **_kept(visit), cursor=cursor)


# One notification -----------------------------------------------------------------------------------


class Step(Struct, frozen=True, kw_only=True):
    """One entry of the timeline."""

    at: datetime
    after_ms: float
    """Time since the acceptance."""
    kind: str
    """Class of the color."""
    title: str
    detail: str = ""
    facts: tuple[tuple[str, str], ...] = ()


@screens.get("notifications/{id}")
async def show_notification(visit: Visit, id: str) -> Response:
    """Shows what happened to one notification, why, and what can be done."""
    found = await visit.api.explain(id)
    n = found.history.notification
    return visit.page(
        "notification.html",
        id=n.id,
        n=n,
        part=await _notification_part(visit, id),
        content=n.content,
        policy=found.resolution,
        commands=_commands(n, visit),
        metadata=n.metadata,
        request=_redacted(_request(n)),
        answers=_redacted(msgspec.to_builtins(found.history.attempts)),
    )


@screens.live("notification")
async def read_notification(visit: Visit) -> str:
    """Returns the part of the screen that changes: the state, what can be done, and the timeline."""
    return await _notification_part(visit, visit.query.get("id", ""))


async def _notification_part(visit: Visit, id: str) -> str:
    found = await visit.api.explain(id)
    n = found.history.notification
    return visit.html(
        "notification_part.html",
        n=n,
        actions={
            action: _on_command_line(visit, _COMMAND_LINES[action].format(id=n.id)) for action in _actions(n)
        },
        meanings=_ENDED_MEANINGS if n.status is Status.FAILED else _MEANINGS,
        providers=[one.id for one in await visit.engine.providers() if n.channel in one.channels],
        verdict=found.verdict,
        next_step=found.next_step,
        split=found.split,
        steps=build_steps(found.history),
    )


def build_steps(history: History) -> list[Step]:
    """Returns the timeline: acceptance, attempts, receipts and commands, oldest first."""
    n = history.notification

    def after(at: datetime) -> float:
        return (at - n.created_at).total_seconds() * 1000

    steps = [
        Step(
            at=n.created_at,
            after_ms=0,
            kind="",
            title="accepted",
            detail=f"{n.mode.value} mode, {n.priority.value} priority",
        )
    ]
    for one in history.attempts:
        good = one.outcome.value == "accepted"
        steps.append(
            Step(
                at=one.started_at,
                after_ms=after(one.started_at),
                kind="good" if good else "bad",
                title=f"attempt {one.number} at {one.provider}: {one.outcome.value.replace('_', ' ')}",
                detail=redact(one.error or ""),
                facts=tuple(
                    (name, value)
                    for name, value in (
                        ("took", f"{one.latency_ms:,} ms"),
                        ("error code", one.error_code or ""),
                        ("provider's message id", one.provider_message_id or ""),
                        ("worker", one.worker),
                    )
                    if value
                ),
            )
        )
    steps += [
        Step(
            at=cause.at,
            after_ms=after(cause.at),
            kind="warn" if cause.status_after is Status.FAILED else "",
            title=_title(cause),
            detail=_detail(cause),
        )
        for cause in history.causes
    ]
    if n.delivered_at and not any(cause.status_after is Status.DELIVERED for cause in history.causes):
        steps.append(Step(at=n.delivered_at, after_ms=after(n.delivered_at), kind="good", title="delivered"))
    return sorted(steps, key=lambda step: step.at)


_COMMANDED = {
    "cancel": "cancelled",
    "retry": "made due at once",
    "resend": "resent",
    "acknowledge": "acknowledged",
    "reschedule": "rescheduled",
    "resolve": "resolved",
    "fail": "moved to the dead letters",
}
"""Name of a command → what it did, in the timeline."""


def _title(cause: Cause) -> str:
    """Returns what happened, and who caused it."""
    name = cause.name.replace("_", " ")
    if cause.kind == "command":
        return f"{_COMMANDED.get(cause.name, name)} by {cause.who}"
    return f"receipt of {cause.who}: {name}" if cause.kind == "receipt" else f"{name} before an attempt"


def _detail(cause: Cause) -> str:
    """Returns how the status changed, if it did, and the reason."""
    before, after = cause.status_before, cause.status_after
    change = "" if before is after else f"{before.value.replace('_', ' ')} → {after.value.replace('_', ' ')}"
    return ": ".join(filter(None, (change, redact(cause.why))))


@screens.get("notifications/{id}/message")
async def show_message(visit: Visit, id: str) -> Response:
    """Returns the rendered HTML of a message, for the sandboxed frame."""
    content = (await visit.api.get(id)).content
    return framed(content.html or "")


def framed(html: str) -> Response:
    """Returns hostile HTML with a policy under which it can run and load nothing."""
    headers = {"Content-Security-Policy": FRAME_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return Response(html, media_type="text/html", headers=headers)


@screens.post("notifications/{id}/{action}", Scope.OPERATE)
async def act(visit: Visit, id: str, action: str, form: dict[str, str]) -> Response:
    """Performs a command on one notification."""
    n, api, who, why = await visit.api.get(id), visit.api, visit.caller.who, form.get("why", "")
    if action not in _actions(n):
        raise InvalidRequest("action", f"{action!r} is not possible: the status is {n.status.value}")
    provider = form.get("provider") or None
    await visit.note(_AUDITED.get(action, f"notification.{action}"), id, why=why, provider=provider)
    back = f"notifications/{id}"
    match action:
        case "retry":
            await api.retry(id, who=who, why=why, provider=provider)
            return visit.go(back, done="retried")
        case "resend":
            new = await api.resend(id, who=who, why=why, provider=provider)
            return visit.go(f"notifications/{new}", done="resent")
        case "cancel":
            await api.cancel(id, who=who, why=why)
            return visit.go(back, done="cancelled")
        case "acknowledge":
            await api.acknowledge(id, who=who, why=why)
            return visit.go(back, done="acknowledged")
        case "reschedule":
            delay = read_span(form, "delay", "10m or 2h")
            if delay is None:
                raise InvalidRequest("delay", "is missing")
            await api.reschedule(id, delay, who=who, why=why)
            return visit.go(back, done="rescheduled")
        case "resolve":
            await api.resolve(id, form.get("status", ""), who=who, why=why)
            return visit.go(back, done="resolved")
        case _:
            await api.move_to_dead_letter(id, who=who, why=why)
            return visit.go(back, done="moved")


_AUDITED = {
    "resend": "dead_letter.resend",
    "acknowledge": "dead_letter.acknowledge",
    "move-to-dead-letter": "notification.fail",
}
"""Action → its name in the audit trail, if it is another. The API and the command line use the same names."""


_COMMAND_LINES = {
    "retry": "homing retry {id} --why 'REASON'",
    "resend": "homing dead resend {id} --why 'REASON'",
    "acknowledge": "homing dead ack {id} --why 'REASON'",
    "cancel": "homing cancel {id} --why 'REASON'",
    "reschedule": "homing reschedule {id} 10m --why 'REASON'",
    "resolve": "homing resolve {id} sent --why 'REASON'",
    "move-to-dead-letter": "homing dead move {id} --why 'REASON'",
}
"""Action → the command that does the same on the command line."""


_MEANINGS = {
    "retry": "Makes it due now, ahead of its delay. Its further attempts follow as planned.",
    "reschedule": "Changes when it is due. The number of its attempts stays the same.",
    "cancel": "It is not sent, unless an attempt is in flight.",
    "resolve": "Records what happened, for example according to the provider's own log. Nothing is sent.",
    "move-to-dead-letter": "Ends its attempts. It can be resent like every dead letter.",
}
"""Action → what it does, for people."""

_ENDED_MEANINGS = {
    "retry": "One more attempt, at once. If it fails, it is a dead letter again.",
    "resend": "A new notification with the same message and all its attempts. This one is acknowledged.",
    "acknowledge": "Marks it as seen. It is not sent again, and needs no attention any more.",
}
"""Action on a dead letter → what it does, for people."""


def _actions(n: Notification) -> tuple[str, ...]:
    """Returns the commands that the status permits."""
    found: list[str] = []
    if n.status in WAITING:
        found += ["retry", "reschedule"]
    if n.status in LIVE:
        found.append("cancel")
    if n.status is Status.FAILED:
        found += ["retry"] + ([] if n.resent_as else ["resend"])
        found += [] if n.acknowledged_at else ["acknowledge"]
    if n.status is Status.IN_DOUBT:
        found.append("resolve")
    if n.status in WAITING or n.status is Status.IN_DOUBT:
        found.append("move-to-dead-letter")
    return tuple(dict.fromkeys(found))


def _request(n: Notification) -> dict[str, Any]:
    """Returns the fields of the request that led to this notification."""
    content = {name: value for name, value in msgspec.to_builtins(n.content).items() if value}
    given = {
        "channel": n.channel.value,
        "type": n.type,
        "category": n.category,
        "priority": n.priority.value,
        "origin": n.origin,
        "recipient": {name: value for name, value in msgspec.to_builtins(n.recipient).items() if value},
        "templateKey": n.template_key,
        "content": content,
        "metadata": n.metadata,
        "sendAt": n.send_at,
        "expiresAt": n.expires_at,
        "provider": n.provider if n.pinned else None,
    }
    return {name: value for name, value in given.items() if value}


_ADDRESSES = frozenset({"email", "phone", "deviceToken", "url"})


def _redacted(value: Any, name: str = "") -> Any:
    """Returns JSON data without addresses and secrets."""
    match value:
        case str():
            return HIDDEN if name in _ADDRESSES else redact(value)
        case Mapping():
            return {key: _redacted(one, key) for key, one in value.items()}
        case list() | tuple():
            return [_redacted(one) for one in value]
        case _:
            return value


def _commands(n: Notification, visit: Visit) -> dict[str, str]:
    """Returns the same view as a curl command and as a command of the command line."""
    url = visit.tools.public_url.rstrip("/") or str(visit.request.url).partition("/ui/")[0]
    return {
        "curl": f'curl -H "Authorization: Bearer $KEY" {shlex.quote(f"{url}/api/v1/notifications/{n.id}")}',
        "homing": _on_command_line(visit, f"homing explain {n.id}"),
    }


def _on_command_line(visit: Visit, command: str) -> str:
    """Returns the command, with the tenant unless it is that of the settings, which the commands use."""
    tenant = visit.caller.tenant
    return command if tenant == visit.engine.tenant else f"{command} --tenant {shlex.quote(tenant)}"

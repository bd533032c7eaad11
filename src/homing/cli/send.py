"""`homing send`: one request from flags, or many from a CSV file."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from homing.cli.exits import ExitCode, Refused
from homing.cli.inputs import file_text, json_object
from homing.cli.root import app
from homing.cli.screen import print_json, styled
from homing.cli.shared import Json, Options, command, engine
from homing.cli.words import delay, moment, plural

Text = str | None


def _flag(name: str, help: str, metavar: str = "TEXT") -> Any:
    return typer.Option(name, help=help, metavar=metavar)


@command(app, "send")
async def send(
    options: Options,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to", "--recipient", metavar="ADDRESS", help="An address for the channel; repeatable."
        ),
    ] = None,
    email: Annotated[Text, _flag("--email", "The recipient's email address.", "ADDRESS")] = None,
    phone: Annotated[Text, _flag("--phone", "The recipient's phone number.", "NUMBER")] = None,
    device_token: Annotated[Text, _flag("--device-token", "The recipient's push token.", "TOKEN")] = None,
    url: Annotated[Text, _flag("--url", "The recipient's webhook, chat or queue.", "URL")] = None,
    recipient_id: Annotated[Text, _flag("--recipient-id", "A recipient the directory knows.", "ID")] = None,
    locale: Annotated[Text, _flag("--locale", "The recipient's locale, e.g. de-AT.", "LOCALE")] = None,
    time_zone: Annotated[
        Text, _flag("--time-zone", "The recipient's zone, e.g. Europe/Vienna.", "ZONE")
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(
            "--channel", metavar="NAME", help="sms, email, push, webhook, chat, queue or both; repeatable."
        ),
    ] = None,
    type: Annotated[Text, _flag("--type", "What happened, e.g. order_confirmed.", "NAME")] = None,
    category: Annotated[Text, _flag("--category", "For preferences; default: the type.", "NAME")] = None,
    priority: Annotated[Text, _flag("--priority", "critical, high, medium or low.", "NAME")] = None,
    origin: Annotated[Text, _flag("--origin", "The service that sends it.", "NAME")] = None,
    subject: Annotated[Text, _flag("--subject", "An email's subject.")] = None,
    title: Annotated[Text, _flag("--title", "A push message's title.")] = None,
    body: Annotated[Text, _flag("--body", "What to say.")] = None,
    body_file: Annotated[Text, _flag("--body-file", "The body from a file; - is stdin.", "FILE")] = None,
    html: Annotated[Text, _flag("--html", "An email's HTML part.")] = None,
    html_file: Annotated[Text, _flag("--html-file", "The HTML part from a file; - is stdin.", "FILE")] = None,
    data: Annotated[Text, _flag("--data", "The template's or message's data.", "JSON")] = None,
    template_key: Annotated[Text, _flag("--template-key", "The template to render.", "NAME")] = None,
    provider: Annotated[Text, _flag("--provider", "Force a provider: no failover.", "NAME")] = None,
    idempotency_key: Annotated[
        Text, _flag("--idempotency-key", "Same key and request: sent once.", "KEY")
    ] = None,
    dedup_key: Annotated[Text, _flag("--dedup-key", "Same key within its window: sent once.", "KEY")] = None,
    send_at: Annotated[Text, _flag("--send-at", "Not before this time.", "TIME")] = None,
    send_in: Annotated[Text, _flag("--in", "Not before this long from now, e.g. 10m.", "DURATION")] = None,
    expires_at: Annotated[Text, _flag("--expires-at", "Not after this time.", "TIME")] = None,
    expires_in: Annotated[Text, _flag("--expires-in", "Not after this long from now.", "DURATION")] = None,
    metadata: Annotated[Text, _flag("--metadata", "Free data that is kept with it.", "JSON")] = None,
    bulk: Annotated[bool, typer.Option("--bulk", help="In the bulk lane, behind everything else.")] = False,
    synchronous: Annotated[
        bool | None,
        typer.Option("--synchronous/--queued", help="Send now and wait at most 2 s; never queued."),
    ] = None,
    csv: Annotated[
        Text, _flag("--csv", "One request a row; flags hold for all rows. - is stdin.", "FILE")
    ] = None,
    idempotency_column: Annotated[
        Text, _flag("--idempotency-column", "The CSV column that makes a second run repeat nothing.", "NAME")
    ] = None,
    json: Json = False,
) -> int:
    """Send a notification, or a CSV file of them."""
    request: dict[str, Any] = {
        "channels": channel or None,
        "type": type,
        "category": category,
        "priority": priority,
        "origin": origin,
        "template_key": template_key,
        "provider": provider,
        "idempotency_key": idempotency_key,
        "dedup_key": dedup_key,
        "send_at": _time(send_at, send_in, "--send-at", "--in"),
        "expires_at": _time(expires_at, expires_in, "--expires-at", "--expires-in"),
        "metadata": _object(metadata, "--metadata"),
        "bulk": bulk or None,
        "synchronous": synchronous,
    }
    content = {
        "subject": subject,
        "title": title,
        "body": _text(body, body_file, "--body"),
        "html": _text(html, html_file, "--html"),
    }
    free = _object(data, "--data")
    request["data" if template_key else "content_data"] = free
    request["content"] = {name: value for name, value in content.items() if value is not None} or None
    request = {name: value for name, value in request.items() if value is not None}
    person = {
        "id": recipient_id,
        "email": email,
        "phone": phone,
        "device_token": device_token,
        "url": url,
        "locale": locale,
        "time_zone": time_zone,
    }
    person = {name: value for name, value in person.items() if value is not None}
    if csv is not None:
        return await _from_csv(options, csv, request, person or to, idempotency_column, json=json)
    if idempotency_column is not None:
        raise Refused("--idempotency-column: is for --csv; for one request give --idempotency-key")
    return await _one(options, _addressed(_with_data(request), person, to), json=json)


async def _one(options: Options, request: dict[str, Any], *, json: bool) -> int:
    from contextlib import redirect_stdout

    from homing.core.reading import request_from

    async with engine(options) as homing:
        with redirect_stdout(sys.stderr):  # the console provider must not mix with the answer
            result = await homing.submit(request_from(request))
    if json:
        print_json(result)
        return ExitCode.OK
    screen = options.screen
    again = " (accepted before)" if result.duplicate else ""
    where = f"in {result.queue_name}" if result.queue_name else ""
    for id in result.notification_ids:
        screen.line(styled(result.status), id, f"{where}{again}")
    if len(result.notification_ids) > 1:
        screen.line(f"{plural(len(result.notification_ids), 'notification')} in batch {result.batch_id}")
    return ExitCode.OK


async def _from_csv(
    options: Options, csv: str, request: dict[str, Any], to: Any, key_column: str | None, *, json: bool
) -> int:
    from homing.cli.send_csv import send_file

    if to:
        raise Refused("--csv: each row names its recipient; leave the recipient's flags out")
    if request.pop("synchronous", None):
        raise Refused("--synchronous: is for one request at a time; leave it out with --csv")
    if "idempotency_key" in request:
        raise Refused("--idempotency-key: would be the same for every row; give --idempotency-column")
    names = request.get("channels")
    if names and len(names) == 1:
        request["channel"] = names[0]
        del request["channels"]
    return await send_file(options, csv, _with_data(request), key_column, json=json)


def _with_data(request: dict[str, Any]) -> dict[str, Any]:
    """Data without a template is part of the message itself."""
    own = request.pop("content_data", None)
    if own is not None:
        request["content"] = {**(request.get("content") or {}), "data": own}
    return request


def _addressed(request: dict[str, Any], person: dict[str, Any], to: list[str] | None) -> dict[str, Any]:
    if to and person.keys() - {"locale", "time_zone"}:
        raise Refused("--to: and the recipient's own flags (--email, --phone, …) are both given; give one")
    if to and person:
        raise Refused("--to: is an address alone; with --locale or --time-zone name it --email, --phone, …")
    if to:
        request["recipients" if len(to) > 1 else "recipient"] = to if len(to) > 1 else to[0]
    elif person:
        request["recipient"] = person
    return request


def _time(at: str | None, after: str | None, at_flag: str, after_flag: str) -> Any:
    from datetime import UTC, datetime

    if at is not None and after is not None:
        raise Refused(f"{at_flag}: and {after_flag} are both given; give one of them")
    if at is not None:
        return moment(at, at_flag)
    wait = delay(after, after_flag)
    return None if wait is None else datetime.now(UTC) + wait


def _object(text: str | None, flag: str) -> dict[str, Any] | None:
    return None if text is None else json_object(text, flag)


def _text(given: str | None, file: str | None, flag: str) -> str | None:
    if file is None:
        return given
    if given is not None:
        raise Refused(f"{flag}: and {flag}-file are both given; give one of them")
    return file_text(file, f"{flag}-file")

"""`homing send`: sends one request from flags, or many from a CSV file."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import (
    ForcedProvider,
    Json,
    Options,
    Origin,
    PriorityName,
    TypeName,
    command,
    open_engine,
    parse_json_object,
    read_text_file,
)
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import format_count, parse_delay, parse_time
from homing.cli.root import app

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
    url: Annotated[Text, _flag("--url", "The recipient's webhook, chat or queue URL.", "URL")] = None,
    recipient_id: Annotated[
        Text, _flag("--recipient-id", "Id of a recipient in the directory.", "ID")
    ] = None,
    locale: Annotated[Text, _flag("--locale", "The recipient's locale, e.g. de-AT.", "LOCALE")] = None,
    time_zone: Annotated[
        Text, _flag("--time-zone", "The recipient's time zone, e.g. Europe/Vienna.", "ZONE")
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(
            "--channel",
            metavar="NAME",
            help="sms, email, push, webhook, chat, queue or both (email, push); repeatable.",
        ),
    ] = None,
    type: TypeName = None,
    category: Annotated[
        Text, _flag("--category", "Category for preferences; default: the type.", "NAME")
    ] = None,
    priority: PriorityName = None,
    origin: Origin = None,
    subject: Annotated[Text, _flag("--subject", "An email's subject.")] = None,
    title: Annotated[Text, _flag("--title", "A push message's title.")] = None,
    body: Annotated[Text, _flag("--body", "The message text.")] = None,
    body_file: Annotated[Text, _flag("--body-file", "Read the body from FILE; - is stdin.", "FILE")] = None,
    html: Annotated[Text, _flag("--html", "An email's HTML part.")] = None,
    html_file: Annotated[
        Text, _flag("--html-file", "Read the HTML part from FILE; - is stdin.", "FILE")
    ] = None,
    data: Annotated[
        Text, _flag("--data", "Data for the template, or the message's own data.", "JSON")
    ] = None,
    template_key: Annotated[Text, _flag("--template-key", "The template to render.", "NAME")] = None,
    provider: ForcedProvider = None,
    idempotency_key: Annotated[
        Text, _flag("--idempotency-key", "A request repeated with this key is sent once.", "KEY")
    ] = None,
    dedup_key: Annotated[
        Text, _flag("--dedup-key", "Only the first request with this key in its time window is sent.", "KEY")
    ] = None,
    send_at: Annotated[Text, _flag("--send-at", "Do not send before this time.", "TIME")] = None,
    send_in: Annotated[Text, _flag("--in", "Send after this delay, e.g. 10m.", "DURATION")] = None,
    expires_at: Annotated[Text, _flag("--expires-at", "Do not send after this time.", "TIME")] = None,
    expires_in: Annotated[
        Text, _flag("--expires-in", "Expire after this delay, e.g. 1h; not sent later.", "DURATION")
    ] = None,
    metadata: Annotated[
        Text, _flag("--metadata", "Your own data, stored with the notification.", "JSON")
    ] = None,
    bulk: Annotated[
        bool, typer.Option("--bulk", help="Use the bulk lane, with the lowest precedence.")
    ] = False,
    synchronous: Annotated[
        bool | None,
        typer.Option("--synchronous/--queued", help="Send now and wait up to 2 s, or always queue."),
    ] = None,
    csv: Annotated[
        Text, _flag("--csv", "Send one request per row; flags apply to all rows. - is stdin.", "FILE")
    ] = None,
    idempotency_column: Annotated[
        Text,
        _flag(
            "--idempotency-column",
            "CSV column with a key per row, so that a second run repeats nothing.",
            "NAME",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Send a notification, or one per row of a CSV file."""
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
        raise CliError("--idempotency-column: works only with --csv; for one request use --idempotency-key")
    return await _one(options, _addressed(_with_data(request), person, to), json=json)


async def _one(options: Options, request: dict[str, Any], *, json: bool) -> int:
    from contextlib import redirect_stdout

    from homing.core.request_decoding import read_request

    async with open_engine(options, sinks=True) as homing:
        with redirect_stdout(sys.stderr):  # keeps the console provider's messages out of stdout
            result = await homing.submit(read_request(request))
    if json:
        print_json(result)
        return ExitCode.OK
    screen = options.screen
    again = " (already accepted before)" if result.duplicate else ""
    where = f"in {result.queue_name}" if result.queue_name else ""
    for id in result.notification_ids:
        screen.line(styled(result.status), id, f"{where}{again}")
    if len(result.notification_ids) > 1:
        screen.line(
            f"{format_count(len(result.notification_ids), 'notification')} in batch {result.batch_id}"
        )
    return ExitCode.OK


async def _from_csv(
    options: Options, csv: str, request: dict[str, Any], to: Any, key_column: str | None, *, json: bool
) -> int:
    from homing.cli.intake.send_csv import send_csv_file

    if to:
        raise CliError("--csv: each row names its recipient; remove the recipient flags")
    if request.pop("synchronous", None):
        raise CliError("--synchronous: does not work with --csv; remove one of them")
    if "idempotency_key" in request:
        raise CliError("--idempotency-key: would be the same for every row; use --idempotency-column")
    names = request.get("channels")
    if names and len(names) == 1:
        request["channel"] = names[0]
        del request["channels"]
    return await send_csv_file(options, csv, _with_data(request), key_column, json=json)


def _with_data(request: dict[str, Any]) -> dict[str, Any]:
    """Moves `content_data`, which is set only without a template, into the content."""
    own = request.pop("content_data", None)
    if own is not None:
        request["content"] = {**(request.get("content") or {}), "data": own}
    return request


def _addressed(request: dict[str, Any], person: dict[str, Any], to: list[str] | None) -> dict[str, Any]:
    if to and person.keys() - {"locale", "time_zone"}:
        raise CliError("--to: give either --to or recipient flags (--email, --phone, …), not both")
    if to and person:
        raise CliError("--to: does not work with --locale or --time-zone; use --email, --phone, … instead")
    if to:
        request["recipients" if len(to) > 1 else "recipient"] = to if len(to) > 1 else to[0]
    elif person:
        request["recipient"] = person
    return request


def _time(at: str | None, after: str | None, at_flag: str, after_flag: str) -> Any:
    from datetime import UTC, datetime

    if at is not None and after is not None:
        raise CliError(f"{at_flag}: give either {at_flag} or {after_flag}, not both")
    if at is not None:
        return parse_time(at, at_flag)
    wait = parse_delay(after, after_flag)
    return None if wait is None else datetime.now(UTC) + wait


def _object(text: str | None, flag: str) -> dict[str, Any] | None:
    return None if text is None else parse_json_object(text, flag)


def _text(given: str | None, file: str | None, flag: str) -> str | None:
    if file is None:
        return given
    if given is not None:
        raise CliError(f"{flag}: give either {flag} or {flag}-file, not both")
    return read_text_file(file, f"{flag}-file")

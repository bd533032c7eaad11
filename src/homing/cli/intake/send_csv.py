"""Sends a CSV file: one request per row, streamed. Reports each rejected row by line and field."""

from __future__ import annotations

import csv
import difflib
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import Options, open_engine
from homing.cli.common.progress import ProgressBar
from homing.cli.common.screen import print_json
from homing.cli.common.units import format_count

if TYPE_CHECKING:
    from homing.core.errors import InvalidRequest
    from homing.core.send_request import SendRequest


_MAX_LINE_BYTES = 16 * 1024 * 1024

_ERRORS_KEPT = 1_000
"""Maximum number of errors listed with --json; more are only counted. Without --json all are printed."""


_RECIPIENT = ("email", "phone", "device_token", "url", "recipient_id", "locale", "time_zone")

_CONTENT = ("subject", "title", "body", "text", "html")

_REQUEST = (
    "type",
    "category",
    "priority",
    "origin",
    "template_key",
    "provider",
    "idempotency_key",
    "dedup_key",
    "send_at",
    "expires_at",
)

_OTHER = ("recipient", "channel", "data", "metadata", "bulk")

COLUMNS = (*_OTHER[:2], *_RECIPIENT, *_CONTENT, *_REQUEST, *_OTHER[2:])

_ALIASES = {"to": "recipient", "channels": "channel"}

_FREE_COLUMN = re.compile(r"(data|metadata)\.\w[\w\-]*")

_SIMILAR = 0.75
"""How similar a column's name must be to be suggested: `subjct` is a typo, `order` probably data."""

_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""Finds a byte that is not UTF-8, as it is decoded."""

_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


class CsvReport(msgspec.Struct, rename="camel"):
    """Totals of one CSV file."""

    rows: int = 0
    accepted: int = 0
    duplicates: int = 0
    """Accepted rows that repeat an earlier request: same idempotency key, or same dedup key in its window."""
    rejected: int = 0
    notifications: int = 0
    errors: list[dict[str, Any]] = msgspec.field(default_factory=list)
    errors_left_out: int = 0
    """Rejected rows that are not listed in `errors`."""

    @property
    def exit_code(self) -> ExitCode:
        if not self.rejected:
            return ExitCode.OK
        return ExitCode.PARTIAL if self.accepted else ExitCode.USAGE


async def send_csv_file(
    options: Options, source: str, defaults: Mapping[str, Any], key_column: str | None, *, json: bool
) -> int:
    """Sends every row and returns the exit code, which depends on whether rows were rejected."""
    key_column = key_column and _name(key_column)
    with _opened(source) as binary:
        lines = _Lines(binary, source)
        reader = csv.reader(lines, strict=True)
        names = _header(reader, source, key_column)
        async with open_engine(options, sinks=True) as homing:
            with ProgressBar(options, "sending", _size(binary)) as bar:
                report, places = CsvReport(), deque[int]()
                requests = _requests(reader, names, defaults, key_column, places)
                async for result in homing.submit_many(requests):
                    _count(report, result, places.popleft(), bar, json=json)
                    bar.at(lines.bytes_read, f"{report.accepted:,} accepted, {report.rejected:,} rejected")
    if json:
        print_json(report)
    else:
        _print_totals(options, report, source, key_column)
    return report.exit_code


def _count(report: CsvReport, result: Any, line: int, bar: ProgressBar, *, json: bool) -> None:
    from homing.engine.intake.accept import Rejection

    report.rows += 1
    if not isinstance(result, Rejection):
        report.accepted += 1
        report.duplicates += result.duplicate
        report.notifications += len(result.notification_ids)
        return
    report.rejected += 1
    if not json:
        bar.note(f"line {line}: {result.message}")
    elif len(report.errors) < _ERRORS_KEPT:
        error = {"line": line, "field": result.field, "code": result.code, "message": result.message}
        report.errors.append(error)
    else:
        report.errors_left_out += 1


def _print_totals(options: Options, report: CsvReport, source: str, key_column: str | None) -> None:
    before = f", {report.duplicates:,} of them accepted before" if report.duplicates else ""
    rows = format_count(report.rows, "row")
    options.screen.line(f"{rows}: {report.accepted:,} accepted{before}, {report.rejected:,} rejected")
    if report.rejected and report.accepted and not key_column:
        options.notes.line(
            "note: sending the whole file again would repeat the accepted rows; send only the fixed rows, "
            "or name a column with --idempotency-column"
        )


def _requests(
    reader: Iterator[list[str]],
    names: Sequence[str],
    defaults: Mapping[str, Any],
    key_column: str | None,
    places: deque[int],
) -> Iterator[SendRequest | InvalidRequest]:
    """Yields a request or its error for each row. Appends the number of the row's first line to `places`."""
    from homing.core.errors import InvalidRequest
    from homing.core.request_decoding import read_request

    while True:
        line = getattr(reader, "line_num", 0) + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            places.append(line)
            yield InvalidRequest("row", f"is not valid CSV: {error}")
            continue
        if not any(cell.strip() for cell in row):
            continue
        places.append(line)
        try:
            yield read_request(_request(dict(_cells(row, names)), defaults, key_column))
        except InvalidRequest as error:
            yield error


def _cells(row: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    from homing.core.errors import InvalidRequest

    if len(row) != len(names):
        raise InvalidRequest("row", f"has {format_count(len(row), 'cell')}; the header has {len(names)}")
    for name, cell in zip(names, row, strict=True):
        if _NOT_UTF8.search(cell):
            raise InvalidRequest(name, "is not UTF-8; save the file with the encoding UTF-8")
    return ((name, cell) for name, cell in zip(names, row, strict=True) if cell.strip())


def _request(cells: dict[str, str], defaults: Mapping[str, Any], key_column: str | None) -> dict[str, Any]:
    """Builds a request from the row, whose fields override those of the flags."""
    from homing.core.errors import InvalidRequest

    request = dict(defaults)
    request.update({name: cells[name] for name in _REQUEST if name in cells})
    if key_column is not None:
        if key_column not in cells:
            raise InvalidRequest(
                "idempotencyKey", f"column {key_column} is empty; each row needs its own key"
            )
        request["idempotency_key"] = cells[key_column].strip()
    if "channel" in cells:
        request["channel"], request["channels"] = None, re.split(r"[+,;\s]+", cells["channel"].strip())
    if "bulk" in cells:
        request["bulk"] = _parse_boolean(cells["bulk"])
    if content := {name: cells[name] for name in _CONTENT if name in cells}:
        request["content"] = {**(request.get("content") or {}), **content}
    if to := _recipient(cells, request):
        request["recipient"] = to
    for name in ("data", "metadata"):
        if free := _free_fields(name, cells):
            request[name] = {**(request.get(name) or {}), **free}
    if request.get("data") and not request.get("template_key"):
        request["content"] = {**(request.get("content") or {}), "data": request.pop("data")}
    return request


def _recipient(cells: Mapping[str, str], request: Mapping[str, Any]) -> dict[str, str]:
    """Builds the recipient from the row. The column `recipient` is the address for the row's only channel."""
    from homing.core.errors import InvalidRequest
    from homing.core.send_request import ADDRESS_FIELD, SendRequest, channels_of

    to = {"id" if name == "recipient_id" else name: cells[name] for name in _RECIPIENT if name in cells}
    if "recipient" in cells:
        named = SendRequest(channel=request.get("channel"), channels=tuple(request.get("channels") or ()))
        channels = channels_of(named)
        if len(channels) > 1:
            raise InvalidRequest(
                "recipient", "is one address for several channels; use the columns email, device_token, …"
            )
        to[ADDRESS_FIELD[channels[0]]] = cells["recipient"]
    return to


def _free_fields(name: str, cells: Mapping[str, str]) -> dict[str, Any]:
    """Returns the JSON of the column `data` (or `metadata`), with each column `data.x` as member x."""
    from homing.core.errors import InvalidRequest

    found: dict[str, Any] = {}
    if name in cells:
        try:
            found = msgspec.json.decode(cells[name].encode("utf-8", "surrogateescape"), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(name, f"is not a JSON object: {error}") from None
    prefix = f"{name}."
    found.update({key.removeprefix(prefix): value for key, value in cells.items() if key.startswith(prefix)})
    return found


def _parse_boolean(cell: str) -> bool:
    from homing.core.errors import InvalidRequest

    try:
        return _BOOLEANS[cell.strip().lower()]
    except KeyError:
        raise InvalidRequest("bulk", f"is {cell!r}; it must be true or false") from None


def _header(reader: Iterator[list[str]], source: str, key_column: str | None) -> list[str]:
    """Returns the normalised column names.

    Raises CliError if a column is unknown or repeated, or if `key_column` is missing.
    """
    try:
        raw = next(reader)
    except StopIteration:
        raise CliError(f"{source}: is empty; its first line must name the columns") from None
    except csv.Error as error:
        raise CliError(f"{source}: line 1 is not valid CSV: {error}") from None
    if _NOT_UTF8.search("".join(raw)):
        raise CliError(f"{source}: line 1 is not UTF-8; save the file with the encoding UTF-8")
    names = [_name(cell) for cell in raw]
    for name, cell in zip(names, raw, strict=True):
        if name not in COLUMNS and not _FREE_COLUMN.fullmatch(name) and name != key_column:
            close = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=_SIMILAR)
            allowed = f"use {', '.join(COLUMNS)}, data.*, metadata.*"
            hint = f"did you mean {close[0]}?" if close else allowed
            if len(raw) == 1 and (between := re.search(r"[;\t|]", cell)):
                hint = f"separate the columns with commas, not with {between[0]!r}"
            raise CliError(f"{source}: line 1: column {cell!r} is not a field; {hint}")
        if names.count(name) > 1:
            raise CliError(f"{source}: line 1: column {cell!r} appears twice")
    if key_column is not None and key_column not in names:
        raise CliError(
            f"--idempotency-column: {key_column!r} is not in the header; it has {', '.join(names)}"
        )
    return names


def _name(cell: str) -> str:
    """Normalises a column name: `deviceToken` and `Device Token` become `device_token`."""
    cell = cell.strip()
    if cell.startswith(("data.", "metadata.")):
        return cell
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cell)
    snake = re.sub(r"[\s\-]+", "_", snake).lower()
    return _ALIASES.get(snake, snake)


class _Lines:
    """Iterates over the decoded lines of a file, limits their length and counts the bytes read."""

    def __init__(self, binary: BinaryIO, source: str) -> None:
        self._binary = binary
        self._source = source
        self._number = 0
        self.bytes_read = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = self._binary.readline(_MAX_LINE_BYTES)
        if not raw:
            raise StopIteration
        self._number += 1
        self.bytes_read += len(raw)
        if len(raw) == _MAX_LINE_BYTES and not raw.endswith(b"\n"):
            raise CliError(f"{self._source}: line {self._number} is longer than 16 MiB; is this a CSV file?")
        if self._number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        # Invalid UTF-8 becomes surrogates, so that only the rows that have them are rejected.
        return raw.decode("utf-8", "surrogateescape")


def _opened(source: str) -> Any:
    csv.field_size_limit(_MAX_LINE_BYTES)
    if source == "-":
        return os.fdopen(os.dup(0), "rb")
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise CliError(f"--csv: {source}: {error.strerror}") from None


def _size(binary: BinaryIO) -> int | None:
    """Returns the size of the file in bytes, or None for a pipe or an empty file."""
    try:
        return os.fstat(binary.fileno()).st_size or None
    except OSError:
        return None

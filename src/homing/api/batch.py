"""Many requests at once: each is accepted or refused by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from homing.api.answers import ApiError
from homing.api.errors import store_problem
from homing.api.notifications import AcceptLanguage, header, with_headers
from homing.api.routing import Routes
from homing.api.service import Call
from homing.core.access import Scope
from homing.core.errors import InvalidRequest, StoreError
from homing.core.reading import explained
from homing.core.request import SendRequest
from homing.engine.sending import Rejection, SendResult

routes = Routes("Notifications")

MOST_ITEMS = 10_000
_NDJSON = "application/x-ndjson"
_MOST_COMMAS = 50 * MOST_ITEMS
"""Keeps an array of very many very small things from becoming as many objects."""
_RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ITEM = msgspec.json.Decoder(SendRequest)

BatchKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=249,
        pattern="^[ -~]+$",
        description="Of each request without one of its own, with `:` and its place in the batch.",
    ),
]
Array = Annotated[
    tuple[Any, ...],
    Meta(
        max_length=MOST_ITEMS,
        description="Each a `SendRequest`. What is not one is rejected in its place; the others are taken.",
        extra_json_schema={"items": {"anyOf": [{"$ref": "#/components/schemas/SendRequest"}, {}]}},
    ),
]
Lines = Annotated[str, Meta(description="One request a line, as JSON.")]


class BatchItem(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What became of one request of a batch: queued with its ids, or rejected with what is wrong."""

    index: int
    """Its place in the batch, from 0."""
    status: Literal["queued", "rejected"]
    batch_id: str | None = None
    notification_id: str | None = None
    """Where there is exactly one."""
    notification_ids: tuple[str, ...] = ()
    queue_name: str | None = None
    duplicate: bool = False
    field: str | None = None
    code: str | None = None
    message: str | None = None


class BatchResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of all of them, in their order."""

    accepted: int
    rejected: int
    results: tuple[BatchItem, ...]


class MalformedItem(InvalidRequest):
    """An item that cannot be read as a request."""

    code = "MALFORMED_REQUEST"


@routes.post(
    "/notifications/batch",
    scope=Scope.SEND,
    raw=True,
    large=True,
    bodies={"application/json": Array, _NDJSON: Lines},
    headers={"Idempotency-Key": BatchKey, "Accept-Language": AcceptLanguage},
    examples=(
        [
            {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "Hello"}},
            {"recipient": {"phone": "+15550100"}, "channel": "sms", "content": {"body": "Hello"}},
        ],
    ),
)
async def send_batch(call: Call) -> BatchResult:
    """Accept up to 10,000 requests: a JSON array, or one request a line.

    Each is accepted or rejected by itself; what is answered as `queued` is on disk. A request's own
    `idempotencyKey` holds for it; a key in the header is each other request's, with `:` and its place.
    Should the store go away midway, those that were not stored any more are rejected with its code.
    Synchronous requests are for one at a time.
    """
    key, language = header(call, "Idempotency-Key", BatchKey), header(call, "Accept-Language", AcceptLanguage)
    items = _items(call)
    results: list[BatchItem] = []
    try:
        async for result in call.front.submit_many(_requests(items, key, language)):
            results.append(_outcome(len(results), result))
    except StoreError as error:
        if not any(one.status == "queued" for one in results):
            raise  # nothing was stored: all of it may be sent again
        missed, told = range(len(results), len(items)), store_problem(error)
        results += [BatchItem(index=n, status="rejected", code=error.code, message=told) for n in missed]
    accepted = sum(one.status == "queued" for one in results)
    return BatchResult(accepted=accepted, rejected=len(results) - accepted, results=tuple(results))


def _items(call: Call) -> Sequence[bytes | msgspec.Raw]:
    """The requests as they were sent, still to be read one by one; too many are refused before any is."""
    if call.headers.get("content-type", "").partition(";")[0].strip().lower() == _NDJSON:
        _check_number(call.raw.count(b"\n"))
        return [line for line in call.raw.split(b"\n") if line.strip()]
    if call.raw.count(b",") > _MOST_COMMAS:
        raise ApiError(
            "PAYLOAD_TOO_LARGE", f"an array with more than {_MOST_COMMAS} commas is to be sent as {_NDJSON}"
        )
    try:
        items = _RAW_ITEMS.decode(call.raw)
    except msgspec.ValidationError:
        raise ApiError("MALFORMED_REQUEST", "body: must be an array of requests", field="body") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("MALFORMED_REQUEST", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise ApiError("MALFORMED_REQUEST", "the body is nested too deeply") from None
    _check_number(len(items))
    return items


def _check_number(number: int) -> None:
    if number > MOST_ITEMS:
        raise ApiError(
            "INVALID_REQUEST", f"body: has {number} requests; allowed are {MOST_ITEMS}", field="body"
        )


def _requests(
    items: Sequence[bytes | msgspec.Raw], key: str | None, language: str | None
) -> Iterator[SendRequest | InvalidRequest]:
    """Read when their turn comes: what is wrong with one is told in its place."""
    for index, item in enumerate(items):
        try:
            request = _ITEM.decode(item)
        except msgspec.ValidationError as error:
            yield MalformedItem(*explained(error, SendRequest.__struct_encode_fields__))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            yield MalformedItem("request", f"is not JSON: {error}")
        else:
            own = None if key is None or request.idempotency_key is not None else f"{key}:{index}"
            yield with_headers(request, own, language) if own or language else request


def _outcome(index: int, result: SendResult | Rejection) -> BatchItem:
    if isinstance(result, Rejection):
        return BatchItem(
            index=index, status="rejected", field=result.field, code=result.code, message=result.message
        )
    ids = result.notification_ids
    return BatchItem(
        index=index,
        status="queued",
        batch_id=result.batch_id,
        notification_id=ids[0] if len(ids) == 1 else None,
        notification_ids=ids,
        queue_name=result.queue_name,
        duplicate=result.duplicate,
    )

"""The batch route: accepts many send requests in one call, each of them separately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from homing.api.http.bodies import ApiError
from homing.api.http.errors import describe_store_error
from homing.api.http.routing import Routes
from homing.api.intake.notifications import AcceptLanguage, merge_headers, read_header
from homing.api.service import ApiCall
from homing.core.access.scopes import Scope
from homing.core.errors import InvalidRequest, StoreError
from homing.core.request_decoding import explain_error
from homing.core.send_request import SendRequest
from homing.core.strict_decoding import StrictDecoder, explain_unknown_field
from homing.engine.intake.accept import Rejection, SendResult
from homing.wire.notifications import BatchItem, BatchResult

routes = Routes("Notifications")


MAX_BATCH_ITEMS = 10_000

_NDJSON = "application/x-ndjson"

_MAX_COMMAS = 50 * MAX_BATCH_ITEMS
"""Maximum number of commas in a JSON array. Keeps an array of very many tiny values from being decoded into
as many objects.
"""

_RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])

_ITEM = StrictDecoder(SendRequest)


BatchKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=249,
        pattern="^[ -~]+$",
        description="Idempotency key of the batch. A request without its own key gets `KEY:INDEX`.",
    ),
]

BatchArray = Annotated[
    tuple[Any, ...],
    Meta(
        max_length=MAX_BATCH_ITEMS,
        description="Each item is a `SendRequest`. Invalid items are rejected; the others are accepted.",
        extra_json_schema={"items": {"anyOf": [{"$ref": "#/components/schemas/SendRequest"}, {}]}},
    ),
]

BatchLines = Annotated[str, Meta(description="One JSON-encoded `SendRequest` per line.")]


class MalformedItem(InvalidRequest):
    """An item of a batch that cannot be parsed as a send request."""

    code = "MALFORMED_REQUEST"


@routes.post(
    "/notifications/batch",
    scope=Scope.SEND,
    raw=True,
    large=True,
    bodies={"application/json": BatchArray, _NDJSON: BatchLines},
    headers={"Idempotency-Key": BatchKey, "Accept-Language": AcceptLanguage},
    examples=(
        [
            {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "Hello"}},
            {"recipient": {"phone": "+15550100"}, "channel": "sms", "content": {"body": "Hello"}},
        ],
    ),
)
async def send_batch(call: ApiCall) -> BatchResult:
    """Submit up to 10,000 send requests in one call.

    The body is a JSON array or one request per line. Each request is accepted or rejected separately.
    Requests reported as `queued` are on disk. If the `Idempotency-Key` header is set, a request without its
    own `idempotencyKey` gets the key of the header, followed by `:` and its zero-based index. If the store
    fails midway, the requests that were not stored are rejected with the store's error code. Synchronous
    requests are rejected.
    """
    key, language = (
        read_header(call, "Idempotency-Key", BatchKey),
        read_header(call, "Accept-Language", AcceptLanguage),
    )
    items = _items(call)
    results: list[BatchItem] = []
    try:
        async for result in call.tenant_api.submit_many(_requests(items, key, language)):
            results.append(_outcome(len(results), result))
    except StoreError as error:
        if not any(item.status == "queued" for item in results):
            raise  # nothing was stored, so the caller can repeat the whole batch
        missed, message = range(len(results), len(items)), describe_store_error(error)
        results += [BatchItem(index=n, status="rejected", code=error.code, message=message) for n in missed]
    accepted = sum(item.status == "queued" for item in results)
    return BatchResult(accepted=accepted, rejected=len(results) - accepted, results=tuple(results))


def _items(call: ApiCall) -> Sequence[bytes | msgspec.Raw]:
    """Returns the undecoded requests. Raises if there are too many, before any of them is decoded."""
    if call.headers.get("content-type", "").partition(";")[0].strip().lower() == _NDJSON:
        _check_number(call.raw.count(b"\n"))
        return [line for line in call.raw.split(b"\n") if line.strip()]
    if call.raw.count(b",") > _MAX_COMMAS:
        raise ApiError(
            "PAYLOAD_TOO_LARGE", f"the array has more than {_MAX_COMMAS} commas; send it as {_NDJSON}"
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
    if number > MAX_BATCH_ITEMS:
        raise ApiError(
            "INVALID_REQUEST",
            f"body: has {number} requests; at most {MAX_BATCH_ITEMS} are allowed",
            field="body",
        )


def _requests(
    items: Sequence[bytes | msgspec.Raw], key: str | None, language: str | None
) -> Iterator[SendRequest | InvalidRequest]:
    """Decodes the requests one at a time. Yields an error in place of each request that cannot be decoded."""
    for index, item in enumerate(items):
        try:
            request = _ITEM.decode(item)
        except msgspec.ValidationError as error:
            yield _malformed_item(item, error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            yield MalformedItem("request", f"is not JSON: {error}")
        else:
            own = None if key is None or request.idempotency_key is not None else f"{key}:{index}"
            yield merge_headers(request, own, language) if own or language else request


def _malformed_item(item: bytes | msgspec.Raw, error: msgspec.ValidationError) -> MalformedItem:
    try:
        unknown = explain_unknown_field(msgspec.json.decode(item), SendRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # after the part with the error
        unknown = None
    return MalformedItem(*(unknown or explain_error(error, SendRequest.__struct_encode_fields__)))


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

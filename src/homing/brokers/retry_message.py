"""The protobuf message `RetryMessage`: a failed message, with the queue that it came from.

The message type is built when this module is imported, from the definition that other programs have in a
`.proto` file. protobuf accepts more than it should: fields of a wrong type are ignored, and numbers that do
not fit are cut. So every message is checked after it was parsed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec import Struct

from homing.core.errors import InvalidRequest
from homing.core.plain_values import is_storable

MAX_COUNT = 999
"""Highest `retry_count` and `max_retries`."""

_LONGEST_ID = 255

_LONGEST_QUEUE_BYTES = 255

_LAST_INT32 = 2**31 - 1

_Field = descriptor_pb2.FieldDescriptorProto

_FIELDS = (
    ("message_id", 1, _Field.TYPE_STRING),
    ("original_payload", 2, _Field.TYPE_BYTES),
    ("original_queue", 3, _Field.TYPE_STRING),
    ("error_reason", 4, _Field.TYPE_STRING),
    # Declared as int32. Both have the same encoding, and protobuf cuts an int32 that is too large.
    ("retry_count", 5, _Field.TYPE_INT64),
    ("max_retries", 6, _Field.TYPE_INT64),
    ("next_retry_at_ms", 7, _Field.TYPE_INT64),
)

_NAMES = {number: name for name, number, _ in _FIELDS}


class RetryMessage(Struct, frozen=True, kw_only=True):
    """A message that another program could not process, and its retries so far."""

    message_id: str
    original_payload: bytes = b""
    original_queue: str
    error_reason: str = ""
    retry_count: int = 0
    """Number of retries before this one."""
    max_retries: int = 0
    """Maximum number of retries. 0 stands for the default."""
    next_retry_at_ms: int = 0
    """Time of the next retry, in milliseconds since 1970. 0 if the count decides."""


def _build_type() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="homing/retry_message.proto", package="homing", syntax="proto3"
    )
    declared = file.message_type.add(name="RetryMessage")
    for name, number, kind in _FIELDS:
        declared.field.add(name=name, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("homing.RetryMessage"))


_TYPE = _build_type()


def encode_retry_message(message: RetryMessage) -> bytes:
    """Returns the message in protobuf's format."""
    encoded: bytes = _TYPE(
        message_id=message.message_id,
        original_payload=message.original_payload,
        original_queue=message.original_queue,
        error_reason=message.error_reason,
        retry_count=message.retry_count,
        max_retries=message.max_retries,
        next_retry_at_ms=message.next_retry_at_ms,
    ).SerializeToString(deterministic=True)
    return encoded


def decode_retry_message(body: bytes) -> RetryMessage:
    """Returns the message, with all of its fields checked. Raises `InvalidRequest`, which names the field.

    Fields with other numbers are ignored, so that the definition can grow.
    """
    if not body:
        raise InvalidRequest("message", "is empty")
    try:
        found = _TYPE.FromString(body)
    except DecodeError:
        raise InvalidRequest("message", "is not a RetryMessage: protobuf cannot parse it") from None
    others: Any = UnknownFieldSet(found)
    for other in others:
        if name := _NAMES.get(other.field_number):
            raise InvalidRequest(name, "has the wrong type")
    message = RetryMessage(
        message_id=found.message_id,
        original_payload=found.original_payload,
        original_queue=found.original_queue,
        error_reason=found.error_reason,
        retry_count=found.retry_count,
        max_retries=found.max_retries,
        next_retry_at_ms=found.next_retry_at_ms,
    )
    _check(message)
    return message


def _check(message: RetryMessage) -> None:
    for name in ("message_id", "original_queue", "error_reason"):
        if not is_storable(getattr(message, name)):
            raise InvalidRequest(name, "contains the character NUL")
    if not message.message_id:
        raise InvalidRequest("message_id", "is missing")
    if len(message.message_id) > _LONGEST_ID:
        raise InvalidRequest(
            "message_id",
            f"has {len(message.message_id)} characters; at most {_LONGEST_ID} are allowed",
        )
    if not message.original_queue:
        raise InvalidRequest("original_queue", "is missing")
    if (size := len(message.original_queue.encode())) > _LONGEST_QUEUE_BYTES:
        raise InvalidRequest(
            "original_queue", f"has {size} bytes; at most {_LONGEST_QUEUE_BYTES} are allowed"
        )
    for name in ("retry_count", "max_retries"):
        count = getattr(message, name)
        if not 0 <= count <= MAX_COUNT:
            shown = str(count) if abs(count) <= _LAST_INT32 else "not an int32"
            raise InvalidRequest(name, f"is {shown}; it must be between 0 and {MAX_COUNT}")
    if message.next_retry_at_ms < 0:
        raise InvalidRequest("next_retry_at_ms", "is negative")

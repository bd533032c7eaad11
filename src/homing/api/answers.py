"""What a route answers with: values, other statuses, and errors in one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct, field

_T = TypeVar("_T")


class Answer(Struct, Generic[_T], frozen=True):
    """A value with a status or headers of its own. Bytes and None are sent as they are."""

    value: _T
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


class Items(Struct, Generic[_T], frozen=True):
    """A list that is whole: there is no further page."""

    items: tuple[_T, ...]


class ErrorDetail(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What went wrong, to what, and what to do."""

    code: Annotated[str, Meta(pattern="^[A-Z][A-Z_]+$", examples=["INVALID_REQUEST"])]
    """One of the codes of the reference's table."""
    message: Annotated[str, Meta(examples=["recipient.email: is empty; email needs it"])]
    field: Annotated[str | None, Meta(examples=["recipient.email"])] = None
    """Which part of the request is not acceptable."""
    notification_id: str | None = None


class ErrorBody(Struct, frozen=True, kw_only=True):
    """Every error has this shape."""

    error: ErrorDetail


class ApiError(Exception):
    """A request that this service refuses by itself, before or beside the engine."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.headers: Mapping[str, str] = headers or {}

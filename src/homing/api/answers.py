"""What a route returns or raises: a value, a value with its own status and headers, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct, field

_T = TypeVar("_T")


class Answer(Struct, Generic[_T], frozen=True):
    """A response with its own status, headers or content type.

    The value is encoded as JSON, except that bytes are sent unchanged and None means no body.
    """

    value: _T
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


class Items(Struct, Generic[_T], frozen=True):
    """A complete list, without further pages."""

    items: tuple[_T, ...]


class ErrorDetail(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Description of an error."""

    code: Annotated[str, Meta(pattern="^[A-Z][A-Z_]+$", examples=["INVALID_REQUEST"])]
    """Error code, for programs. The reference lists all codes."""
    message: Annotated[str, Meta(examples=["recipient.email: is empty; email needs it"])]
    """Description of the problem and how to fix it, for people."""
    field: Annotated[str | None, Meta(examples=["recipient.email"])] = None
    """Part of the request that was rejected. Omitted if the error is not about one part."""
    notification_id: str | None = None
    """Id of the notification that the error is about, for example of a failed synchronous send."""


class ErrorBody(Struct, frozen=True, kw_only=True):
    """Body of every error response."""

    error: ErrorDetail


class ApiError(Exception):
    """An error response that the API itself decides on. Errors of the engine have their own classes."""

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

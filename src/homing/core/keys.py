"""API keys: how one reads, what is kept of it, and when it is good. Time and chance are handed in."""

from __future__ import annotations

import hmac
import re
from binascii import crc32
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from msgspec import Struct

from homing.core.access import Scope
from homing.core.events import moment

PREFIX = "hm_"
API_KEY, API_KEY_USE = "api_key", "api_key_use"
"""Kinds of entries: the key itself, and when it was last used (written often, so by itself)."""

ID_BITS, SECRET_BITS = 60, 160

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Without i, l, o and u: what is read aloud or typed is not mistaken."""
_ID_LENGTH, _SECRET_LENGTH, _CHECK_LENGTH = ID_BITS // 5, SECRET_BITS // 5, 6
_CHECK_BITS = 5 * _CHECK_LENGTH
_ID_END = len(PREFIX) + _ID_LENGTH
_LENGTH = _ID_END + 1 + _SECRET_LENGTH + _CHECK_LENGTH
_DIGITS_ONLY = re.compile(f"[{_DIGITS}]+")
_NOBODYS = sha256(b"nobody's").hexdigest()


class KeyStatus(StrEnum):
    """Whether a key is let in."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class KeyRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A key as it is stored: everything but the key.

    The digest is a plain SHA-256: a slow hash protects secrets that people choose, and 160 random bits cannot
    be searched through however fast each try is.
    """

    id: str
    tenant: str
    name: str
    scopes: tuple[Scope, ...]
    digest: str
    created_at: int
    created_by: str
    expires_at: int | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None
    rate_per_second: float | None = None
    replaced_by: str | None = None

    def is_good(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    def status(self, now: int) -> KeyStatus:
        if self.is_good(now):
            return KeyStatus.ACTIVE
        return KeyStatus.EXPIRED if self.revoked_at is None else KeyStatus.REVOKED


class ApiKey(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A key as people and programs read it. The key itself was shown once, when it was made."""

    id: str
    tenant: str
    name: str
    """What it is for, in its owner's words."""
    scopes: tuple[Scope, ...]
    status: KeyStatus
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute or so."""
    revoked_at: datetime | None = None
    revoked_by: str | None = None
    rate_per_second: float | None = None
    """Requests on average; 0: no limit, none given: as the service is set."""
    replaced_by: str | None = None
    """The key that it was rotated to."""


class Minted(Struct, frozen=True):
    """A new key. `text` is nowhere else: whoever has it is the caller."""

    id: str
    text: str
    digest: str

    def __repr__(self) -> str:
        return f"Minted({self.id!r}, …)"


def minted(id_bits: int, secret_bits: int) -> Minted:
    """A key from random bits: `hm_ID_SECRET`, and six characters at its end that tell a slip from a guess."""
    id = _spelled(id_bits, _ID_LENGTH)
    bare = _spelled(secret_bits, _SECRET_LENGTH)
    secret = bare + _check(id, bare)
    return Minted(id, f"{PREFIX}{id}_{secret}", _digest(secret))


def key_parts(text: str) -> tuple[str, str] | None:
    """(id, secret) of what has the length and the marks of a key. That it is one, `matches` says."""
    if len(text) != _LENGTH or text[_ID_END] != "_" or not text.startswith(PREFIX) or not text.isascii():
        return None
    return text[len(PREFIX) : _ID_END], text[_ID_END + 1 :]


def well_formed(id: str, secret: str) -> bool:
    """Whether these could be of a key: a slip in one is found here, before anybody is asked."""
    bare, check = secret[:-_CHECK_LENGTH], secret[-_CHECK_LENGTH:]
    return bool(_DIGITS_ONLY.fullmatch(id + bare)) and check == _check(id, bare)


def matches(record: KeyRecord | None, secret: str) -> bool:
    """Whether the secret is the record's. It takes as long where there is no record."""
    kept = _NOBODYS if record is None else record.digest
    return hmac.compare_digest(kept, _digest(secret)) and record is not None


def key_view(record: KeyRecord, now: int, last_used_at: int | None) -> ApiKey:
    """A record as it is read."""
    return ApiKey(
        id=record.id,
        tenant=record.tenant,
        name=record.name,
        scopes=record.scopes,
        status=record.status(now),
        created_at=moment(record.created_at),
        created_by=record.created_by,
        expires_at=_moment(record.expires_at),
        last_used_at=_moment(last_used_at),
        revoked_at=_moment(record.revoked_at),
        revoked_by=record.revoked_by,
        rate_per_second=record.rate_per_second,
        replaced_by=record.replaced_by,
    )


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _check(id: str, secret: str) -> str:
    return _spelled(crc32(f"{id}_{secret}".encode()) & ((1 << _CHECK_BITS) - 1), _CHECK_LENGTH)


def _spelled(bits: int, length: int) -> str:
    return "".join(_DIGITS[(bits >> 5 * place) & 31] for place in reversed(range(length)))


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)

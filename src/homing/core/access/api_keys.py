"""API keys: their format, their stored record and their validity. Time and random bits are passed in."""

from __future__ import annotations

import hmac
import re
from binascii import crc32
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from msgspec import Struct

from homing.core.access.scopes import Scope
from homing.core.times import moment

PREFIX = "hm_"

API_KEY, API_KEY_USE = "api_key", "api_key_use"
"""Registry kinds: the record of a key, and the time of its last use, which is separate because it is written
often."""


ID_BITS, SECRET_BITS = 60, 160

DEFAULT_OVERLAP_MS = 24 * 3_600_000
"""Default time for which the old key stays valid after a rotation."""

MAX_OVERLAP_MS = 365 * 24 * 3_600_000

MAX_RATE_PER_SECOND = 1_000_000


_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Base-32 digits without i, l, o and u, which are easily misread or misheard."""

_ID_LENGTH, _SECRET_LENGTH, _CHECKSUM_LENGTH = ID_BITS // 5, SECRET_BITS // 5, 6

_CHECKSUM_BITS = 5 * _CHECKSUM_LENGTH

_ID_END = len(PREFIX) + _ID_LENGTH

_LENGTH = _ID_END + 1 + _SECRET_LENGTH + _CHECKSUM_LENGTH

_DIGITS_ONLY = re.compile(f"[{_DIGITS}]+")

_DUMMY_DIGEST = sha256(b"no key").hexdigest()


class KeyStatus(StrEnum):
    """Validity of a key. Only an active key grants access."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class KeyRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A key as stored, without the key itself.

    The digest is a plain SHA-256. Slow hashes are for secrets that people choose; 160 random bits cannot be
    guessed, however fast each guess is.
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
    """Rate limit of the key, in requests per second. 0 means no limit. If None, the service's default
    applies."""
    replaced_by: str | None = None
    """Id of the key that replaced this one by rotation. None if the key was not rotated."""

    def is_active(self, now: int) -> bool:
        """Returns True if the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    def status(self, now: int) -> KeyStatus:
        """Returns whether the key grants access now."""
        if self.is_active(now):
            return KeyStatus.ACTIVE
        return KeyStatus.EXPIRED if self.revoked_at is None else KeyStatus.REVOKED


class ApiKey(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An API key, as the API and commands return it. The key itself is shown only once, at creation."""

    id: str
    tenant: str
    name: str
    """Purpose of the key, in its owner's words."""
    scopes: tuple[Scope, ...]
    status: KeyStatus
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """Time of the last use, accurate to about a minute. None if the key was never used."""
    revoked_at: datetime | None = None
    revoked_by: str | None = None
    rate_per_second: float | None = None
    """Average number of requests allowed per second. 0 means no limit. If None, the service's default
    applies."""
    replaced_by: str | None = None
    """Id of the key that replaced this one by rotation. None if the key was not rotated."""


class NewKey(Struct, frozen=True, kw_only=True, rename="camel"):
    """A newly created key. `text` is shown only once and cannot be recovered."""

    key: ApiKey
    text: str

    def __repr__(self) -> str:
        return f"NewKey({self.key.id!r}, …)"


class NewApiKey(Struct, frozen=True):
    """A new key. `text` is the key itself, which is not stored."""

    id: str
    text: str
    digest: str

    def __repr__(self) -> str:
        return f"NewApiKey({self.id!r}, …)"


def create_api_key(id_bits: int, secret_bits: int) -> NewApiKey:
    """Creates a key `hm_ID_SECRET` from random bits.

    Its last six characters are a checksum that detects typos.
    """
    id = _to_base32(id_bits, _ID_LENGTH)
    bare = _to_base32(secret_bits, _SECRET_LENGTH)
    secret = bare + _checksum(id, bare)
    return NewApiKey(id, f"{PREFIX}{id}_{secret}", _digest(secret))


def split_api_key(text: str) -> tuple[str, str] | None:
    """Splits a key into (id, secret). Returns None if the text does not have the form of a key."""
    if len(text) != _LENGTH or text[_ID_END] != "_" or not text.startswith(PREFIX) or not text.isascii():
        return None
    return text[len(PREFIX) : _ID_END], text[_ID_END + 1 :]


def is_well_formed(id: str, secret: str) -> bool:
    """Returns True if digits and checksum are valid. This detects a mistyped key without a store query."""
    bare, check = secret[:-_CHECKSUM_LENGTH], secret[-_CHECKSUM_LENGTH:]
    return bool(_DIGITS_ONLY.fullmatch(id + bare)) and check == _checksum(id, bare)


def secret_matches(record: KeyRecord | None, secret: str) -> bool:
    """Returns True if the secret belongs to the record.

    The check takes equally long without a record, so that its duration does not show whether a key exists.
    """
    kept = _DUMMY_DIGEST if record is None else record.digest
    return hmac.compare_digest(kept, _digest(secret)) and record is not None


def key_view(record: KeyRecord, now: int, last_used_at: int | None) -> ApiKey:
    """Converts a stored record to the form that the API and commands return."""
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


def _checksum(id: str, secret: str) -> str:
    return _to_base32(crc32(f"{id}_{secret}".encode()) & ((1 << _CHECKSUM_BITS) - 1), _CHECKSUM_LENGTH)


def _to_base32(bits: int, length: int) -> str:
    return "".join(_DIGITS[(bits >> 5 * place) & 31] for place in reversed(range(length)))


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)

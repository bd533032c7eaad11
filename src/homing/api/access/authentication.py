"""Authenticates callers by API key or JWT, and enforces their rate limits.

`ApiGatekeeper` serves every request. `TokenVerifier` verifies the JWTs of the issuers in the settings, which
`read_issuers` reads and checks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from math import ceil, isfinite
from typing import Any, Protocol

import jwt
import msgspec
from jwt.algorithms import get_default_algorithms
from msgspec import Struct

from homing.api.settings import ServiceSettings
from homing.core.access.api_keys import PREFIX
from homing.core.access.scopes import Caller, Scope, read_scopes
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import SharedState
from homing.core.request_decoding import explain_error, unknown_field_problem
from homing.core.routing.rate_limits import RateLimit
from homing.engine.access.api_keys import ApiKeyManager
from homing.engine.access.tenants import Tenants
from homing.engine.rate_tokens import RateTokens

log = logging.getLogger("homing.tokens")

MAX_TOKEN_CHARACTERS = 8_192
"""Maximum length of a JWT, and of any other credential. API keys are much shorter."""


class VerifiesTokens(Protocol):
    """Verifies credentials that are not API keys. `TokenVerifier` implements it for JWTs."""

    def caller(self, token: str) -> Caller | None:
        """Returns the token's caller, or None if the token is not valid."""


_DEFAULTS = ServiceSettings()


class ApiGatekeeper:
    """A `Gatekeeper` for API keys and, if the settings name issuers, for JWTs."""

    def __init__(
        self,
        *,
        keys: ApiKeyManager,
        tenants: Tenants,
        shared: SharedState,
        clock: Clock,
        rate_per_second: float = _DEFAULTS.rate_per_second,
        rate_burst: int = _DEFAULTS.rate_burst,
        tokens: VerifiesTokens | None = None,
    ) -> None:
        self._keys = keys
        self._tenants = tenants
        self._rate = rate_per_second
        """Maximum requests per second of callers without a rate limit of their own. 0 means no limit."""
        self._burst = rate_burst
        """Bucket size for the default rate limit. 0 means two seconds' worth of requests, which is also the
        bucket size of keys with a rate limit of their own.
        """
        self._tokens = tokens
        self._rate_tokens = RateTokens(shared, clock)

    def use_tokens(self, tokens: VerifiesTokens | None) -> None:
        """Verifies JWTs with other keys from now on, or none if it is None."""
        self._tokens = tokens

    async def caller(self, authorization: str) -> Caller | None:
        """Returns the caller of `Bearer KEY` or `Bearer TOKEN`, or None if the credentials are not valid."""
        scheme, _, credential = authorization.partition(" ")
        if scheme.lower() != "bearer" or len(credential) > MAX_TOKEN_CHARACTERS:
            return None
        credential = credential.strip(" ")
        if credential.startswith(PREFIX):
            return await self._keys.verify(credential)
        found = self._tokens.caller(credential) if self._tokens is not None and credential else None
        if found is None or not await self._tenants.enabled(found.tenant):
            return None
        return found

    async def admit(self, caller: Caller) -> int:
        """Counts one request. Returns 0 if it is within the rate limit, else the milliseconds to wait."""
        rate = self._rate if caller.rate_per_second is None else caller.rate_per_second
        if not rate:
            return 0
        burst = 0 if rate != self._rate else self._burst
        limit = RateLimit(rate, burst or max(1, ceil(2 * rate)))
        return await self._rate_tokens.take(f"caller:{caller.rate_key}", limit)


_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}

_PUBLIC_KEY_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)

_MIN_RSA_BITS = 2_048

_REQUIRED = ("exp", "iat", "aud", "iss", "sub")

_HEADER_FIELDS = frozenset({"alg", "typ", "kid"})
"""Header fields that a token may have. Others, such as jwk, jku, x5u and x5c, could let the token choose
its own key.
"""

_TYPES = ("jwt", "at+jwt")

_KEY_ID = re.compile(r"[\w.=-]{1,200}", re.ASCII)

_SUBJECT = re.compile(r"[^\x00-\x20\x7f-\x9f]{1,200}")


class Issuer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trusted issuer of JWTs, and the permissions of its JWTs."""

    issuer: str
    """Required value of the `iss` claim."""
    audience: str
    """Required value of the `aud` claim."""
    algorithm: str
    """The only accepted signature algorithm."""
    key: str
    """Shared secret, or public key in PEM form."""
    tenant: str = ""
    """Tenant of all tokens of this issuer. Set either this or `tenant_claim`."""
    tenant_claim: str = ""
    """Name of the claim that contains the tenant."""
    scopes: tuple[str, ...] = ()
    """Scopes of all tokens of this issuer. Set either this or `scope_claim`."""
    scope_claim: str = ""
    """Name of the claim that contains the scopes, as a list or separated by spaces."""
    leeway_ms: int = 30_000
    """Tolerated difference between the issuer's clock and ours, in milliseconds."""

    def __repr__(self) -> str:
        return f"Issuer({self.issuer!r}, …)"


def read_issuers(
    tables: Iterable[Mapping[str, Any]], reveal: Callable[[str, str], str]
) -> tuple[Issuer, ...]:
    """Reads and checks the issuers in the settings' `[[service.jwt]]` tables.

    `reveal(field, value)` resolves `env:NAME` and `file:PATH`. Raises `ConfigError` if a table is not valid.
    """
    found: list[Issuer] = []
    for index, table in enumerate(tables):
        where = f"service.jwt[{index}]"
        one = _issuer(table, where)
        one = msgspec.structs.replace(one, key=reveal(f"{where}.key", one.key))
        _check(one, where)
        found.append(one)
    return tuple(found)


class TokenVerifier:
    """Verifies JWTs. Keys and algorithms come from the settings only, never from the token."""

    def __init__(self, issuers: Iterable[Issuer], clock: Clock) -> None:
        self._clock = clock
        self._issuers: dict[tuple[str, str], list[tuple[Issuer, Any]]] = {}
        for one in issuers:
            prepared = get_default_algorithms()[one.algorithm].prepare_key(one.key)
            self._issuers.setdefault((one.issuer, one.algorithm), []).append((one, prepared))

    def caller(self, token: str) -> Caller | None:
        """Returns the token's caller, or None if the token is not valid. Does not check if the tenant is
        enabled.
        """
        try:
            return self._caller(token)
        except (_InvalidToken, jwt.PyJWTError, ValueError, OverflowError, RecursionError) as error:
            # The library's messages may quote the token, so only the exception's type is logged.
            log.info(
                "a token was rejected: %s",
                error if isinstance(error, _InvalidToken) else type(error).__name__,
            )
            return None

    def _caller(self, token: str) -> Caller:
        if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
            raise _InvalidToken("it is too long or not ASCII")
        algorithm, issuer = _algorithm_and_issuer(token)
        for one, key in self._issuers.get((issuer, algorithm), ()):
            try:
                claims = self._verify(token, one, key)
            except jwt.PyJWTError:
                continue  # during a key rotation, an issuer has two entries
            return _caller(claims, one)
        raise _InvalidToken("no configured issuer matches its issuer, audience, algorithm and signature")

    def _verify(self, token: str, issuer: Issuer, key: Any) -> Mapping[str, Any]:
        """Returns the claims after checking signature, audience and times. Raises if a check fails.

        The times are checked here, because the library would use the system clock.
        """
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[issuer.algorithm],
            audience=issuer.audience,
            issuer=issuer.issuer,
            options={
                "require": list(_REQUIRED),
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
            },
        )
        now, leeway = self._clock.now_ms() / 1000, issuer.leeway_ms / 1000
        if _time(claims, "exp") + leeway <= now:
            raise _InvalidToken("it has expired")
        for name in ("iat", "nbf"):
            if name in claims and _time(claims, name) - leeway > now:
                raise _InvalidToken(f"its {name} is in the future")
        return claims


class _InvalidToken(Exception):
    """The token is not valid. The message never contains parts of the token."""


def _algorithm_and_issuer(token: str) -> tuple[str, str]:
    """Returns the algorithm and issuer that a token claims. They select the key for the verification."""
    header = jwt.get_unverified_header(token)
    if unknown := set(header) - _HEADER_FIELDS:
        raise _InvalidToken(f"its header has {len(unknown)} fields that are not allowed")
    algorithm, kind, key_id = header.get("alg"), header.get("typ", "JWT"), header.get("kid", "-")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise _InvalidToken("its typ is not JWT")
    if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
        raise _InvalidToken("its kid has characters that are not allowed")
    claims = jwt.decode(token, options={"verify_signature": False})
    issuer = claims.get("iss")
    if not isinstance(algorithm, str) or not isinstance(issuer, str):
        raise _InvalidToken("its algorithm or issuer is missing")
    return algorithm, issuer


def _caller(claims: Mapping[str, Any], issuer: Issuer) -> Caller:
    subject = claims["sub"]
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise _InvalidToken("its sub is not a valid name")
    tenant = claims.get(issuer.tenant_claim) if issuer.tenant_claim else issuer.tenant
    if not isinstance(tenant, str) or not tenant:
        raise _InvalidToken("its tenant claim is missing")
    return Caller(
        tenant=tenant,
        who=f"jwt:{subject}",
        scopes=_scopes(claims, issuer),
        rate_key=f"jwt:{tenant}",
    )


def _scopes(claims: Mapping[str, Any], issuer: Issuer) -> frozenset[Scope]:
    if not issuer.scope_claim:
        return frozenset(Scope(name) for name in issuer.scopes)
    given = claims.get(issuer.scope_claim)
    names = given.split(" ") if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _InvalidToken("its scope claim is missing")
    found = frozenset(scope for scope in Scope if scope.value in names)
    if not found:
        raise _InvalidToken("it has none of Homing's scopes")
    return found


def _time(claims: Mapping[str, Any], name: str) -> float:
    at = claims[name]
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not isfinite(at):
        raise _InvalidToken(f"its {name} is not a time")
    return float(at)


# Checks of the issuers in the settings ----------------------------------------------------------------


def _issuer(table: Mapping[str, Any], where: str) -> Issuer:
    known = Issuer.__struct_fields__
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}.{name}", unknown_field_problem(name, known))
    for name in ("issuer", "audience", "algorithm", "key"):
        if not table.get(name):
            raise ConfigError(f"{where}.{name}", "is missing")
    try:
        return msgspec.convert(dict(table), Issuer)
    except msgspec.ValidationError as error:
        field, problem = explain_error(error, known)
        raise ConfigError(f"{where}.{field}", problem) from None


def _check(issuer: Issuer, where: str) -> None:
    if bool(issuer.tenant) == bool(issuer.tenant_claim):
        raise ConfigError(f"{where}.tenant", "set either tenant or tenant_claim, and not both")
    if bool(issuer.scopes) == bool(issuer.scope_claim):
        raise ConfigError(f"{where}.scopes", "set either scopes or scope_claim, and not both")
    if not 0 <= issuer.leeway_ms <= 300_000:
        raise ConfigError(
            f"{where}.leeway_ms", f"is {issuer.leeway_ms}; it must be from 0 to 300000 (5 minutes)"
        )
    try:
        if issuer.scopes:
            read_scopes(issuer.scopes)
    except InvalidRequest as error:
        raise ConfigError(f"{where}.{error.field}", str(error).removeprefix("scopes: ")) from None
    if issuer.algorithm in _SECRET_BYTES:
        _check_secret(issuer, where)
    elif issuer.algorithm in _PUBLIC_KEY_ALGORITHMS:
        _check_public_key(issuer, where)
    else:
        allowed = ", ".join((*_SECRET_BYTES, *_PUBLIC_KEY_ALGORITHMS))
        raise ConfigError(f"{where}.algorithm", f"is {issuer.algorithm!r}; use one of {allowed}")


def _check_secret(issuer: Issuer, where: str) -> None:
    """Raises `ConfigError` if the secret is too short or looks like a public key."""
    least = _SECRET_BYTES[issuer.algorithm]
    if "-----BEGIN" in issuer.key or issuer.key.lstrip().startswith(("ssh-", "ecdsa-", "{")):
        raise ConfigError(
            f"{where}.key", f"looks like a public key; {issuer.algorithm} needs a shared secret"
        )
    if len(issuer.key.encode()) < least:
        raise ConfigError(
            f"{where}.key", f"is too short; {issuer.algorithm} needs at least {least} random bytes"
        )


def _check_public_key(issuer: Issuer, where: str) -> None:
    if "-----BEGIN" not in issuer.key:
        raise ConfigError(f"{where}.key", "must be a public key in PEM form, such as file:issuer.pem")
    if "PRIVATE KEY" in issuer.key:
        raise ConfigError(
            f"{where}.key",
            "is a private key; use the public key, and remove the private one from this machine",
        )
    try:
        key = get_default_algorithms()[issuer.algorithm].prepare_key(issuer.key)
    except (jwt.PyJWTError, ValueError, TypeError):
        raise ConfigError(f"{where}.key", f"is not a public key for {issuer.algorithm}") from None
    if issuer.algorithm[:2] in ("RS", "PS") and key.key_size < _MIN_RSA_BITS:
        raise ConfigError(f"{where}.key", f"has {key.key_size} bits; RSA needs at least {_MIN_RSA_BITS}")

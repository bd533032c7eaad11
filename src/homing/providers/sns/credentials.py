"""AWS credentials: keys from the settings, or AWS's default chain."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.net.secrets import Secret, read_header_secret, read_secret
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.http_provider import WallClock
from homing.providers.common.response_parsing import redacted_error_text
from homing.providers.common.shared_credential import (
    FetchedCredential,
    SharedCredential,
    expiring_credential,
)
from homing.providers.common.thread_pool import ThreadPool

try:
    from botocore.credentials import Credentials, ReadOnlyCredentials  # type: ignore[import-untyped]
    from botocore.exceptions import (  # type: ignore[import-untyped]
        ClientError,
        ConfigParseError,
        InvalidConfigError,
        NoCredentialsError,
        PartialCredentialsError,
        ProfileNotFound,
    )
except ImportError:  # pragma: no cover
    raise ConfigError("kind", "sns needs botocore: pip install 'homing[sns]'") from None

_FETCH_MS = 10_000

_TEMPORARY_ERRORS = frozenset(
    {
        "IDPCommunicationError",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Errors of STS and SSO that may pass, although their HTTP status is 400."""

_REFRESH_EARLY_MS = 600_000
"""How long before their expiry temporary credentials are refreshed."""


class AwsCredentialSource(Protocol):
    """The source of AWS credentials."""

    @property
    def credentials(self) -> Any:
        """The current credentials, or None while there are none."""

    async def prepare(self, within_ms: int) -> Outcome | None:
        """Obtains or refreshes the credentials. Returns the attempt's outcome if none are available."""

    async def reload_if_replaced(self, used: Any, within_ms: int) -> bool:
        """Returns True if newer credentials than `used` are available, reading them again if necessary."""

    async def close(self) -> None: ...


class AwsStaticCredentials:
    """AWS credentials from the settings. Those in files and environment variables can be read again."""

    def __init__(
        self,
        access_key_id: str | Secret,
        secret_access_key: str | Secret,
        session_token: str | Secret = "",
    ) -> None:
        self._given = access_key_id, secret_access_key, session_token
        self._read = self._texts()
        self.credentials: Any = Credentials(*self._read)

    async def prepare(self, within_ms: int) -> None:
        """Does nothing: the credentials were read at start."""

    async def reload_if_replaced(self, used: Any, within_ms: int) -> bool:
        """Returns True if newer credentials than `used` are available, reading them again if necessary.

        Temporary credentials are replaced from outside before they expire.
        """
        if self.credentials is used:
            self._read_again()
        return self.credentials is not used

    async def close(self) -> None:
        """Does nothing."""

    def _read_again(self) -> None:
        try:
            found = self._texts()
        except ConfigError:
            return
        if found != self._read:
            self._read, self.credentials = found, Credentials(*found)

    def _texts(self) -> tuple[str, str, str | None]:
        key_id, key, token = self._given
        return (
            read_header_secret("access_key_id", key_id).reveal(),
            read_secret("secret_access_key", key).reveal(),
            read_header_secret("session_token", token).reveal() if token else None,
        )


class AwsDefaultCredentials:
    """AWS credentials of the default chain, or of one profile.

    botocore searches for them in the environment, web identities, the files of the AWS CLI, and the role of
    the container or instance. Its calls block, so they run in a thread.
    """

    def __init__(self, profile: str, region: str, now_ms: WallClock) -> None:
        self._profile = profile or None
        self._region = region
        self._now_ms = now_ms
        self._threads: ThreadPool[tuple[ReadOnlyCredentials, datetime | None]] = ThreadPool("homing-aws", 1)
        self._shared: SharedCredential[ReadOnlyCredentials] = SharedCredential(
            "AWS credentials", self._fetch, _unavailable, now_ms
        )

    def __repr__(self) -> str:
        return f"AwsDefaultCredentials(profile={self._profile!r})"

    @property
    def credentials(self) -> Any:
        return self._shared.value

    async def prepare(self, within_ms: int) -> Outcome | None:
        found = await self._shared.get(within_ms)
        return found if isinstance(found, Outcome) else None

    async def reload_if_replaced(self, used: Any, within_ms: int) -> bool:
        found = await self._shared.replace(used, within_ms)
        return not isinstance(found, Outcome) and found != used

    async def close(self) -> None:
        await self._shared.close()
        await self._threads.close(within_ms=0)

    async def _fetch(self) -> FetchedCredential[ReadOnlyCredentials] | Outcome:
        try:
            call = await self._threads.run(self._resolve, thread_within_ms=_FETCH_MS)
            found, expiry = await call
        except Exception as error:  # files, processes and servers of the chain can fail in any way
            text = redacted_error_text(f"AWS credentials: {error}") or ""
            return _missing(text) if _is_permanent(error) else _unavailable(text)
        if expiry is None:
            return FetchedCredential(found)
        now_ms = self._now_ms()
        lifetime_ms = max(0, int(expiry.timestamp() * 1000) - now_ms)
        return expiring_credential(found, now_ms, lifetime_ms, _REFRESH_EARLY_MS)

    def _resolve(self) -> tuple[ReadOnlyCredentials, datetime | None]:
        """Blocks. Returns the credentials and when they expire.

        Each search starts from the beginning, because files and environment may have changed.
        """
        import botocore.session  # type: ignore[import-untyped]  # slow to import

        session = botocore.session.Session(profile=self._profile)
        if session.get_config_variable("region") is None:
            session.set_config_variable("region", self._region)  # for a role that is assumed
        found = session.get_credentials()
        if found is None:
            raise NoCredentialsError
        frozen = found.get_frozen_credentials()  # may fetch them, for example by AssumeRole
        return frozen, getattr(found, "_expiry_time", None)


def choose_credentials(
    access_key_id: str | Secret,
    secret_access_key: str | Secret,
    session_token: str | Secret,
    profile: str,
    region: str,
    now_ms: WallClock,
) -> AwsCredentialSource:
    """Returns the keys of the settings, or the default chain if the settings contain none."""
    if not (access_key_id or secret_access_key or session_token):
        return AwsDefaultCredentials(profile, region, now_ms)
    if profile:
        raise ConfigError("profile", "cannot be combined with access_key_id; set only one of them")
    return AwsStaticCredentials(access_key_id, secret_access_key, session_token)


def _is_permanent(error: Exception) -> bool:
    """Returns True if only a change of the settings or permissions can help."""
    if isinstance(error, ClientError):  # an answer of STS or SSO, for example to AssumeRole
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status in (400, 403) and error.response.get("Error", {}).get("Code") not in _TEMPORARY_ERRORS
    return isinstance(
        error,
        (NoCredentialsError, PartialCredentialsError, ProfileNotFound, ConfigParseError, InvalidConfigError),
    )


def _missing(error: str) -> Outcome:
    return load_error_table("sns").outcome("credentials_missing", 0, error)


def _unavailable(error: str) -> Outcome:
    return load_error_table("sns").outcome("credentials_unavailable", 0, error)

"""Turns requests into submissions: validates, plans, resolves recipients, renders, chooses providers.

A request that was valid may be invalid when it is repeated: it has expired, or its template, recipient or
provider was removed. So an invalid request is first looked up by its idempotency key, and answered with the
result of the first request if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.content.locales import LocalePolicy
from homing.core.content.templates import ManagedRenderer
from homing.core.errors import InvalidRequest, text_of
from homing.core.ids import BITS_EACH, uuid7, uuids7
from homing.core.lifecycle.claims import LEASE_MARGIN_MS, Acceptance, NewNotification, Submission
from homing.core.notifications import Channel, Content, Message, Mode, Recipient
from homing.core.plain_values import NotPlain, to_builtin
from homing.core.ports.plug_ins import Directory, Renderer
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Store
from homing.core.request_decoding import plain_content, plain_recipient, plain_request
from homing.core.retry.backoff import delay_ms
from homing.core.retry.policy import RetryPolicy
from homing.core.routing.delivery_modes import SYNCHRONOUS_TYPES
from homing.core.send_request import (
    BOTH,
    SendLimits,
    SendRequest,
    address_of,
    check_content,
    check_content_types,
    check_json,
    check_keys,
    check_recipient,
    has_address,
    names_both,
    recipients_of,
)
from homing.core.times import EPOCH, epoch_ms
from homing.engine.delivery.attempts import sanitize_text
from homing.engine.intake.content import BuiltContent, ContentBuilder
from homing.engine.intake.planning import ChannelPlan, DeliveryPlan, Planner
from homing.engine.intake.recipient_lookup import (
    NO_DEVICE_TOKENS,
    SYNCHRONOUS_TIMEOUT_MS,
    RecipientResolver,
    expand_devices,
)
from homing.engine.intake.spool import Spool
from homing.engine.intake.unsubscribe_links import UnsubscribeLinks
from homing.engine.operations.policies import Policies
from homing.engine.provider_roster import ProviderRoster


class PriorAttempts(Struct, frozen=True, kw_only=True):
    """Attempts that another system made before it handed a request over.

    Not part of the public request. Set only for requests from the SQL inbox or a message broker.
    """

    attempts: int = 0
    """Number of attempts that the other system made.

    The next attempt is due at `send_at`, or else after the policy's delay for that number of attempts. If
    there is no attempt left, the notification is due at once, and becomes a dead letter without an attempt.
    """
    max_attempts: int | None = None
    """Maximum number of attempts, including `attempts`. If None, the policy's maximum applies."""
    last_error: str | None = None
    """Error of the last attempt that the other system made, if known."""

    def leaves_none(self, policy: RetryPolicy) -> bool:
        """Returns True if the other system has made all attempts that the notification may have."""
        most = policy.max_attempts if self.max_attempts is None else self.max_attempts
        return self.attempts >= most


NO_PRIOR_ATTEMPTS = PriorAttempts()

_MAX_ATTEMPTS = 1000

_MAX_ERROR_CHARS = 2_000
"""Maximum length of the error that another system hands over."""

_NEVER_ACCEPTED = (InvalidRequest, TypeError, ValueError, OverflowError, RecursionError)
"""Errors of a request that cannot be encoded, or whose key or plan is invalid whatever is stored."""

_MILLISECOND = timedelta(milliseconds=1)

_SYNCHRONOUS = Mode.SYNCHRONOUS

_id_of = attrgetter("id")


class RepeatedRequest(Struct, frozen=True):
    """A request that is no longer valid, but whose idempotency key is known."""

    tenant: str
    idempotency_key: str
    mode: Mode
    answer: Acceptance
    """The result of the first request, or a conflict if the first request was a different one."""
    status: str
    """`queued`, or `spooled` if the first request is still in the spool."""


PreparedRequest = Submission | RepeatedRequest
"""A request that can be stored, or that needs no storing because it was accepted before."""

_Errors = dict[int, InvalidRequest]
"""Index of a request → error of the request."""

_Draft = tuple[int, SendRequest, DeliveryPlan, tuple[Recipient, ...]]
"""A valid request: (index, request, plan, recipients)."""

_Target = tuple[int, SendRequest, DeliveryPlan, ChannelPlan, Recipient, str]
"""One future notification: (index, request, plan, channel plan, recipient, address)."""


class IntakeSettings(Struct, frozen=True, kw_only=True):
    """Settings of intake: limits, modes, deduplication and locales."""

    limits: SendLimits = SendLimits()
    synchronous_types: frozenset[str] = frozenset(SYNCHRONOUS_TYPES)
    dedup_windows_ms: Mapping[str, int] = field(default_factory=dict)
    """Notification type → deduplication window in milliseconds.

    Within the window, the same message to the same address is accepted once.
    """
    dedup_key_window_ms: int = 10 * 60_000
    """Deduplication window for requests with a dedup key whose type is not in `dedup_windows_ms`."""
    locales: LocalePolicy | None = None
    """The project's locale policy. If None, the renderer gets the recipient's locale unchanged."""
    default_channel: str = ""
    """Channel, or `both`, of requests that name none and have no template with exactly one channel. Empty if
    such requests are rejected."""


class Intake:
    """Checks requests and computes everything that the store needs to accept them."""

    def __init__(
        self,
        *,
        store: Store,
        spool: Spool | None,
        roster: ProviderRoster,
        policies: Policies,
        directory: Directory,
        renderer: Renderer | None,
        clock: Clock,
        random_source: RandomSource,
        settings: IntakeSettings,
        name: str,
        usable: Callable[[str], bool] = lambda provider: True,
        links: UnsubscribeLinks | None = None,
    ) -> None:
        """Creates an intake. `usable` returns False for a provider whose breaker blocks all attempts."""
        self._store = store
        self._spool = spool
        self._roster = roster
        self._policies = policies
        self._clock = clock
        self._random_source = random_source
        self._settings = settings
        self._name = name
        self._usable = usable
        self._resolver = RecipientResolver(directory)
        self._templates = renderer if isinstance(renderer, ManagedRenderer) else None
        self._content_builder = ContentBuilder(renderer, settings.locales, links)
        self._planner = Planner(policies, settings.synchronous_types)

    async def prepare(
        self,
        tenant: str,
        request: SendRequest,
        *,
        asked: str = "",
        use_directory: bool = True,
        earlier: PriorAttempts = NO_PRIOR_ATTEMPTS,
        as_of: int | None = None,
        connection: Any = None,
    ) -> PreparedRequest:
        """Returns the submission of one request, or the result of the first request with the same key.

        Raises `InvalidRequest`, which names the field, if the request is wrong. `asked` is the caller's
        original input if `send_at` and `expires_at` were computed from it, for example from durations. A
        repeated request is then recognized by `asked` instead of these two times. `as_of` is the store time
        at which the request was made, if it has waited since: a request that has expired meanwhile is valid,
        and the delay after `earlier` attempts counts from then. `connection` is the caller's database
        connection if the request joins its transaction.
        """
        (found,) = await self.prepare_many(
            tenant,
            (request,),
            asked=asked,
            use_directory=use_directory,
            earlier=earlier,
            as_of=as_of,
            connection=connection,
        )
        if isinstance(found, InvalidRequest):
            raise found
        return found

    def is_synchronous(self, request: SendRequest) -> bool:
        """Returns True if the request is sent within the call. It need not be valid otherwise."""
        if request.synchronous is not None:
            return bool(request.synchronous)
        return (request.type or request.template_key) in self._settings.synchronous_types

    def renewed(self, submission: Submission, key: str) -> Submission:
        """Returns a prepared submission with new ids and another idempotency key, to be accepted now."""
        now = self._clock.now_ms()
        ids = self._ids(now, 1 + len(submission.notifications))
        return replace(
            submission,
            batch_id=next(ids),
            idempotency_key=key,
            notifications=tuple(
                replace(self._placed(submission.tenant, new, next(ids)), send_at=None, expires_at=None)
                for new in submission.notifications
            ),
        )

    def with_id(self, submission: Submission, id_: str) -> Submission:
        """Returns the submission with an id that its author knows already.

        It becomes the id of the notification, or of the batch if there are several notifications.
        """
        if len(submission.notifications) > 1:
            return replace(submission, batch_id=id_)
        (only,) = submission.notifications
        return replace(submission, notifications=(self._placed(submission.tenant, only, id_),))

    def _placed(self, tenant: str, new: NewNotification, id_: str) -> NewNotification:
        """Returns the notification with another id, which decides where its route starts if that is split."""
        if new.pinned:
            return replace(new, id=id_)
        step = self._roster.first_step(new.channel, None, id_, self._usable)
        return replace(new, id=id_, provider=step.provider, outlet=step.outlet(tenant, new.address))

    async def prepare_many(
        self,
        tenant: str,
        requests: Sequence[SendRequest | InvalidRequest],
        *,
        asked: str = "",
        use_directory: bool = True,
        earlier: PriorAttempts = NO_PRIOR_ATTEMPTS,
        as_of: int | None = None,
        connection: Any = None,
    ) -> list[PreparedRequest | InvalidRequest]:
        """Returns one submission, earlier result or error per request, in order.

        An error among `requests` is returned unchanged. The ids of the notifications ascend, so that
        notifications due at the same time are sent in the order of the requests. Each step runs for all
        requests before the next step starts. The code of one step fits into the processor's cache, which
        saves a third of the time.
        """
        await self._policies.try_refresh()
        now = self._clock.now_ms()
        errors: _Errors = {}
        completed = requests
        if not all(map(_names_channel, requests)):
            completed = [await self._with_channel(tenant, request) for request in requests]
        drafts = self._drafts(tenant, completed, earlier, now if as_of is None else as_of, errors)
        targets = await self._targets(tenant, drafts, use_directory, errors)
        texts = await self._texts(tenant, targets, errors)
        made = self._notifications(tenant, targets, texts, earlier, self._ids(now, len(targets)), errors)
        batches = self._ids(now, len(drafts))
        done: dict[int, PreparedRequest | InvalidRequest] = {**errors}
        if errors:
            done |= await self._repeated(tenant, requests, errors, asked, earlier, connection)
        for index, request, plan, _ in drafts:
            if index not in errors:
                notifications, batch_id = made[index], next(batches)
                if as_of is not None and earlier.attempts:
                    notifications = [replace(new, delay_from=as_of) for new in notifications]
                if completed[index] is not requests[index]:  # recognized by what the caller has given
                    request = replace(request, channel=None)
                done[index] = self._submission(tenant, request, plan, notifications, asked, earlier, batch_id)
        if self._spool is not None and not self._spool.is_empty:
            done |= await self._spooled(self._spool, done)
        return [done[index] for index in range(len(requests))]

    async def _spooled(
        self, spool: Spool, prepared: Mapping[int, PreparedRequest | InvalidRequest]
    ) -> dict[int, RepeatedRequest]:
        """Returns the results of those requests that still wait in the spool.

        If a repeated request was stored before the spooled one, the ids of the latter would never exist.
        """
        keyed = {
            index: (one.tenant, one.idempotency_key, one)
            for index, one in prepared.items()
            if isinstance(one, Submission) and one.idempotency_key is not None
        }
        if not keyed:
            return {}
        known = await spool.known_requests({(tenant, key) for tenant, key, _ in keyed.values()})
        return {
            index: RepeatedRequest(
                tenant, key, one.notifications[0].mode, first.answer(one.fingerprint), "spooled"
            )
            for index, (tenant, key, one) in keyed.items()
            if (first := known.get((tenant, key))) is not None
        }

    async def _with_channel(
        self, tenant: str, request: SendRequest | InvalidRequest
    ) -> SendRequest | InvalidRequest:
        """Returns the request with the only channel of its template, or else with the default channel."""
        if isinstance(request, InvalidRequest) or _names_channel(request):
            return request
        channels: Collection[Channel] = ()
        if self._templates is not None and isinstance(request.template_key, str):
            channels = await self._templates.channels(tenant, str(request.template_key))
        default = next(iter(channels)).value if len(channels) == 1 else self._settings.default_channel
        return replace(request, channel=default) if default else request

    async def _repeated(
        self,
        tenant: str,
        requests: Sequence[SendRequest | InvalidRequest],
        errors: _Errors,
        asked: str,
        earlier: PriorAttempts,
        connection: Any,
    ) -> dict[int, RepeatedRequest]:
        """Returns the earlier results of those invalid requests whose idempotency keys are known."""
        identified: dict[int, tuple[str, Mode, str]] = {}
        for index in errors:
            request = requests[index]
            if isinstance(request, InvalidRequest) or request.idempotency_key is None:
                continue
            try:
                try:
                    identified[index] = self._identify(tenant, request, asked, earlier)
                except (TypeError, AttributeError):  # a value of a foreign type, as in `_drafts`
                    identified[index] = self._identify(tenant, plain_request(request), asked, earlier)
            except _NEVER_ACCEPTED:
                continue
        if not identified:
            return {}
        keys = {(tenant, key) for key, _, _ in identified.values()}
        spooled = await self._spool.known_requests(keys) if self._spool is not None else {}
        known = spooled
        if left := keys - spooled.keys():
            known = spooled | await self._store.known_requests(left, tx=connection)
        return {
            index: RepeatedRequest(
                tenant,
                key,
                mode,
                first.answer(fingerprint),
                "spooled" if (tenant, key) in spooled else "queued",
            )
            for index, (key, mode, fingerprint) in identified.items()
            if (first := known.get((tenant, key))) is not None
        }

    def _identify(
        self, tenant: str, request: SendRequest, asked: str, earlier: PriorAttempts
    ) -> tuple[str, Mode, str]:
        """Returns (idempotency key, mode, fingerprint) of a request.

        They depend on the request alone, not on the time or on anything that is stored. Raises one of
        `_NEVER_ACCEPTED` if such a request can never have been accepted.
        """
        plain = self._plain(request)
        # The mode does not depend on the channel, which may be given by a setting that is gone.
        planned = plain if _names_channel(plain) else replace(plain, channel=Channel.EMAIL.value)
        mode = self._planner.plan(tenant, planned).mode
        return plain.idempotency_key or "", mode, _fingerprint(plain, asked, earlier)

    def _drafts(
        self,
        tenant: str,
        requests: Sequence[SendRequest | InvalidRequest],
        earlier: PriorAttempts,
        now: int,
        errors: _Errors,
    ) -> list[_Draft]:
        """Returns the valid requests with their plans, and adds the others to `errors`."""
        drafts: list[_Draft] = []
        for index, request in enumerate(requests):
            try:
                if isinstance(request, InvalidRequest):
                    raise request
                try:
                    drafts.append(self._draft(tenant, index, request, earlier, now))
                except (TypeError, AttributeError):
                    # A value has a type that its field does not declare, such as a framework's lazy string.
                    drafts.append(self._draft(tenant, index, plain_request(request), earlier, now))
            except InvalidRequest as error:
                errors[index] = error
        return drafts

    def _draft(
        self, tenant: str, index: int, request: SendRequest, earlier: PriorAttempts, now: int
    ) -> _Draft:
        """Returns one request with its plan. Raises `NotPlain` if a value is not of a built-in type."""
        request = self._checked(request, now)
        plan = self._planner.plan(tenant, request)
        recipients = recipients_of(request, self._settings.limits)
        if plan.mode is _SYNCHRONOUS:
            _check_synchronous(request, plan, recipients)
        if earlier is not NO_PRIOR_ATTEMPTS:
            _check_earlier(earlier, plan.mode)
        return index, request, plan, recipients

    async def _targets(
        self, tenant: str, drafts: Sequence[_Draft], use_directory: bool, errors: _Errors
    ) -> list[_Target]:
        """Returns the recipient, channel and address of every notification to create."""
        targets: list[_Target] = []
        for index, request, plan, recipients in drafts:
            devices = NO_DEVICE_TOKENS
            try:
                if use_directory and any(map(_id_of, recipients)):
                    recipients, devices = await self._resolver.resolve(tenant, recipients, plan.mode)
                    recipients = tuple(map(_known, recipients))
                if len(recipients) == len(plan.channels) == 1 and not devices:  # the usual case
                    (recipient,), (channel_plan,) = recipients, plan.channels
                    targets.append(
                        (
                            index,
                            request,
                            plan,
                            channel_plan,
                            recipient,
                            address_of(recipient, channel_plan.channel),
                        )
                    )
                    continue
                both = names_both(request)
                targets += [
                    (index, request, plan, channel_plan, one, address_of(one, channel_plan.channel))
                    for recipient in recipients
                    for channel_plan in (_reachable(recipient, plan.channels) if both else plan.channels)
                    for one in (
                        expand_devices(recipient, channel_plan.channel, devices) if devices else (recipient,)
                    )
                ]
            except InvalidRequest as error:
                errors[index] = error
        return targets

    async def _texts(
        self, tenant: str, targets: Sequence[_Target], errors: _Errors
    ) -> list[BuiltContent | None]:
        """Returns the content of each notification, or None if its request is invalid."""
        wording = self._content_builder
        texts: list[BuiltContent | None] = []
        for index, request, plan, channel_plan, recipient, address in targets:
            if index in errors:
                texts.append(None)
            elif request.content is not None and wording.keeps_given_content:
                texts.append((request.content, recipient.locale, None))
            else:
                try:
                    built = await wording.build(
                        tenant, request, recipient, channel_plan.channel, address, plan
                    )
                    texts.append(built if request.content is not None else _rendered(built))
                except InvalidRequest as error:
                    errors[index] = error
                    texts.append(None)
        return texts

    def _notifications(
        self,
        tenant: str,
        targets: Sequence[_Target],
        texts: Sequence[BuiltContent | None],
        earlier: PriorAttempts,
        ids: Iterator[str],
        errors: _Errors,
    ) -> dict[int, list[NewNotification]]:
        """Returns the notifications to create, by the index of their request."""
        made: dict[int, list[NewNotification]] = {}
        for target, built in zip(targets, texts, strict=True):
            index = target[0]
            if built is None or index in errors:
                continue
            try:
                new = self._notification(tenant, next(ids), target, built, earlier)
            except InvalidRequest as error:
                errors[index] = error
                continue
            if index in made:
                made[index].append(new)
            else:
                made[index] = [new]
        return made

    def _submission(
        self,
        tenant: str,
        request: SendRequest,
        plan: DeliveryPlan,
        notifications: Sequence[NewNotification],
        asked: str,
        earlier: PriorAttempts,
        batch_id: str,
    ) -> Submission:
        key, synchronous = request.idempotency_key, plan.mode is _SYNCHRONOUS
        return Submission(  # by position, like `NewNotification`
            tenant,
            batch_id,
            tuple(notifications),
            key,
            "" if key is None else _fingerprint(request, asked, earlier),
            self._name if synchronous else None,
            SYNCHRONOUS_TIMEOUT_MS + LEASE_MARGIN_MS if synchronous else 0,
        )

    def _checked(self, request: SendRequest, now: int) -> SendRequest:
        """Checks a request and returns it with `metadata` and `data` reduced to built-in types."""
        limits = self._settings.limits
        request = self._plain(request, limits.metadata_bytes, limits.content_bytes)
        if request.template_key is None and request.content is None:
            raise InvalidRequest("content", "is missing; give content, or templateKey and data")
        if request.template_key is not None and request.content is not None:
            raise InvalidRequest("content", "cannot be combined with templateKey; give one of them")
        if request.send_at is not None or request.expires_at is not None:
            _check_times(request, now)
        return request

    def _plain(
        self, request: SendRequest, metadata_bytes: int | None = None, data_bytes: int | None = None
    ) -> SendRequest:
        """Returns the request with `metadata` and `data` reduced to built-in types.

        Raises `NotPlain` if another value is not of a built-in type. The sizes are not checked if they are
        None.
        """
        limits, metadata, data = self._settings.limits, request.metadata, request.data
        check_keys(request)
        if type(metadata) is not dict or (data is not None and type(data) is not dict):
            raise NotPlain
        if metadata:
            metadata = check_json(metadata, "metadata", limits, metadata_bytes)
        if data:
            data = check_json(data, "data", limits, data_bytes)
        if metadata is not request.metadata or data is not request.data:
            request = replace(request, metadata=metadata, data=data)
        if request.content is not None:
            check_content_types(request.content)
        return request

    def _notification(
        self, tenant: str, id: str, target: _Target, built: BuiltContent, earlier: PriorAttempts
    ) -> NewNotification:
        _, request, plan, channel_plan, recipient, address = target
        content, locale, version = built
        channel, settings = channel_plan.channel, self._settings
        content = check_content(content, channel, settings.limits)
        step = self._roster.first_step(channel, plan.provider, id, self._usable)
        send_at = None if request.send_at is None else _ms(request.send_at)
        delay = 0
        if earlier.attempts:
            if earlier.leaves_none(channel_plan.policy):
                send_at = None
            elif send_at is None:
                delay = self._delay_ms(channel_plan.policy, earlier)
        window_ms = 0
        if request.dedup_key or settings.dedup_windows_ms:
            by_key_ms = settings.dedup_key_window_ms if request.dedup_key else 0
            window_ms = settings.dedup_windows_ms.get(plan.type, by_key_ms)
        # By position: 22 keywords take nine times as long (bench/struct_construction.py).
        return NewNotification(
            id,
            channel,
            plan.mode,
            channel_plan.lane,
            plan.type,
            plan.category,
            plan.priority,
            plan.origin,
            step.provider,
            step.outlet(tenant, address),
            address,
            Message(recipient, content, plan.template_key, version, locale, request.metadata),
            channel_plan.policy.max_age_ms,
            plan.provider is not None,
            send_at,
            None if request.expires_at is None else _ms(request.expires_at),
            _dedup_key(request.dedup_key, plan.type, channel, address, content) if window_ms else None,
            window_ms,
            earlier.attempts,
            delay,
            earlier.max_attempts,
            None if earlier.last_error is None else sanitize_text(earlier.last_error, _MAX_ERROR_CHARS),
        )

    def _delay_ms(self, policy: RetryPolicy, earlier: PriorAttempts) -> int:
        """Returns the delay in milliseconds until the next attempt, after attempts of another system."""
        return delay_ms(policy, earlier.attempts, self._random_source.random())

    def _ids(self, now: int, number: int = 0) -> Iterator[str]:
        """Returns an endless iterator of new ids.

        Creates the first `number` ids in one go, which is cheaper.
        """
        made = uuids7(now, self._random_source.getrandbits(BITS_EACH * number), number) if number else ()
        return chain(made, iter(lambda: uuid7(now, self._random_source.getrandbits(74)), ""))


def _names_channel(request: SendRequest | InvalidRequest) -> bool:
    """Returns True if the request names a channel, or is invalid anyway."""
    return isinstance(request, InvalidRequest) or request.channel is not None or bool(request.channels)


def _reachable(recipient: Recipient, channels: tuple[ChannelPlan, ...]) -> tuple[ChannelPlan, ...]:
    """Returns the channels without email or push if the recipient has an address only for the other one."""
    missing = [channel for channel in BOTH if not has_address(recipient, channel)]
    if len(missing) != 1:
        return channels
    return tuple(one for one in channels if one.channel not in missing)


def _check_times(request: SendRequest, now: int) -> None:
    """Raises `InvalidRequest` if sendAt or expiresAt is out of bounds, or they leave no time to send."""
    send_ms = now
    if (send_at := request.send_at) is not None:
        if type(send_at) is not datetime:
            raise NotPlain
        send_ms = epoch_ms(send_at, "sendAt", now)
    if (expires_at := request.expires_at) is not None:
        if type(expires_at) is not datetime:
            raise NotPlain
        if epoch_ms(expires_at, "expiresAt", now) <= max(now, send_ms):
            raise InvalidRequest("expiresAt", "must be later than now and sendAt")


def _known(recipient: Recipient) -> Recipient:
    """Checks a recipient that the directory returned, and returns it with built-in types.

    The directory may be user code, so it is not trusted.
    """
    try:
        check_recipient(recipient)
    except NotPlain:
        recipient = plain_recipient(recipient)
        check_recipient(recipient)
    return recipient


def _rendered(built: BuiltContent) -> BuiltContent:
    """Returns rendered content with all texts converted to built-in types.

    The renderer may be user code, so it is not trusted.
    """
    content, locale, version = built
    try:
        check_content_types(content)
    except NotPlain:
        content = plain_content(content)
    return content, locale, version


def _check_synchronous(request: SendRequest, plan: DeliveryPlan, recipients: Sequence[Recipient]) -> None:
    if len(plan.channels) > 1 or len(recipients) > 1:
        raise InvalidRequest("synchronous", "allows only one recipient and one channel")
    if request.send_at is not None:
        raise InvalidRequest(
            "sendAt", "cannot be combined with synchronous; a synchronous request is sent immediately"
        )


def _ms(at: datetime) -> int:
    return (at - EPOCH) // _MILLISECOND


def _check_earlier(earlier: PriorAttempts, mode: Mode) -> None:
    if mode is Mode.SYNCHRONOUS and earlier.attempts:
        raise InvalidRequest(
            "synchronous", "is not possible for a request that was already attempted elsewhere"
        )
    if not 0 <= earlier.attempts <= _MAX_ATTEMPTS:
        raise InvalidRequest("attempts", f"is {earlier.attempts}; it must be between 0 and {_MAX_ATTEMPTS}")
    if earlier.max_attempts is not None and not 1 <= earlier.max_attempts <= _MAX_ATTEMPTS:
        raise InvalidRequest(
            "maxAttempts", f"is {earlier.max_attempts}; it must be between 1 and {_MAX_ATTEMPTS}"
        )


def _fingerprint(request: SendRequest, asked: str, earlier: PriorAttempts) -> str:
    """Returns a hash of the request without its idempotency key, to recognize a repeated request."""
    bare = replace(request, idempotency_key=None)
    if asked:
        bare = replace(bare, send_at=None, expires_at=None)
    encoded = msgspec.json.encode(bare, order="deterministic", enc_hook=to_builtin) + asked.encode()
    if earlier != NO_PRIOR_ATTEMPTS:
        if earlier.last_error is not None:
            earlier = replace(earlier, last_error=text_of(earlier.last_error))
        encoded += msgspec.json.encode(earlier, order="deterministic")
    return sha256(encoded).hexdigest()


def _dedup_key(given: str | None, type_: str, channel: Channel, address: str, content: Content) -> str:
    """Returns a hash of type, channel, address, and the given key or, if there is none, the content."""
    what = given if given is not None else msgspec.json.encode(content, order="deterministic").decode()
    return sha256("\x00".join((type_, channel.value, address, what)).encode()).hexdigest()

"""The retry delays that SQL functions and views read: written to the store whenever the rules change."""

from __future__ import annotations

import asyncio
import logging

from homing.core.errors import StoreError, StoreRejected
from homing.core.notifications import Channel, Mode, Priority
from homing.core.ports.stores import Inbox, RetryRule
from homing.core.retry.backoff import base_delay_ms, base_delays_ms
from homing.core.retry.policy import MatchKeys, PolicyBook, RetryPolicy
from homing.engine.operations.policies import Policies

log = logging.getLogger("homing.inbox")


class SqlSchedule:
    """Writes the retry delays of the rules in force to the store, if they have changed."""

    def __init__(self, inbox: Inbox, policies: Policies) -> None:
        self._inbox = inbox
        self._policies = policies
        self._stored: PolicyBook | None = None
        """The rules whose delays were last written."""

    async def store(self) -> None:
        """Writes the delays. Does nothing if those of these rules were written before."""
        book = self._policies.book
        if book is self._stored:
            return
        try:
            await store_delays(self._inbox, book)
        except StoreRejected as error:
            log.warning("the store refused the retry delays for SQL functions: %s", error)
        except StoreError:
            raise
        except Exception:
            log.exception("a user's delay function failed; SQL functions return the previous delays")
        self._stored = book


async def store_delays(inbox: Inbox, book: PolicyBook) -> None:
    """Writes the delays of the default policy and of all rules."""
    keys = MatchKeys("", "", "", Channel.PUSH, Priority.MEDIUM)
    rules = []
    for rule, policy in book.combinations():
        rules.append(
            RetryRule(
                tenant=rule.tenant,
                type=rule.type,
                origin=rule.origin,
                channel=rule.channel,
                priority=rule.priority,
                delays_ms=_delays_ms(policy),
            )
        )
        await asyncio.sleep(0)  # many rules with many delays each would block the event loop
    default = book.policy(keys, Mode.STANDARD)
    await inbox.store_retry_delays(_delays_ms(default) or (base_delay_ms(default, 1),), rules)


def _delays_ms(policy: RetryPolicy) -> tuple[int, ...]:
    """Returns the delay before each retry, without jitter."""
    return base_delays_ms(policy, policy.max_attempts - 1)

"""Every operation of the service.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.async_calls.admin import AsyncAdmin
from homing.client.async_calls.audit import AsyncAudit
from homing.client.async_calls.dead_letters import AsyncDeadLetters
from homing.client.async_calls.jobs import AsyncJobs
from homing.client.async_calls.keys import AsyncKeys
from homing.client.async_calls.meta import AsyncMeta
from homing.client.async_calls.notifications import AsyncNotifications
from homing.client.async_calls.policies import AsyncPolicies
from homing.client.async_calls.providers import AsyncProviders
from homing.client.async_calls.queue import AsyncQueue
from homing.client.async_calls.recipients import AsyncRecipients
from homing.client.async_calls.suppressions import AsyncSuppressions
from homing.client.async_calls.templates import AsyncTemplates
from homing.client.async_calls.tenants import AsyncTenants


class AsyncCalls(
    AsyncNotifications,
    AsyncQueue,
    AsyncDeadLetters,
    AsyncJobs,
    AsyncAdmin,
    AsyncPolicies,
    AsyncProviders,
    AsyncTemplates,
    AsyncRecipients,
    AsyncSuppressions,
    AsyncTenants,
    AsyncKeys,
    AsyncAudit,
    AsyncMeta,
):
    """Every operation of the service, as a method."""

"""Every operation of the service.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.calls.admin import Admin
from homing.client.calls.audit import Audit
from homing.client.calls.dead_letters import DeadLetters
from homing.client.calls.jobs import Jobs
from homing.client.calls.keys import Keys
from homing.client.calls.meta import Meta
from homing.client.calls.notifications import Notifications
from homing.client.calls.policies import Policies
from homing.client.calls.providers import Providers
from homing.client.calls.queue import Queue
from homing.client.calls.recipients import Recipients
from homing.client.calls.suppressions import Suppressions
from homing.client.calls.templates import Templates
from homing.client.calls.tenants import Tenants


class Calls(
    Notifications,
    Queue,
    DeadLetters,
    Jobs,
    Admin,
    Policies,
    Providers,
    Templates,
    Recipients,
    Suppressions,
    Tenants,
    Keys,
    Audit,
    Meta,
):
    """Every operation of the service, as a method."""

"""Tools for tests of applications, providers and stores.

`run_virtual` runs a coroutine on a `VirtualLoop`, on which hours of retries take no real time. Pass a
`VirtualClock` of that loop to the engine. The loop raises `VirtualDeadlock` if no task can ever continue.
`ScriptedProvider` returns prepared outcomes, and `HANG` is a step of its script that never returns.
`ManualClock` moves only when the test advances it, and `FaultServer` is an HTTP server that injects faults.
The decorator in `homing.testing.store_interception` lets a store class count or fail all of its operations.

The conformance tests are in `homing.testing.provider_suite` and `homing.testing.store_suite`. They need
pytest, which the extra `testing` installs. This folder may import every other part of the package.
"""

from __future__ import annotations

from homing.providers.local.scripted import HANG, ScriptedProvider
from homing.rehearsal.virtual_time import VirtualClock, VirtualDeadlock, VirtualLoop, run_virtual
from homing.testing.fault_server import FaultServer
from homing.testing.manual_clock import ManualClock

__all__ = [
    "HANG",
    "FaultServer",
    "ManualClock",
    "ScriptedProvider",
    "VirtualClock",
    "VirtualDeadlock",
    "VirtualLoop",
    "run_virtual",
]

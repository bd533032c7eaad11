"""The optional interface that says what is wrong with the system of a provider, sink, timer or bridge."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsDiagnosis(Protocol):
    """A provider, sink, timer or bridge that can check the system that it uses.

    A plug-in without this method is reported as configured. A provider's `check` is called instead.
    """

    async def diagnose(self) -> str:
        """Checks that the other system can be used as configured, and describes it in a few words.

        Raises an error that names the problem if it cannot. If the error has an attribute `advice`, that text
        says what to do; it is empty if the message says so already.

        Called by `homing doctor`, on an object of its own that is never opened, so this method connects by
        itself and disconnects before it returns. A provider's is also called, on the provider in use, to
        learn why its `check` returned False. It changes nothing: it publishes, schedules and consumes no
        message. After 10 s it is cancelled. The text, the message and the advice must not contain secrets.
        They are shortened to one line.
        """

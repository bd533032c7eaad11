"""Runs the health checks and diagnoses of providers, sinks, timers and bridges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from homing.core.ports.diagnosis import SupportsDiagnosis
from homing.core.redaction import redact
from homing.engine.delivery.attempts import sanitize_text
from homing.engine.plug_in_calls import call_within

CHECK_TIMEOUT_S = 10
"""Time that a health check or a diagnosis may take."""


class Diagnosis(Struct, frozen=True):
    """What a plug-in reports about the system that it uses."""

    ok: bool
    detail: str
    """Description of the system, or of the problem, in one line and without secrets."""


async def diagnose(plug_in: object) -> Diagnosis:
    """Calls the plug-in's `diagnose`. A plug-in without this method is only known to be configured."""
    if not isinstance(plug_in, SupportsDiagnosis):
        return Diagnosis(True, "configured")
    found: list[str] = []

    async def check() -> bool:
        found.append(await plug_in.diagnose())
        return True

    problem = await find_problem(check)
    return Diagnosis(not problem, problem or _one_line(str(found[0])) or "usable")


async def find_problem(check: Callable[[], Awaitable[bool]]) -> str:
    """Runs a health check, and returns the problem, or an empty string if there is none."""
    try:
        good = await call_within(check, 1000 * CHECK_TIMEOUT_S)
    except TimeoutError:
        return f"no answer within {CHECK_TIMEOUT_S} s"
    except Exception as error:  # a health check may raise anything
        return _one_line(str(error)) or type(error).__name__
    return "" if good else "the health check failed"


def _one_line(text: str) -> str:
    """Returns a plug-in's text in one line of limited length, without recipients and secrets."""
    return " ".join((sanitize_text(redact(text)) or "").split())

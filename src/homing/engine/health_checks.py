"""Runs the health checks and diagnoses of providers, sinks, timers and bridges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from homing.core.errors import text_of
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
    advice: str | None = None
    """What to do about the problem. Empty if `detail` says it, None if the plug-in gives no advice."""


async def diagnose(plug_in: object) -> Diagnosis:
    """Calls the plug-in's `diagnose`. A plug-in without this method is only known to be configured."""
    if not isinstance(plug_in, SupportsDiagnosis):
        return Diagnosis(True, "configured")
    try:
        found = await call_within(plug_in.diagnose, 1000 * CHECK_TIMEOUT_S)
    except Exception as error:  # a diagnosis may raise anything
        given = getattr(error, "advice", None)
        return Diagnosis(False, _describe(error), None if given is None else _one_line(text_of(given)))
    return Diagnosis(True, _one_line(text_of(found)) or "usable")


async def find_problem(check: Callable[[], Awaitable[bool]], plug_in: object = None) -> str:
    """Runs a health check, and returns the problem, or an empty string if there is none.

    If the check fails without a reason, `plug_in` is asked for one, if it supports that.
    """
    try:
        good = await call_within(check, 1000 * CHECK_TIMEOUT_S)
    except Exception as error:  # a health check may raise anything
        return _describe(error)
    if good:
        return ""
    reason = None if plug_in is None else await diagnose(plug_in)
    return "the health check failed" if reason is None or reason.ok else reason.detail


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CHECK_TIMEOUT_S} s"
    return _one_line(text_of(error)) or type(error).__name__


def _one_line(text: str) -> str:
    """Returns a plug-in's text in one line of limited length, without recipients and secrets."""
    return " ".join((sanitize_text(redact(text)) or "").split())

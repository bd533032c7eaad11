"""What `homing doctor` gets from the health checks and diagnoses of plug-ins."""

from __future__ import annotations

import asyncio

import pytest

from homing.engine import health_checks
from homing.engine.health_checks import diagnose, find_problem
from support.engine_harness import Silent


class Examined:
    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def diagnose(self) -> str:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer  # type: ignore[return-value]


async def test_a_plug_in_describes_its_system_in_one_line() -> None:
    found = await diagnose(Examined("RabbitMQ 4.1\nqueue notifications"))
    assert (found.ok, found.detail) == (True, "RabbitMQ 4.1 queue notifications")
    assert (await diagnose(Examined(""))).detail == "usable"


async def test_a_plug_in_without_diagnose_is_only_configured() -> None:
    found = await diagnose(object())
    assert (found.ok, found.detail) == (True, "configured")


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (ConnectionRefusedError(111, "refused"), "[Errno 111] refused"),
        (RuntimeError(), "RuntimeError"),
        (ValueError("password=hunter2 is wrong"), "password=••• is wrong"),
        (SystemExit(1), "SystemExit"),
        (ValueError("x" * 10_000), "•••"),
        (Silent(), "Silent"),
    ],
)
async def test_whatever_a_diagnosis_raises_is_a_problem_without_secrets(
    error: BaseException, detail: str
) -> None:
    found = await diagnose(Examined(error))
    assert (found.ok, found.detail) == (False, detail)


@pytest.mark.parametrize("advice", ["start it", "", None])
async def test_the_advice_of_an_error_is_passed_on(advice: str | None) -> None:
    error = ValueError("it is away")
    error.advice = advice  # type: ignore[attr-defined]
    assert await diagnose(Examined(error)) == health_checks.Diagnosis(False, "it is away", advice)


async def test_a_diagnosis_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs:
        async def diagnose(self) -> str:
            await asyncio.Event().wait()
            return "never"

    monkeypatch.setattr(health_checks, "CHECK_TIMEOUT_S", 0)
    assert await diagnose(Hangs()) == health_checks.Diagnosis(False, "no answer within 0 s")


async def test_a_health_check_that_answers_no_has_failed() -> None:
    async def no() -> bool:
        return False

    assert await find_problem(no) == "the health check failed"
    assert await find_problem(no, object()) == "the health check failed"
    assert await find_problem(no, Examined("fine")) == "the health check failed"


async def test_a_health_check_that_answers_no_is_explained_by_the_diagnosis() -> None:
    async def no() -> bool:
        return False

    assert await find_problem(no, Examined(OSError("it is away"))) == "it is away"

"""The Apprise provider runs the parts of the provider suite that apply to a success-or-failure result."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homing.core.model import Channel, OutcomeKind
from homing.core.ports import Provider
from homing.providers.apprise import AppriseProvider
from homing.providers.http import Transport
from homing.testing import faults
from homing.testing.provider_suite import AnsweringTests, KeepingTests, ProviderCase, Told, a_delivery

# Apprise loads all its plugins, and some of them load old libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

K = OutcomeKind


def make(base_url: str, transport: Transport, now_ms: Callable[[], int]) -> Provider:
    return AppriseProvider(urls=f"json://user:s3cret-pass@{base_url.removeprefix('http://')}/t0ken-path")


class TestAppriseProvider(AnsweringTests, KeepingTests):
    @pytest.fixture
    def case(self) -> ProviderCase:
        return ProviderCase(
            make=make,
            delivery=a_delivery(Channel.CHAT, "https://chat.example.org"),
            success=faults.answer(200),
            failures={
                "refused": Told(act=faults.answer(401), kind=K.AMBIGUOUS, code="no"),
                "not found": Told(act=faults.answer(404), kind=K.AMBIGUOUS, code="no"),
                "broken": Told(act=faults.answer(500), kind=K.AMBIGUOUS, code="no"),
                "dropped": Told(act=faults.RESET_AFTER_READING, kind=K.AMBIGUOUS, code="no"),
            },
            throttle=Told(act=faults.throttle("7"), kind=K.AMBIGUOUS, retry_after_ms=None),
            secrets=("s3cret-pass", "t0ken-path"),
        )

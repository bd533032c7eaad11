"""Tests that a provider maps every response to the right outcome."""

from __future__ import annotations

import pytest

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.testing import fault_server
from homing.testing.fault_server import ServerAction
from homing.testing.provider_suite.harness import ProviderCase, open_testbed

# Unusual responses that every provider must handle. Key: name of the test case.
ODD_RESPONSES: dict[str, ServerAction] = {
    "a page with 200": fault_server.html_page(200),
    "a page with 503": fault_server.html_page(503),
    "nothing with 200": fault_server.answer(200),
    "nothing with 500": fault_server.answer(500),
    "no JSON": fault_server.answer(200, b"\xff\xfe{{{", {"content-type": "application/json"}),
    "other JSON": fault_server.answer(
        200, b'["x", {"error": [1, null]}, 3]', {"content-type": "application/json"}
    ),
    "deep JSON": fault_server.answer(200, b"[" * 60_000, {"content-type": "application/json"}),
    "JSON with odd types": fault_server.answer(
        200, b'{"id": {}, "name": [], "error": 5, "code": {"a": 1}, "errors": "x", "message": null}'
    ),
    "odd types with 400": fault_server.answer(
        400, b'{"error": [], "code": {}, "errors": {"a": 1}, "message": 7}'
    ),
    "huge": fault_server.huge_body(200),
    "huge with 500": fault_server.huge_body(500),
    "cut in its body": fault_server.wrong_length(200, b'{"half', length=5_000),
    "more than announced": fault_server.wrong_length(200, b"ok and more", length=2),
    "chunked nonsense": fault_server.CHUNKED_NONSENSE,
    "a redirect": fault_server.answer(302, headers={"location": "http://127.0.0.1:1/"}),
    "an unknown status": fault_server.answer(799),
    "after 100 Continue": fault_server.after_continue(fault_server.answer(503)),
}

# Outcomes that blame neither the recipient nor the content.
_HARMLESS = {
    OutcomeKind.ACCEPTED,
    OutcomeKind.AMBIGUOUS,
    OutcomeKind.TRANSIENT,
    OutcomeKind.THROTTLED,
    OutcomeKind.PROVIDER_FAULT,
}


class ResponseTests:
    """Tests of the mapping from responses to outcomes."""

    async def test_a_success_response_gives_an_accepted_outcome(self, case: ProviderCase) -> None:
        async with open_testbed(case) as testbed:
            outcome = await testbed.provider.send(testbed.delivery())
            assert outcome.kind is OutcomeKind.ACCEPTED, outcome
            assert outcome.provider_message_id == case.message_id
            assert len(testbed.messages) == 1

    async def test_every_failure_maps_to_its_outcome(self, case: ProviderCase) -> None:
        for name, failure in case.failures.items():
            async with open_testbed(case, failure.act) as testbed:
                outcome = await testbed.provider.send(testbed.delivery())
                assert outcome.kind is failure.kind, (name, outcome)
                assert failure.code in (None, outcome.error_code), (name, outcome)
                assert outcome.error, f"{name}: the outcome has no error text"

    async def test_a_throttling_response_gives_its_wait(self, case: ProviderCase) -> None:
        async with open_testbed(case, case.throttle.act) as testbed:
            outcome = await testbed.provider.send(testbed.delivery())
            assert outcome.kind is case.throttle.kind, outcome
            assert outcome.retry_after_ms == case.throttle.retry_after_ms

    @pytest.mark.parametrize("name", ODD_RESPONSES)
    async def test_odd_responses_blame_neither_recipient_nor_content(
        self, case: ProviderCase, name: str
    ) -> None:
        """A meaningless response must not mark the recipient's address or the content as bad."""
        async with open_testbed(case, ODD_RESPONSES[name]) as testbed:
            outcome = await testbed.provider.send(testbed.delivery())
            assert isinstance(outcome, Outcome)
            allowed = _HARMLESS | ({OutcomeKind.BAD_CONTENT} if "400" in name else set())
            assert outcome.kind in allowed, outcome

"""A short attack run, and proof that a success would be noticed."""

from __future__ import annotations

import sys
from collections import Counter

import attack_run
import page_attacks
import pytest
from attack_run import LURE, SECRET, WORD, AttackResponse

from support import vulnerable_service
from support.cli_driver import Cli


@pytest.mark.slow
def test_no_attack_succeeds() -> None:
    done = attack_run.run(attacks=240, seed=7)
    assert set(done.tries) == {
        *("templates", "headers", "tokens", "targets", "tenants"),
        *("forms", "trailers", "held"),
        "pages",
    }
    assert done.successes == []


@pytest.mark.slow
def test_every_kind_of_success_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of success, caused deliberately."""
    open_door = attack_run.SETTINGS.replace("{lure}/32", "127.0.0.0/8")
    monkeypatch.setattr(attack_run, "SETTINGS", open_door)
    with attack_run.battlefield(seed=1) as on:
        target = {"recipient": {"url": f"http://127.0.0.1:{on.canary.port}/seen"}, "channel": "webhook"}
        body = {**target, "content": {"data": {"a": 1}}, "synchronous": True}
        assert on.ask("POST", "/api/v1/notifications/send", body).status == 200
        assert on.canary.calls == ["/seen"]
        lure = f"http://{LURE}:{on.canary.lure.server_address[1]}/x/302"
        on.ask("POST", "/api/v1/notifications/send", {**body, "recipient": {"url": lure}})
        assert on.canary.calls == ["/seen"], "a redirect is not followed even where it would be allowed"
        for told in (
            AttackResponse(200, WORD.encode(), ""),
            AttackResponse(200, SECRET.encode(), ""),
            AttackResponse(200, b"", "x-injected: yes"),
            AttackResponse(500, b"", ""),
        ):
            on.judge("control", "by hand", told)
        on.judge("control", "by hand", AttackResponse(200, b"", ""), allowed=False)
        assert len(on.successes) == 5
        before = attack_run._state(on)
        own = {"Authorization": f"Bearer {on.victim['key']}"}
        on.service.call("POST", f"/api/v1/notifications/{on.victim['notification']}/cancel", {}, headers=own)
        assert attack_run._state(on) != before


class VulnerableCli(Cli):
    """Runs the service with planted weaknesses."""

    def command(self, *argv: str) -> list[str]:
        return [sys.executable, vulnerable_service.__file__, *argv]

    short_command = command


@pytest.mark.slow
def test_attacks_without_a_key_succeed_on_a_vulnerable_service() -> None:
    """The same attacks on a service without the limits."""
    with attack_run.battlefield(seed=1, cli=VulnerableCli) as on:
        on.patience_s = 10
        for kind in (attack_run.forms, attack_run.trailers, attack_run.held):
            kind(on, 24)
        seen = Counter(success.split(",")[0] for success in on.successes)
        kinds = {kind.partition(":")[0] for kind in seen}
        assert kinds == {"forms", "trailers", "held"}, seen
        assert sum(" was parsed: " in success for success in on.successes) == on.tries["forms"] == 24
        for what in ("a key in a trailer", "a second key in a trailer", "many trailers", "a long extension"):
            assert any(success.startswith(f"trailers: {what} was let in") for success in on.successes), what
        for what in ("line breaks", "a body after its answer"):
            assert seen[f"held: {what}"], what


@pytest.mark.slow
def test_every_attack_on_the_pages_succeeds_without_its_guard() -> None:
    """The same attacks on a dashboard without its checks."""
    with attack_run.battlefield(seed=1, cli=VulnerableCli) as on:
        page_attacks.pages(on, 1)
        seen = Counter(
            success.removeprefix("pages: ").partition(",")[0]
            for success in on.successes
            if " broke it: " not in success
        )
        assert set(seen) == page_attacks.GUARDED, seen

"""A short form of the attacks, and that a success of one would be seen."""

from __future__ import annotations

import attack_run
import pytest
from attack_run import LURE, SECRET, WORD, Told


@pytest.mark.slow
def test_no_attack_succeeds() -> None:
    done = attack_run.run(attacks=150, seed=7)
    assert set(done.tries) == {"templates", "headers", "tokens", "targets", "tenants"}
    assert done.successes == []


@pytest.mark.slow
def test_what_an_attack_can_come_to_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls: each kind of success, brought about by hand."""
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
            Told(200, WORD.encode(), ""),
            Told(200, SECRET.encode(), ""),
            Told(200, b"", "x-injected: yes"),
            Told(500, b"", ""),
        ):
            on.judge("control", "by hand", told)
        on.judge("control", "by hand", Told(200, b"", ""), allowed=False)
        assert len(on.successes) == 5
        before = attack_run._state(on)
        own = {"Authorization": f"Bearer {on.victim['key']}"}
        on.service.call("POST", f"/api/v1/notifications/{on.victim['notification']}/cancel", {}, headers=own)
        assert attack_run._state(on) != before

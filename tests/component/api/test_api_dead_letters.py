"""Dead letters over HTTP: unacknowledged first, single ones, and many in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from homing import Homing
from homing.core.notifications import OutcomeKind
from homing.core.routing.breaker import Phase
from homing.providers.local.scripted import ScriptedProvider
from support.running_service import RunningService

Serve = Callable[..., RunningService]


class DeadLetterService:
    """A service with dead letters, whose provider works again."""

    def __init__(self, serve: Serve, number: int, tenants: tuple[str, ...] = ("default",)) -> None:
        self.mail = ScriptedProvider("mail", usual=OutcomeKind.BAD_CONTENT)
        self.http = serve(store="memory:", providers={"mail": self.mail, "other": ScriptedProvider("other")})
        self.ids: list[str] = []
        for n in range(number):
            for tenant in tenants:
                request = {
                    "recipient": {"email": f"p{n}@example.org"},
                    "channel": "email",
                    "type": "bill" if n % 2 else "news",
                    "content": {"body": "hello"},
                }
                sent = self.http.call("POST", "/api/v1/notifications/send", request, key=tenant)
                self.ids.append(sent.json["notificationId"])
        self.process()
        self.mail.usual = OutcomeKind.ACCEPTED

    def process(self) -> None:
        self.http.on_loop(lambda engine: engine.process(500))

    def get(self, path: str, **more: Any) -> Any:
        found = self.http.call("GET", f"/api/v1{path}", **more)
        assert found.status == 200, found.body
        return found.json

    def post(self, path: str, json: Any = None, wanted: int = 200, **more: Any) -> Any:
        found = self.http.call("POST", f"/api/v1{path}", json, **more)
        assert found.status == wanted, found.body
        return found.json

    def ended(self, job: str) -> Any:
        """Waits for the end of the job and returns it."""
        deadline = time.monotonic() + 60
        while (found := self.get(f"/jobs/{job}"))["status"] == "running":
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        return found


def test_unacknowledged_dead_letters_come_first_and_a_cursor_leads_through_all(serve: Serve) -> None:
    desk = DeadLetterService(serve, 5)
    newest = max(desk.ids)
    seen = desk.post(f"/dead-letters/{newest}/acknowledge", {"why": "known"})
    assert (seen["acknowledgedBy"], seen["acknowledgedWhy"]) == ("key:default", "known")
    listed: list[str] = []
    cursor = ""
    while True:
        page = desk.get(f"/dead-letters?limit=2{cursor}")
        listed += [one["id"] for one in page["items"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert listed == [*sorted(set(desk.ids) - {newest}, reverse=True), newest]
    assert [one["id"] for one in desk.get("/dead-letters?acknowledged=true")["items"]] == [newest]
    news = desk.get("/dead-letters?acknowledged=false&type=news")["items"]
    # Not always two: ids of the same millisecond are in random order, so `newest` may be of either type.
    assert {one["id"] for one in news} == set(desk.ids[::2]) - {newest}
    refused = desk.http.call("GET", "/api/v1/dead-letters?cursor=nonsense")
    assert (refused.status, refused.json["error"]["field"]) == (422, "cursor")


def test_dead_letters_are_grouped_by_their_reason(serve: Serve) -> None:
    desk = DeadLetterService(serve, 3)
    (group,) = desk.get("/dead-letters/groups")["items"]
    assert (group["reason"], group["count"], group["unacknowledged"]) == ("BAD_CONTENT", 3, 3)


def test_a_resend_is_a_new_notification_linked_to_the_old_one(serve: Serve) -> None:
    desk = DeadLetterService(serve, 1)
    (id,) = desk.ids
    body = {"why": "mended", "provider": "OTHER"}
    resent = desk.http.call("POST", f"/api/v1/dead-letters/{id}/resend", body)
    assert (resent.status, resent.json["resendOf"], resent.json["status"]) == (201, id, "pending")
    new = desk.get(resent.headers["location"].removeprefix("/api/v1"))
    assert (new["resendOf"], new["provider"], new["pinned"]) == (id, "other", True)
    assert desk.get(f"/notifications/{id}")["resentAs"] == new["id"]
    again = desk.http.call("POST", f"/api/v1/dead-letters/{id}/resend")
    assert (again.status, again.json["error"]["code"]) == (409, "COMMAND_REFUSED")
    wrong = desk.http.call("POST", f"/api/v1/dead-letters/{id}/resend", {"provider": "pigeon"})
    assert (wrong.status, wrong.json["error"]["field"]) == (422, "provider")
    assert next(note[1:3] for note in desk.http.trail.notes) == ("dead_letter.resend", id)


@pytest.mark.source("003", "423")
def test_a_waiting_notification_is_moved_to_the_dead_letters(serve: Serve) -> None:
    desk = DeadLetterService(serve, 0)
    desk.mail.usual = OutcomeKind.TRANSIENT
    request = {"recipient": {"email": "p@example.org"}, "channel": "email", "content": {"body": "hello"}}
    id = desk.post("/notifications/send", {**request, "provider": "mail"}, 202)["notificationId"]
    desk.process()
    path = f"/notifications/{id}/move-to-dead-letter"
    moved = desk.post(path, {"why": "the address is wrong"})
    assert (moved["status"], moved["reason"], moved["attemptCount"]) == ("failed", "OPERATOR", 1)
    assert moved["lastError"] == "mail returned transient"
    assert "failedAt" in moved
    (cause,) = desk.get(f"/notifications/{id}/attempts")["causes"]
    assert (cause["name"], cause["who"], cause["why"]) == ("fail", "key:default", "the address is wrong")
    assert [one["id"] for one in desk.get("/dead-letters")["items"]] == [id]
    assert desk.http.trail.notes[-1][1:3] == ("notification.fail", id)
    again = desk.http.call("POST", f"/api/v1{path}")
    assert (again.status, again.json["error"]["code"]) == (409, "COMMAND_REFUSED")
    assert desk.http.call("POST", "/api/v1/notifications/nonsense/move-to-dead-letter").status == 404
    desk.mail.usual = OutcomeKind.ACCEPTED
    new = desk.post(f"/dead-letters/{id}/resend", wanted=201)["notificationId"]
    desk.process()
    assert desk.get(f"/notifications/{new}")["status"] == "sent"


def test_a_dry_run_counts_and_changes_nothing(serve: Serve) -> None:
    desk = DeadLetterService(serve, 7)
    body = {"command": "resend", "filter": {"type": "news"}, "dryRun": True}
    assert desk.post("/dead-letters/bulk", body) == {
        "dryRun": True,
        "matched": 4,
        "complete": True,
        "takesMs": None,
    }
    assert desk.get("/jobs") == {"items": []}
    assert desk.http.trail.notes == []
    assert len(desk.get("/dead-letters?acknowledged=false")["items"]) == 7


def test_a_bulk_resend_is_a_job_that_reports_its_progress(serve: Serve) -> None:
    desk = DeadLetterService(serve, 250)
    started = desk.http.call("POST", "/api/v1/dead-letters/bulk", {"command": "resend", "why": "mended"})
    assert (started.status, started.json["status"]) == (202, "running")
    assert started.headers["location"] == f"/api/v1/jobs/{started.json['id']}"
    done = desk.ended(started.json["id"])
    assert (done["status"], done["matched"], done["done"], done["refused"]) == ("done", 250, 250, 0)
    assert (done["who"], done["why"], done["filter"]["statuses"]) == ("key:default", "mended", ["failed"])
    desk.process()
    assert len(desk.mail.sent) == 500
    again = desk.ended(desk.post("/dead-letters/bulk", {"command": "resend"}, 202)["id"])
    assert again["matched"] == 0
    assert [job["id"] for job in desk.get("/jobs")["items"]] == [again["id"], done["id"]]


def test_a_job_can_be_stopped_and_resumed(serve: Serve) -> None:
    desk = DeadLetterService(serve, 9)
    job = desk.post("/dead-letters/bulk", {"command": "acknowledge", "ratePerSecond": 0.5}, 202)
    assert desk.post(f"/jobs/{job['id']}/stop")["stopRequestedBy"] == "key:default"
    stopped = desk.ended(job["id"])
    assert (stopped["status"], stopped["stopped"]) == ("stopped", "stopped by key:default")
    assert stopped["done"] < 9
    refused = desk.http.call("POST", f"/api/v1/jobs/{job['id']}/resume", key="other")
    assert refused.status == 404
    assert desk.post(f"/jobs/{job['id']}/resume")["status"] == "running"
    desk.post(f"/jobs/{job['id']}/stop")


def test_a_job_stops_when_a_breaker_opens(serve: Serve) -> None:
    desk = DeadLetterService(serve, 3)

    async def open_it(engine: Homing) -> None:
        await engine.force_breaker("mail", Phase.OPEN, who="ada")

    desk.http.on_loop(open_it)
    job = desk.ended(desk.post("/dead-letters/bulk", {"command": "retry"}, 202)["id"])
    assert (job["status"], job["stopped"]) == ("stopped", "the breaker of mail is open")


def test_another_tenant_s_dead_letters_and_jobs_are_out_of_reach(serve: Serve) -> None:
    desk = DeadLetterService(serve, 3, tenants=("acme", "other"))
    assert {one["tenant"] for one in desk.get("/dead-letters", key="acme")["items"]} == {"acme"}
    body = {"command": "acknowledge", "dryRun": True}
    assert desk.post("/dead-letters/bulk", body, key="acme")["matched"] == 3
    job = desk.post("/dead-letters/bulk", {"command": "acknowledge"}, 202, key="acme")
    for method, path in (("GET", ""), ("POST", "/stop"), ("POST", "/resume")):
        refused = desk.http.call(method, f"/api/v1/jobs/{job['id']}{path}", key="other")
        assert (refused.status, refused.json["error"]["code"]) == (404, "NOT_FOUND")
    assert desk.get("/jobs", key="other") == {"items": []}
    theirs = desk.get("/dead-letters", key="other")["items"]
    assert not any("acknowledgedAt" in one for one in theirs)
    refused = desk.http.call("POST", f"/api/v1/dead-letters/{theirs[0]['id']}/acknowledge", key="acme")
    assert refused.status == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"command": "resolve"}, 400),
        ({"command": "resend", "ratePerSecond": 0}, 400),
        ({"command": "resend", "filter": {"typ": "x"}}, 400),
        ({"command": "resend", "filter": {"statuses": []}}, 400),
        (
            {
                "command": "resend",
                "filter": {"createdFrom": "2026-01-02T00:00:00Z", "createdUntil": "2026-01-01T00:00:00Z"},
            },
            422,
        ),
    ],
)
def test_an_invalid_command_is_refused_and_starts_nothing(serve: Serve, body: Any, status: int) -> None:
    desk = DeadLetterService(serve, 1)
    desk.post("/dead-letters/bulk", body, status)
    assert desk.get("/jobs") == {"items": []}


def test_reading_needs_only_the_scope_read_and_changing_needs_operate(serve: Serve) -> None:
    desk = DeadLetterService(serve, 1)
    assert desk.http.call("GET", "/api/v1/dead-letters", key="default:read").status == 200
    for path in (f"/dead-letters/{desk.ids[0]}/acknowledge", f"/dead-letters/{desk.ids[0]}/resend"):
        assert desk.http.call("POST", f"/api/v1{path}", {}, key="default:read,send").status == 403
    refused = desk.http.call("POST", "/api/v1/dead-letters/bulk", {"command": "resend"}, key="default:read")
    assert refused.status == 403

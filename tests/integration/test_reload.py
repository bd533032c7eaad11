"""`Homing.reload`: changed credentials come into force without a restart, all of them or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from homing import Homing
from homing.compose import ReloadablePart
from homing.core.errors import ConfigError, StoreUnavailable
from homing.core.routing.breaker import Breaker
from homing.providers.local.scripted import ScriptedProvider
from homing.stores.sqlite import SqliteStore
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer

SETTINGS = """
preset = "simple"
[providers.sendgrid]
api_key = "file:{folder}/key"
from_email = "homing@example.org"
base_url = "{url}"
[slots]
bulk = 64
"""


class Vendor:
    """A SendGrid that accepts the keys in `keys`."""

    def __init__(self) -> None:
        self.keys = {"SG.old"}
        self.used: list[str] = []
        self.called = asyncio.Event()
        self.pause_ms = 0

    def answer(self, request: ReceivedRequest) -> ServerAction:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.used.append(key)
        self.called.set()
        if key not in self.keys:
            return answer(401, b'{"errors": [{"message": "wrong key"}]}')
        return replace(answer(202), pause_ms=self.pause_ms)


@pytest.fixture
def vendor() -> Vendor:
    return Vendor()


@pytest.fixture
async def homing(tmp_path: Path, vendor: Vendor) -> AsyncIterator[Homing]:
    (tmp_path / "key").write_text("SG.old\n")
    async with FaultServer(script=vendor.answer) as server:
        (tmp_path / "homing.toml").write_text(SETTINGS.format(folder=tmp_path, url=server.url))
        async with Homing(tmp_path / "homing.db", config_file=tmp_path / "homing.toml") as homing:
            yield homing


async def deliver(homing: Homing) -> str:
    sent = await homing.send("ada@example.org", channel="email", subject="Hello", body="Hello")
    await homing.process()
    return (await homing.get(sent.id)).status.value


async def trail(homing: Homing) -> list[tuple[str, str, dict[str, object]]]:
    return [(one.who, one.action, one.detail) for one in (await homing.audit.list("*")).items]


async def test_a_changed_secret_is_used_by_the_next_attempt(
    homing: Homing, vendor: Vendor, tmp_path: Path
) -> None:
    assert await deliver(homing) == "sent"
    vendor.keys = {"SG.new"}
    (tmp_path / "key").write_text("SG.new")
    assert await deliver(homing) == "retrying", "the old key is still in use"
    done = await homing.reload(who="cli:ada", why="the key was leaked")
    assert (done.changed, done.needs_restart) == (("providers.sendgrid.api_key",), ())
    assert await deliver(homing) == "sent", vendor.used
    assert vendor.used == ["SG.old", "SG.old", "SG.new"]
    detail = {"changed": ["providers.sendgrid.api_key"], "why": "the key was leaked"}
    assert await trail(homing) == [("cli:ada", "setting.reload", detail)]


async def test_a_variable_is_read_again(
    homing: Homing, vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "homing.toml"
    monkeypatch.setenv("SENDGRID_KEY", "SG.first")
    file.write_text(file.read_text().replace(f"file:{tmp_path}/key", "env:SENDGRID_KEY"))
    assert (await homing.reload()).changed == ("providers.sendgrid.api_key",)
    vendor.keys = {"SG.second"}
    monkeypatch.setenv("SENDGRID_KEY", "SG.second")
    assert (await homing.reload()).changed == ("providers.sendgrid.api_key",)
    assert await deliver(homing) == "sent"


async def test_one_wrong_setting_changes_nothing_and_is_named(
    homing: Homing, vendor: Vendor, tmp_path: Path
) -> None:
    file, good = tmp_path / "homing.toml", (tmp_path / "homing.toml").read_text()
    (tmp_path / "key").write_text("SG.new")
    for text, field in (
        (good.replace("bulk = 64", "bulk = 0"), "slots.bulk"),
        (good.replace("from_email =", "from_mail ="), "providers.sendgrid.from_mail"),
        (good + '[providers.smtp]\nhost = "mail.example.org"\n', "providers.smtp.from_email"),
        (
            good + '[providers.smtp]\nhost = "mail.example.org"\nfrom_email = "a@example.org"\nport = "x"\n',
            "providers.smtp.port",
        ),
        (good + "store = 5\n", "slots.store"),
        (f'default_channel = "pigeon"\n{good}', "default_channel"),
        (good + '[sinks.audit]\nkind = "pigeon"\n', "sinks.audit.kind"),
        (good + '[routes]\nemail = ["pigeon"]\n', "routes.email"),
        (good + '[timers]\ncritical = "pigeon"\n', "timers.pigeon.kind"),
        (good + "[bridges.pigeon]\n", "bridges.pigeon.kind"),
        (good + '[templates]\nfolder = "nowhere"\n', "templates.folder"),
        (good + '[quiet_hours]\ntime_zone = "Mars"\n', "quiet_hours.time_zone"),
        (good + '[http]\nallow_networks = ["pigeon"]\n', "http.allow_networks"),
        (f'spool = "{tmp_path}/nowhere/spool"\n{good}', "spool"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as refused:
            await homing.reload()
        assert refused.value.field == field
    file.write_text(good)
    (tmp_path / "key").unlink()
    with pytest.raises(ConfigError, match=r"providers\.sendgrid\.api_key: refers to the file"):
        await homing.reload()
    assert await deliver(homing) == "sent"
    assert vendor.used == ["SG.old"]
    assert await trail(homing) == [], "nothing was changed, so nothing is recorded"


async def test_settings_that_need_a_restart_are_reported(homing: Homing, tmp_path: Path) -> None:
    assert (await homing.reload()) == (await homing.reload())
    file = tmp_path / "homing.toml"
    new = '[providers.console]\n[routes]\nemail = ["sendgrid"]\n'
    file.write_text(file.read_text().replace("bulk = 64", "bulk = 32") + new)
    done = await homing.reload()
    assert done.changed == ()
    assert set(done.needs_restart) == {"slots.bulk", "providers.console", "routes.email[0]"}
    assert done == await homing.reload(), "they are reported until the restart"


async def test_an_attempt_in_flight_ends_with_the_provider_it_began_with(
    homing: Homing, vendor: Vendor, tmp_path: Path
) -> None:
    vendor.pause_ms = 10  # after each byte of the answer
    running = asyncio.create_task(deliver(homing))
    await vendor.called.wait()
    (tmp_path / "key").write_text("SG.new")
    assert (await homing.reload()).changed
    assert await running == "sent"
    assert vendor.used == ["SG.old"]


async def test_a_provider_with_an_open_breaker_is_checked_at_once(
    homing: Homing, vendor: Vendor, tmp_path: Path
) -> None:
    vendor.keys = {"SG.new"}
    while (await homing.providers())[0].breaker.phase != "open":
        await deliver(homing)  # each run also does a round of health checks
    (tmp_path / "key").write_text("SG.new")
    vendor.used.clear()
    assert (await homing.reload()).changed
    assert vendor.used == ["SG.new"]


async def test_a_reload_is_complete_if_the_store_fails_after_the_audit_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Breakable(SqliteStore):
        away = False

        async def breakers(self) -> dict[str, Breaker]:
            if self.away:
                raise StoreUnavailable
            return await super().breakers()

    file, store, applied = tmp_path / "homing.toml", Breakable(tmp_path / "homing.db"), []
    table = '[providers.pigeon]\nkind = "file"\npath = "{path}"\n[[service.jwt]]\nissuer = "{path}"\n'
    file.write_text(table.format(path="first"))
    async with Homing(store, config_file=file) as homing:
        before = homing.roster["pigeon"].provider
        homing.reloader.parts.append(ReloadablePart("service.jwt", lambda _: lambda: applied.append("jwt")))
        file.write_text(table.format(path="second"))
        store.away = True
        done = await homing.reload()
        assert done.changed == ("providers.pigeon.path", "service.jwt[0].issuer")
        assert (homing.roster["pigeon"].provider is not before, applied) == (True, ["jwt"])
        assert "cannot be checked now" in caplog.text
        store.away = False
        assert (await homing.reload()).changed == ()


async def test_a_table_that_was_empty_is_not_named_beside_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "homing.toml"
    secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
    table = f'[providers.hook]\nkind = "webhook"\nsecret = "{secret}"\nrecipient_hosts = ["example.org"]\n'
    file.write_text(table + "headers = {}")
    async with Homing(tmp_path / "homing.db", config_file=file) as homing:
        for more, changed in (
            ('headers = {a = "1"}\nweight = 1', ("providers.hook.headers.a",)),
            ("headers = {}\nweight = 1", ("providers.hook.headers.a",)),
            ("headers = {}\nweight = 1", ()),
        ):
            file.write_text(table + more)
            done = await homing.reload()
            assert (done.changed, done.needs_restart) == (changed, ("providers.hook.weight",))


async def test_the_check_of_the_settings_leaves_providers_given_in_python_alone(tmp_path: Path) -> None:
    class Threaded(ScriptedProvider):
        given: ClassVar[list[object]] = []
        closed = 0

        def use_threads(self, threads: object) -> None:
            self.given.append(threads)

        async def close(self) -> None:
            self.closed += 1

    file, own = tmp_path / "homing.toml", Threaded()
    table = '[providers.pigeon]\nkind = "file"\npath = "{path}"\n[routes]\nemail = ["own", "pigeon"]\n'
    file.write_text(table.format(path="first"))
    async with Homing(tmp_path / "homing.db", providers={"own": own}, config_file=file) as homing:
        file.write_text(table.format(path="second"))
        assert (await homing.reload()).changed == ("providers.pigeon.path",)
        assert (len(own.given), own.closed) == (1, 0)
        assert homing.roster["own"].provider is own

"""`homing reload` and SIGHUP: running processes use changed settings of providers without a restart."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from pathlib import Path

import pytest

from homing import Homing
from support.cli_driver import Cli

SETTINGS = """
store = "homing.db"
[providers.pigeon]
kind = "file"
path = "{path}.jsonl"
[slots]
bulk = {bulk}
[log]
format = "text"
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    write(tmp_path, "first")
    return Cli(tmp_path)


def write(folder: Path, path: str, bulk: int = 64, more: str = "") -> None:
    (folder / "homing.toml").write_text(SETTINGS.format(path=path, bulk=bulk) + more)


def send(cli: Cli) -> None:
    """Sends a notification and waits until a process of the service has delivered it."""

    async def send_and_wait() -> None:
        async with Homing(cli.folder / "homing.db", config_file=cli.folder / "homing.toml") as homing:
            sent = await homing.send("ada@example.org", channel="email", body="Hello")
            assert (await homing.wait(sent.id)).status == "sent"

    asyncio.run(send_and_wait())


def test_all_processes_of_a_service_reload_their_settings(cli: Cli) -> None:
    service = cli.start("serve", "--listen", "127.0.0.1:0", "--workers", "2")
    assert service.stdout is not None
    assert service.stderr is not None
    logged: list[str] = []
    news = threading.Condition()

    def read_log() -> None:
        assert service.stderr is not None
        for line in service.stderr:
            with news:
                logged.append(line)
                news.notify_all()

    def wait_for(text: str, times: int) -> None:
        with news:
            assert news.wait_for(lambda: sum(text in line for line in logged) >= times, 60), logged

    reader = threading.Thread(target=read_log, daemon=True)
    reader.start()
    try:
        service.stdout.readline()
        _until_live(cli, 2)

        write(cli.folder, "second")
        done = cli.ok("reload", "--why", "moved", "--who", "ada")
        assert len(re.findall(r"(?m)^\S+ reloaded providers\.pigeon\.path$", done.out)) == 2, done
        send(cli)
        assert (cli.folder / "second.jsonl").exists()

        write(cli.folder, "third", bulk=32)
        service.send_signal(signal.SIGHUP)
        wait_for("changed: providers.pigeon.path; a restart is needed for: slots.bulk", 2)
        send(cli)
        assert (cli.folder / "third.jsonl").exists()

        write(cli.folder, "fourth", bulk=0)
        wrong = cli("reload")
        assert (wrong.code, wrong.err) == (
            2,
            "error: slots.bulk: is 0; it must be at least 1; with 0, notifications would never be sent\n",
        )
        service.send_signal(signal.SIGHUP)
        wait_for("nothing was changed: slots.bulk is 0", 2)
        for name, wrong_table in (
            ("tracing.endpoint", '[tracing]\nendpoint = "pigeon"\n'),
            ("sinks.pigeon.kind", "[sinks.pigeon]\n"),
        ):
            write(cli.folder, "fourth", more=wrong_table)
            service.send_signal(signal.SIGHUP)
            wait_for(f"nothing was changed: {name} is", 2)
        write(cli.folder, "third")
        send(cli)
        assert not (cli.folder / "fourth.jsonl").exists()
    finally:
        service.send_signal(signal.SIGTERM)
        code = service.wait(60)
        reader.join()
        service.stdout.close()
        service.stderr.close()
    assert code == 0
    trail = cli.ok("audit", "list", "--tenant", "*", "--json").json["items"]
    assert sorted((one["who"], one["action"], "changed" in one["detail"]) for one in trail) == [
        ("cli:ada", "setting.reload", False),
        ("cli:ada", "setting.reload", True),
        ("cli:ada", "setting.reload", True),
        ("signal", "setting.reload", True),
        ("signal", "setting.reload", True),
    ]


def test_a_process_that_only_serves_the_api_answers_too(cli: Cli) -> None:
    def use_secret(secret: str) -> None:
        hook = f'[providers.hook]\nkind = "webhook"\nsecret = "{secret}"\n'
        (cli.folder / "homing.toml").write_text(SETTINGS.format(path="first", bulk=64) + hook)

    (cli.folder / "old.key").write_text("whsec_" + "b2xk" * 8)
    use_secret("file:old.key")
    service = cli.start("serve", "--listen", "127.0.0.1:0", "--no-worker")
    try:
        assert service.stdout is not None
        service.stdout.readline()
        use_secret("env:HOOK_SECRET")
        refused = cli("reload", HOOK_SECRET="whsec_" + "b3Ro" * 8)
        assert refused.code == 5
        assert re.fullmatch(
            r"\S+ refused nothing was changed: providers\.hook\.secret: "
            r"refers to the environment variable HOOK_SECRET, which is not set\n",
            refused.out,
        )
        use_secret("file:no.key")
        service.send_signal(signal.SIGHUP)
        assert service.stderr is not None
        while "file" not in (logged := service.stderr.readline()):
            assert logged, "the service has ended"
        assert logged.endswith(
            "nothing was changed: providers.hook.secret refers to the file no.key, "
            "which cannot be read: No such file or directory\n"
        )
    finally:
        service.send_signal(signal.SIGTERM)
        service.communicate(timeout=60)


def test_if_no_process_answers_the_command_says_so(cli: Cli) -> None:
    assert cli("reload", "--wait", "0").code == 4, "there is no store yet"
    cli.ok("db", "migrate")
    assert cli.ok("reload", "--wait", "0").out == (
        "no process has answered; one that starts later reads the new settings\n"
    )


def _until_live(cli: Cli, number: int) -> None:
    for _ in range(100):
        found = cli.ok("workers", "--json").json["items"]
        if sum(one["state"] == "live" for one in found) >= number:
            return
    raise AssertionError(found)

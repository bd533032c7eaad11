"""`homing serve` as a user starts it: a process, its key, its responses, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from support.cli_driver import SETTINGS, Cli
from support.service_process import PATIENCE_S, serving


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    return Cli(tmp_path)


def test_one_command_serves_accepts_delivers_and_ends_on_a_signal(cli: Cli) -> None:
    with serving(cli) as service:
        service.until_sent(service.send())
        assert service.call("GET", "/healthz") == (200, b"ok\n")
        assert json.loads(service.call("GET", "/readyz")[1]) == {"ready": True, "store": "ok", "worker": "ok"}
        shown = service.call("GET", "/metrics")[1]
        assert b"homing_settled_total" in shown
        assert b'homing_http_requests_total{operation="send_notification",status="2xx"} 1.0' in shown
        assert b'homing_http_request_seconds_count{operation="get_health"} 1.0' in shown
        assert service.call("GET", "/metrics", headers={"Authorization": "none"})[0] == 401
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE_S) == 0


def test_the_first_start_writes_a_key_that_only_its_owner_can_read_and_prints_it_nowhere(cli: Cli) -> None:
    with serving(cli) as service:
        first = service.key
        file = cli.folder / ".homing/admin.key"
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)]
        assert modes == [0o600, 0o700]
        service.process.send_signal(signal.SIGTERM)
        assert service.process.stdout is not None
        assert service.process.stderr is not None
        said = service.greeting + service.process.stdout.read() + service.process.stderr.read()
        assert first not in said
        assert ".homing/admin.key, readable only by you" in said
    with serving(cli) as again:
        assert again.key == first
        assert again.call("GET", "/api/v1/notifications")[0] == 200
        assert again.call("GET", "/api/v1/notifications", headers={"Authorization": "Bearer x"})[0] == 401


def test_a_key_file_of_another_store_is_not_overwritten(cli: Cli) -> None:
    file = cli.folder / ".homing/admin.key"
    file.parent.mkdir()
    file.write_text("precious")
    refused = cli("serve", "--listen", "127.0.0.1:0")
    assert refused.code == 2
    assert "service.key_file" in refused.err
    assert file.read_text() == "precious"


def test_git_add_stages_neither_the_key_nor_the_store(cli: Cli) -> None:
    """The folder is a git repository with the .gitignore of this one."""
    git = ("git", "-C", str(cli.folder))
    ignored = (Path(__file__).parents[2] / ".gitignore").read_text()
    (cli.folder / ".gitignore").write_text(ignored)
    (cli.folder / "homing-admin.key").write_text("of an earlier release")
    subprocess.run([*git, "init", "--quiet"], check=True)
    with serving(cli) as service:
        key = service.key
    subprocess.run([*git, "add", "."], check=True)
    staged = subprocess.run([*git, "ls-files"], check=True, capture_output=True, text=True).stdout.split()
    assert sorted(staged) == [".gitignore"]
    (cli.folder / ".gitignore").unlink()  # and in a repository without Homing's rules
    subprocess.run([*git, "add", "."], check=True)
    found = subprocess.run([*git, "grep", "--cached", "--quiet", "--text", "-e", key], check=False)
    assert found.returncode == 1, "the key is staged"


def test_without_a_worker_it_accepts_and_another_process_delivers(cli: Cli) -> None:
    with serving(cli, "--no-worker") as service:
        id = service.send()
        assert cli.ok("process").out
        service.until_sent(id)


def test_an_address_in_use_or_an_invalid_one_is_an_error(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        refused, nowhere, unshared = cli.many(
            ["serve", "--listen", at],
            ["serve", "--listen", "nowhere"],
            ["serve", "--listen", at, "--store", "memory:", "--workers", "2"],
        )
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"service.listen: {at} cannot be used" in refused.err
    assert (nowhere.code, unshared.code) == (2, 2)
    assert "use HOST:PORT" in nowhere.err
    assert "cannot share memory:" in unshared.err


def test_ctrl_c_ends_a_start_that_waits_for_its_store(cli: Cli) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(PATIENCE_S)
        store = f"postgresql://homing@127.0.0.1:{silent.getsockname()[1]}/homing"
        process = cli.start("serve", "--listen", "127.0.0.1:0", "--store", store)
        waiting, _ = silent.accept()
        with waiting:
            waiting.settimeout(PATIENCE_S)
            assert waiting.recv(8), "it has asked, and waits for the answer"
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 130  # and not the code for an unreachable store


def test_a_public_listen_address_prints_a_warning(cli: Cli) -> None:
    process = cli.start("serve", "--listen", "0.0.0.0:0")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert "put a TLS proxy in front" in err


def test_several_processes_share_the_address_and_a_dead_one_is_replaced(cli: Cli) -> None:
    with serving(cli, "--workers", "2") as service:
        service.until_sent(service.send())
        before = _children(service.process.pid, 2)
        os.kill(min(before), signal.SIGKILL)
        until = time.monotonic() + PATIENCE_S
        while len(now := _children(service.process.pid, None)) < 2 or min(before) in now:
            assert time.monotonic() < until, now
            time.sleep(0.05)
        for _ in range(10):
            service.until_sent(service.send())
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE_S) == 0
        assert not _children(service.process.pid, None)


def test_invalid_settings_end_the_start_of_several_processes_too(cli: Cli) -> None:
    (cli.folder / "homing.toml").write_text(
        f'{SETTINGS}\n[[service.jwt]]\nissuer = "https://id.example.org"\n'
    )
    refused = cli("serve", "--listen", "127.0.0.1:0", "--workers", "2")
    assert refused.code == 2
    assert "service.jwt[0].audience: is missing" in refused.err
    assert not (cli.folder / ".homing").exists()


def test_ctrl_c_reaches_every_process_once(cli: Cli) -> None:
    process = subprocess.Popen(
        cli.command("serve", "--listen", "127.0.0.1:0", "--workers", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cli.folder,
        env=cli.env(),
        process_group=0,
    )
    try:
        children = _children(process.pid, 2)
        os.killpg(process.pid, signal.SIGINT)  # like a terminal
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert said.count(b"SIGINT: stopping") == len(children)
    finally:
        process.kill()


def test_processes_whose_parent_is_killed_end_gracefully(cli: Cli) -> None:
    with serving(cli, "--workers", "2") as service:
        orphans = _children(service.process.pid, 2)
        service.until_sent(service.send())  # so at least one is listening
        service.process.kill()
        service.process.wait(PATIENCE_S)
        until = time.monotonic() + PATIENCE_S
        while any(_runs(pid) for pid in orphans):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert service.process.stderr is not None
        said = service.process.stderr.read()
        assert "stopping, with" in said
        assert "sends aborted" not in said


def _children(parent: int, wanted: int | None) -> set[int]:
    """Returns the child processes; with `wanted`, waits until there are that many."""
    until = time.monotonic() + PATIENCE_S
    while True:
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
        found = {int(pid) for pid in listed.stdout.split()}
        if wanted is None or len(found) == wanted:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

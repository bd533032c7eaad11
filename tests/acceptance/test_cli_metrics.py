"""Metrics, probes and JSON log lines of a running `homing worker`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

from prometheus_client.parser import text_string_to_metric_families

from support.cli_driver import SETTINGS, Cli

_PATIENCE_S = 120


class Worker:
    """A process that serves its metrics on a free port."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"metrics on http://(127\.0\.0\.1:\d+)/metrics\n", line)
        assert found, line or process.stderr
        self.address = found[1]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Metric values by name and label values, in the order of the labels' names."""
        return {
            (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels))): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }

    def until(self, name: str, *labels: str, value: float) -> dict[tuple[str, tuple[str, ...]], float]:
        """Scrapes until this value is shown."""
        until = time.monotonic() + _PATIENCE_S
        while (shown := self.metrics()).get((name, labels)) != value:
            assert time.monotonic() < until, shown
            time.sleep(0.1)
        return shown


@contextmanager
def working(cli: Cli, *argv: str) -> Iterator[Worker]:
    process = cli.start("worker", "--metrics", "127.0.0.1:0", *argv)
    try:
        yield Worker(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_worker_shows_its_deliveries(tmp_path: Path) -> None:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    cli = Cli(tmp_path)
    csv = "recipient,channel,body\n" + "".join(f"p{n}@example.org,email,Hello\n" for n in range(20))
    (tmp_path / "many.csv").write_text(csv)
    cli.ok("send", "--csv", "many.csv")
    with working(cli) as worker:
        shown = worker.until("homing_settled_total", "standard.email", "sent", "default", value=20)
        assert shown["homing_attempts_total", ("standard.email", "accepted", "pigeon")] == 20
        assert shown["homing_schedule_lateness_seconds_count", ("standard.email",)] == 20
        assert shown["homing_worker_up", ()] == shown["homing_store_up", ()] == 1
        assert shown["homing_breaker_state", ("closed", "hawk")] == 1
        assert shown["retries_scheduled_total", ("homing-standard",)] == shown["retry_queue_depth", ()] == 0
        assert "example.org" not in worker.get("/metrics")[1]


def test_the_probes_show_the_state_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    with working(Cli(tmp_path)) as worker:
        assert worker.get("/healthz") == (200, "ok\n")
        status, body = worker.get("/readyz")
        assert (status, json.loads(body)) == (200, {"ready": True, "store": "ok", "worker": "ok"})
        _spoil(tmp_path / "homing.db")
        status, body = worker.get("/readyz")
        found = json.loads(body)
        assert (status, found["ready"], found["worker"]) == (503, False, "ok")
        assert found["store"] != "ok"
        assert worker.get("/healthz")[0] == 200, "it is alive all the same"
        assert worker.get("/elsewhere")[0] == 404


def _spoil(store: Path) -> None:
    """Renames a table under a running worker, so that its schema no longer fits."""
    import sqlite3

    with sqlite3.connect(store, timeout=60) as connection:
        connection.execute("ALTER TABLE homing_tallies RENAME TO taken_away")
    connection.close()


def test_the_settings_choose_the_address_and_a_flag_overrides_them(tmp_path: Path) -> None:
    (tmp_path / "homing.toml").write_text(f'{SETTINGS}[metrics]\nlisten = "nowhere at all"\n')
    with working(Cli(tmp_path)) as worker:
        assert worker.get("/healthz")[0] == 200
    refused = Cli(tmp_path)("worker")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "metrics.listen: is 'nowhere at all'; use HOST:PORT" in refused.err


def test_a_port_in_use_is_an_error_and_no_worker_starts(tmp_path: Path) -> None:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    cli = Cli(tmp_path)
    with working(cli) as worker:
        second = cli("worker", "--metrics", worker.address)
        assert second.code == 2
        assert f"metrics.listen: cannot listen on {worker.address}: " in second.err


def test_log_lines_can_be_json_and_contain_no_recipient(tmp_path: Path) -> None:
    provider = '[providers.broken]\nkind = "scripted"\nusual = "bad_recipient"\n'
    (tmp_path / "homing.toml").write_text(f'[log]\nformat = "json"\nlevel = "info"\n{provider}')
    cli = Cli(tmp_path)
    sent = cli.ok(
        "send", "--to", "ada.lovelace@example.org", "--channel", "email", "--body", "Hello", "--json"
    )
    done = cli.ok("process")
    lines = [json.loads(line) for line in done.err.splitlines()]
    assert lines
    failed = next(line for line in lines if line["logger"] == "homing.events")
    assert failed["level"] == "warning"
    assert failed["event"].startswith("NotificationFailed ")
    attempt = next(line for line in lines if line["logger"] == "homing.deliveries")
    assert (attempt["id"], attempt["provider"]) == (sent.json["notificationIds"][0], "broken")
    assert (attempt["outcome"], attempt["code"]) == ("bad_recipient", "bad_recipient")
    assert (attempt["next"], attempt["level"]) == ("failed (BAD_RECIPIENT)", "info")
    assert "ada.lovelace" not in done.err


def test_text_is_the_default_and_a_wrong_format_is_refused(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    refused = cli("process", HOMING_LOG__FORMAT="xml")
    assert refused.code == 2
    assert "log.format" in refused.err

"""From settings to metrics and log lines: a missing or wrong setting gives a one-sentence error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from homing import compose
from homing.core.errors import ConfigError
from homing.core.notifications import Mode
from homing.settings import load_settings
from homing.telemetry.metrics import Metrics


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs without homing.toml, and restores the logging configuration."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_queues_have_the_names_of_the_settings() -> None:
    settings = load_settings(flags={"queue_names": {"standard": "mail-queue"}})
    page = (await compose.build_metrics(settings).page()).decode()
    assert 'retries_scheduled_total{queue="mail-queue"} 0.0' in page
    assert 'retries_scheduled_total{queue="synchronous"} 0.0' in page


async def test_metrics_without_settings_use_the_default_queue_names() -> None:
    page = (await Metrics(queue_names={Mode.BULK: "slow"}).page()).decode()
    assert 'queue="slow"' in page
    assert 'retries_scheduled_total{queue="homing-standard"} 0.0' in (await Metrics().page()).decode()


def test_without_the_extra_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'homing\[metrics\]'"):
        compose.build_metrics(load_settings())


def test_the_text_format_is_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    compose.log_to_stderr("text", "info")
    logging.getLogger("homing").info("told to ada@example.org")
    assert capsys.readouterr().err.endswith(" INFO homing told to •••@example.org\n")


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"metrics": {"tenants": -1}}, "metrics.tenants"),
        ({"metrics": {"port": 9464}}, "metrics.port"),
        ({"log": {"format": "xml"}}, "log.format"),
        ({"log": {"level": "loud"}}, "log.level"),
    ],
)
def test_a_wrong_setting_is_named(flags: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(flags=flags)
    assert raised.value.field == field

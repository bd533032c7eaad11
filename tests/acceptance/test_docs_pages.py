"""The pages of the docs with commands, settings and SQL, followed literally.

Only the addresses of the database and of the providers differ from the page: they lead to the test's servers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from support.docs_pages import ROOT, PageRun, all_pages, blocks_of
from support.fake_vendors import APP_SECRET, TOKEN, key_file, sendgrid_public_key
from support.postgres_servers import skip_if_missing, skip_or_fail
from support.private_postgres import PrivatePostgres
from support.vendor_server import VendorServer

SECRETS = {
    "ACS_ACCESS_KEY": "YWNz",
    "EDGE_FUNCTION_KEY": "anon",
    "FCM_CALLBACK_SECRET": APP_SECRET,
    "SENDGRID_API_KEY": "SG.key",
    "SENDGRID_WEBHOOK_KEY": sendgrid_public_key(),
    "SNS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "SNS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "TWILIO_AUTH_TOKEN": TOKEN,
    "WEBHOOK_SECRET": APP_SECRET,
}
"""The variables that the settings on the pages name."""


def _pages() -> list[Path]:
    return [page for page in all_pages() if {block.language for block in blocks_of(page)} - {"python"}]


@pytest.fixture(scope="module")
def vendors() -> Iterator[VendorServer]:
    with VendorServer() as running:
        yield running


@pytest.fixture
def cron_url() -> Iterator[str]:
    """A database with pg_cron, on a server of its own."""
    with skip_if_missing(), PrivatePostgres(cron=True) as server:
        yield server.url


@pytest.mark.slow
@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_reader_can_follow_the_page(
    page: Path,
    tmp_path: Path,
    vendors: VendorServer,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    vendors.down.clear()
    (tmp_path / "firebase.json").write_text(key_file())
    settings = tomllib.loads(next(block.text for block in blocks_of(page) if block.language == "toml"))
    database = ""
    if settings["store"].startswith("postgresql:"):
        if not which("psql"):
            skip_or_fail("psql: install PostgreSQL's client")
        with_cron = any("pg_cron" in block.text for block in blocks_of(page))
        database = request.getfixturevalue("cron_url" if with_cron else "postgres_url")

    def switch(provider: str, is_up: bool) -> None:
        (vendors.down.discard if is_up else vendors.down.add)(provider)

    env = {**SECRETS, **_addresses(settings, vendors), **({"HOMING_STORE": database} if database else {})}
    for name, value in env.items():
        monkeypatch.setenv(name, value)  # for Python blocks, which run in this process
    with PageRun(page, tmp_path, database=database, switch=switch, env=env) as run:
        run.follow()


def _addresses(settings: dict[str, dict[str, dict[str, str]]], vendors: VendorServer) -> dict[str, str]:
    """Returns the variables that lead the providers and the service of a page to the test's servers."""
    found = {"HOMING_SERVICE__PUBLIC_URL": ""}
    for name, provider in settings.get("providers", {}).items():
        prefix = f"HOMING_PROVIDERS__{name.upper()}__"
        match provider.get("kind", name):
            case "smtp":
                found[f"{prefix}PORT"] = str(vendors.smtp_port)
            case "fcm":
                found |= {f"{prefix}BASE_URL": vendors.url, f"{prefix}TOKEN_URI": f"{vendors.url}/token"}
            case "sns":
                found[f"{prefix}BASE_URL"] = f"{vendors.url}/sns"
            case "twilio" | "sendgrid" | "acs" | "webhook":
                found[f"{prefix}BASE_URL"] = vendors.url
    return found

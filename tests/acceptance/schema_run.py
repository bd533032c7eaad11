"""Runs schemathesis on a running service as three tenants, with all its checks and one of ours.

    python tests/acceptance/schema_run.py --examples 60

Each tenant has data with words of its own. A response to another tenant that contains such a word is a
finding, as is every 5xx and every response that the OpenAPI document does not describe.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from homing import Content, Recipient
from homing.client import Client
from homing.core.access.scopes import Scope
from homing.core.content.templates import TemplateParts
from homing.core.notifications import Channel

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.cli_driver import Cli
from support.service_process import Service, serving

SETTINGS = """\
store = "homing.db"
preset = "simple"

[log]
# Thousands of unsigned callbacks are refused, each with a warning.
level = "error"

[templates]
folder = "templates"

[providers.pigeon]
kind = "file"
path = "pigeon.jsonl"
"""

CHECKS = """\
[checks.positive_data_acceptance]
# Beyond what is usual: 422 is what fits the schema and is not acceptable (a channel without an address).
expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "422", "429"]
"""

TENANTS = ("acme", "globex", "initech")
_ALL_BUT_ADMIN = (Scope.SEND, Scope.READ, Scope.OPERATE, Scope.MANAGE)
SCOPES = {"acme": _ALL_BUT_ADMIN, "globex": _ALL_BUT_ADMIN, "initech": (Scope.ADMIN,)}
"""The last tenant has all scopes, but is still one tenant among others."""
How = tuple[int, str, int, str | None]
"""Examples, phases, seed, and which paths."""


@dataclass(frozen=True)
class Report:
    """The result of one tenant's run."""

    tenant: str
    cases: int
    failed: bool
    said: str


def main(argv: Sequence[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--examples", type=int, default=60, help="for each operation and phase")
    asked.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--only", metavar="REGEX", help="only addresses that match")
    options = asked.parse_args(argv)
    total, failed = 0, False
    for report in run(options.examples, options.phases, options.seed, options.only):
        total += report.cases
        failed = failed or report.failed
        if report.failed:
            print(report.said)
        print(
            f"{report.tenant}: {report.cases} cases, {'FAILED' if report.failed else 'nothing found'}",
            flush=True,
        )
    print(f"{total} cases in all")
    return 1 if failed else 0


def run(
    examples: int, phases: str, seed: int, only: str | None = None, tenants: Sequence[str] = TENANTS
) -> Iterator[Report]:
    """Returns a report for each of these tenants. All tenants have data."""
    with tempfile.TemporaryDirectory(prefix="homing-schema-") as name:
        folder = Path(name)
        (folder / "homing.toml").write_text(SETTINGS)
        (folder / "templates").mkdir()
        with serving(Cli(folder)) as service:
            yield from _as_each(service, folder, tenants, (examples, phases, seed, only))


def _as_each(service: Service, folder: Path, tenants: Sequence[str], how: How) -> Iterator[Report]:
    url, admin = f"http://{service.address}", service.key
    words = {tenant: f"{tenant}-{secrets.token_hex(6)}" for tenant in TENANTS}
    keys = {tenant: _settled(url, admin, tenant, words[tenant]) for tenant in TENANTS}
    (folder / "schemathesis.toml").write_text(CHECKS)
    for tenant in tenants:
        foreign = [word for other, word in words.items() if other != tenant]
        yield _as(tenant, keys[tenant], url, folder, foreign, how)


def _settled(url: str, admin: str, tenant: str, word: str) -> str:
    """Creates a tenant with some data of every kind, and returns its key."""
    with Client(url, admin) as client:
        client.create_tenant(name=tenant)
        key = client.create_key(tenant=tenant, name="tried out", scopes=SCOPES[tenant]).text
    with Client(url, key) as client:
        client.send_notification(
            recipient=Recipient(email=f"{word}@example.org"),
            channel="email",
            content=Content(subject=word, body=word),
            metadata={"word": word},
        )
        client.put_recipient(word, email=f"{word}@example.org")
        client.add_suppression(channel=Channel.SMS, address="+4915550100", why=word)
        parts = TemplateParts(subject=word, text=word)
        client.put_template(word, locales={"en-US": {Channel.EMAIL: parts}})
    return key


def _as(
    tenant: str,
    key: str,
    url: str,
    folder: Path,
    foreign: Sequence[str],
    how: How,
) -> Report:
    examples, phases, seed, only = how
    counted = folder / f"{tenant}.count"
    done = subprocess.run(
        [
            *(
                str(Path(sys.executable).with_name("schemathesis")),
                "--config-file",
                "schemathesis.toml",
                "run",
            ),
            *(f"{url}/api/v1/openapi.json", "--checks", "all", "--continue-on-failure"),
            *("--header", f"Authorization: Bearer {key}", "--phases", phases),
            *("--max-examples", str(examples), "--seed", str(seed), "--request-timeout", "40"),
            *("--no-color", "--generation-database", "none", "--suppress-health-check", "all"),
            *(("--include-path-regex", only) if only else ()),
        ],
        cwd=folder,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "support.schemathesis_checks",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "HOMING_FOREIGN": " ".join(foreign),
            "HOMING_COUNTED": str(counted),
        },
        capture_output=True,
        text=True,
    )
    cases = int(counted.read_text()) if counted.exists() else 0
    return Report(tenant, cases, done.returncode != 0, done.stdout + done.stderr)


if __name__ == "__main__":
    sys.exit(main())

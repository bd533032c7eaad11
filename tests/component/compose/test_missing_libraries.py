"""Homing without its optional libraries: the core works, and each error names the extra to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ALONE = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split(','))); "
"""Makes libraries impossible to import, in an interpreter of its own."""

CORE_ONLY = (
    "typer,click,rich,uvloop,asyncpg,pycurl,cryptography,aiosmtplib,botocore,google,requests,apprise,jinja2,"
    "prometheus_client,uvicorn,httptools,opentelemetry,starlette,jwt,pytest"
)


def run_without(libraries: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{ALONE}\n{code}", libraries], capture_output=True, text=True, cwd=folder
    )


def test_the_core_alone_sends_and_delivers(tmp_path: Path) -> None:
    code = """
from homing import SyncHoming
with SyncHoming("homing.db", worker=True, log={"format": "json"}) as homing:
    print(homing.wait(homing.send("ada@example.org", channel="email", body="Hello").id).status)
"""
    done = run_without(CORE_ONLY, code, tmp_path)
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["sent"], "")


def test_the_extra_for_testing_is_enough_for_the_conformance_suites(tmp_path: Path) -> None:
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    needs = [Requirement(need) for need in extras["testing"]]
    needs += [Requirement(one) for need in needs for extra in need.extras for one in extras[extra]]
    others = set(CORE_ONLY.split(",")) - {need.name for need in needs}
    code = "import homing.testing.provider_suite, homing.testing.store_suite"
    assert run_without(",".join(others), code, tmp_path).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--store postgresql://127.0.0.1:1/x list", "store: needs asyncpg, which is missing"),
        ("worker", "tracing: needs opentelemetry.sdk, which is missing"),
        ("serve", "the service needs uvicorn and httptools and starlette and jwt"),
        ("demo", "pip install 'homing[service]', or watch the demo with --terminal"),
    ],
)
def test_a_command_names_the_extra_to_install(tmp_path: Path, arguments: str, problem: str) -> None:
    (tmp_path / "homing.toml").write_text('[tracing]\nendpoint = "http://127.0.0.1:9/v1/traces"\n')
    libraries = "asyncpg,opentelemetry,uvicorn,httptools,starlette,jwt"
    code = f"from homing.cli import main\nsys.argv[1:] = {arguments.split()}\nmain()"
    done = run_without(libraries, code, tmp_path)
    assert problem in done.stderr
    assert "pip install 'homing[" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


def test_the_command_line_names_its_own_extra(tmp_path: Path) -> None:
    done = run_without("typer", "from homing.cli import main\nsys.argv[1:] = []\nmain()", tmp_path)
    assert done.stderr == (
        "error: the command line needs typer; install it with: pip install 'homing[cli]'\n"
    )

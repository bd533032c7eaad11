"""The docs of the service match the code: the client's examples run, and the tables have the same rows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.running_service import RunningService

ROOT = Path(__file__).parents[3]
PRINTED = """\
queued homing-standard
pending
attempt 1 of 6
5
1200
cancel is not possible: ID is cancelled. `homing explain ID` shows what happened to it.
recipient.email
404 NOT_FOUND
1
order_confirmed
"""


def test_the_code_of_the_client_s_page_runs(
    serve: Callable[..., RunningService], capsys: pytest.CaptureFixture[str]
) -> None:
    service = serve(store="memory:")
    page = (ROOT / "docs/howto/use-the-client.md").read_text()
    blocks = re.findall(r"^```python no-run\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("http://127.0.0.1:8080", service.url).replace("hm_…", "default"), names)
    names["client"].close()
    assert capsys.readouterr().out.replace(names["id"], "ID") == PRINTED


def test_the_tables_of_the_rest_reference_match_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "tools/make_reference.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun tools/make_reference.py"

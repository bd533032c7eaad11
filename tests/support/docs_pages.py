"""Follows a page of the docs as its reader would: runs its marked blocks in order, in one folder.

A block is run if the word `runnable` follows its language:

- `python`: the blocks of a page share their names.
- `toml`: a block that begins with the comment `# homing.toml` becomes that file; others are added to it.
- `sh`: `homing` runs in one process for the whole page. Other commands, and blocks with a here-document, run
  in bash. `homing serve` runs until the page ends. So does a worker with `&`, unless `kill %1` stops it. A
  worker without `&` is stopped as soon as it has started.
- `crontab`: the command of each line is run once.
- `sql`: runs in psql, in the page's database.

`$ID`, in SQL `:'id'`, is the first id in the output of the last command that printed one. A block
`text output` after another block is what that one prints. For all but Python, `…` stands for any text within
a line. The comment `<!-- test: NAME is down -->` makes a provider refuse everything until
`<!-- test: NAME is up -->`.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from support.cli_driver import Cli
from support.service_process import PATIENCE_S, serving

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^```(?P<language>\w+) runnable\n(?P<text>.*?)^```\n(?:\n```text output\n(?P<output>.*?)^```)?"
    r"|^<!-- test: (?P<provider>\w+) is (?P<state>up|down) -->$",
    re.MULTILINE | re.DOTALL,
)
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_ADDRESS = "127.0.0.1:8080"
"""The address of the service on the pages."""


@dataclass(frozen=True)
class Block:
    """One block of a page, or one comment about a provider."""

    language: str
    text: str
    output: str | None
    line: int


def all_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            language=found["language"] or "provider",
            text=found["text"] or f"{found['provider']} {found['state']}",
            output=found["output"],
            line=text[: found.start()].count("\n") + 1,
        )
        for found in _BLOCK.finditer(text)
    ]


def inline_code(page: Path) -> list[str]:
    """Returns what a page quotes within its sentences and tables."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


class PageRun:
    """Runs the blocks of one page. `switch(provider, up)` stops and starts a provider of the page."""

    def __init__(
        self,
        page: Path,
        folder: Path,
        *,
        database: str = "",
        switch: Callable[[str, bool], None] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._page = page
        self._cli = Cli(folder)
        self._database = database
        self._switch = switch
        self._env = dict(env or {})
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._ending = ExitStack()
        self._worker: subprocess.Popen[str] | None = None
        self._address = ""
        self._id = ""

    def __enter__(self) -> PageRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def follow(self) -> None:
        for block in blocks_of(self._page):
            printed = self._run(block)
            if block.output is not None:
                same = (
                    printed == block.output if block.language == "python" else _match(printed, block.output)
                )
                assert same, f"{self._page.name}, line {block.line}: prints\n{printed}"

    def _run(self, block: Block) -> str:
        match block.language:
            case "python":
                return self._run_python(block)
            case "toml":
                return self._write_settings(block.text)
            case "sh" if "<<" in block.text:
                return self._run_program(["bash", "-euo", "pipefail", "-c", block.text], block)
            case "sh":
                commands = [line for line in _lines(block.text) if not line.startswith("#")]
                return "".join(self._run_next(command, block) for command in commands)
            case "crontab":
                commands = [line.split(maxsplit=5)[5] for line in _lines(block.text)]
                return "".join(self._run_next(command, block) for command in commands)
            case "sql":
                psql = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", f"id={self._id}", self._database]
                # The role of the tests' server has the name of Homing's schema, which no reader's role has.
                script = f"SET search_path = public;\n{block.text}"
                return self._remember_id(self._run_program(psql, block, stdin=script))
            case "provider":
                assert self._switch is not None, "the page's providers cannot be switched"
                provider, state = block.text.split()
                self._switch(provider, state == "up")
                return ""
            case other:
                raise AssertionError(f"{self._page.name}, line {block.line}: {other} cannot be run")

    def _run_python(self, block: Block) -> str:
        code = compile("\n" * block.line + block.text, str(self._page), "exec")
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, self._names)  # code of our own docs
        return printed.getvalue()

    def _write_settings(self, text: str) -> str:
        tomllib.loads(text)
        file = self._cli.folder / "homing.toml"
        is_complete = text.startswith("# homing.toml\n")
        file.write_text(text if is_complete else f"{file.read_text()}\n{text}", encoding="utf-8")
        return ""

    def _run_next(self, command: str, block: Block) -> str:
        return self._remember_id(self._run_command(command, block))

    def _remember_id(self, printed: str) -> str:
        if found := _ID.search(printed):
            self._id = found[0]
        return printed

    def _run_command(self, command: str, block: Block) -> str:
        command = command.partition("  #")[0].rstrip().replace("$ID", self._id)
        first, _, rest = command.partition(" ")
        if command == "kill %1":
            self._stop_worker()
            return ""
        if first != "homing" or re.search(r" [|<>&] ", command):
            at_service = command.replace(_ADDRESS, self._address or _ADDRESS)
            return self._run_program(["bash", "-euo", "pipefail", "-c", at_service], block)
        argv = shlex.split(rest)
        if argv[0] == "serve":
            self._address = self._ending.enter_context(serving(self._cli, *argv[1:], **self._env)).address
            return ""
        if argv[0] == "worker":
            return self._run_worker(argv)
        result = self._cli(*argv, stdin=None, **self._env)
        assert result.code == 0, f"{self._page.name}, line {block.line}: {result}"
        return result.out

    def _run_worker(self, argv: list[str]) -> str:
        """Starts a worker and waits for its first line."""
        goes_on = argv[-1] == "&"
        self._worker = self._cli.start(*argv[: len(argv) - goes_on], **self._env)
        self._ending.callback(self._stop_worker)
        assert self._worker.stdout is not None
        first = self._worker.stdout.readline()
        if not goes_on:
            self._stop_worker()
        return first

    def _stop_worker(self) -> None:
        if self._worker is not None:
            process, self._worker = self._worker, None
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=PATIENCE_S)[1]
            assert process.returncode == 0, errors

    def _run_program(self, command: list[str], block: Block, stdin: str = "") -> str:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=self._cli.folder,
            env=self._cli.env(**self._env, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
        )
        where = f"{self._page.name}, line {block.line}"
        assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
        return done.stdout


def _match(printed: str, shown: str) -> bool:
    """Returns whether the output is the one that the page shows, where `…` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in shown.rstrip().split("…"))
    plain = "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
    return re.fullmatch(pattern, plain) is not None


def _lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", text)
    return [line for line in joined.splitlines() if line.strip()]

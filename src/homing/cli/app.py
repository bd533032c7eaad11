"""Loads all commands, runs one, and turns its errors into exit codes."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import typer

from homing.cli.common.exit_codes import ExitCode, exit_code_for, one_line
from homing.cli.root import app

_COMMANDS = (
    "setup.init",
    "demo.command",
    "intake.send",
    "delivery.process",
    "delivery.worker",
    "delivery.serve",
    "delivery.bridge",
    "operations.status_and_lists",
    "operations.explain",
    "operations.now",
    "operations.stats_and_health",
    "operations.dead",
    "operations.jobs",
    "operations.retry_cancel_resolve_purge",
    "operations.providers",
    "operations.sinks",
    "operations.workers",
    "operations.system",
    "operations.policy",
    "operations.policy_simulate",
    "operations.templates",
    "operations.stored_settings",
    "access.keys",
    "access.tenants",
    "access.audit",
    "setup.reload",
    "setup.db",
    "setup.doctor",
    "setup.bench",
)
"""Modules that register commands, in the order of `homing --help`."""

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""Click's UsageError. Its import path differs between versions of typer."""


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code. Prints expected errors as one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets `?`, not a crash
    for name in _COMMANDS:
        import_module(f"homing.cli.{name}")
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="homing", standalone_mode=False)
        sys.stdout.flush()
        return int(result or 0)
    except _USAGE_ERROR as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). That is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        code = exit_code_for(error)
        if code is None:
            raise
        sys.stderr.write(f"error: {one_line(str(error))}\n")
        return code


def _usage(error: Exception) -> int:
    message = one_line(error.format_message()) if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(str(error) + "\n")
        return ExitCode.USAGE
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    sys.stderr.write(f"error: {message}{hint}\n")
    return ExitCode.USAGE

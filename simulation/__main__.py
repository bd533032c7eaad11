"""`python -m simulation --lifetimes N --seed S`: simulates until N notifications have ended.

Progress goes to stderr and the result to stdout. If an invariant was violated, the exit code is 1 and the
command that reproduces the violation is printed.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec

from simulation.campaign import REQUESTS, CampaignTotals, FailedRun, run_campaign, try_simulation
from simulation.planted.bugs import SEEDS, hunt_bug, load_all_bugs
from simulation.trace import Trace


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.replay is not None:
        return _replay(arguments.replay, arguments.requests)
    if arguments.planted:
        return _hunt(arguments.seed)
    progress = _Progress(arguments.lifetimes)
    try:
        totals = run_campaign(
            arguments.lifetimes,
            seed=arguments.seed,
            processes=arguments.processes,
            requests=arguments.requests,
            most_failures=arguments.failures,
            on_world=progress.show,
        )
    except KeyboardInterrupt:
        totals = progress.totals  # interrupted: show the results so far
    progress.end()
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(totals).decode() + "\n")
    else:
        sys.stdout.write(format_totals(totals, progress.passed_s))
    return 1 if totals.failures else 0


def format_totals(totals: CampaignTotals, passed_s: float) -> str:
    """Returns the results as a table."""
    rate = totals.lifetimes / passed_s if passed_s else 0.0
    rows = [
        ("lifetimes", f"{totals.lifetimes:,} in {totals.worlds:,} runs, {rate:,.0f} per second"),
        ("virtual time", f"{totals.virtual_ms / 3_600_000:,.1f} hours"),
        ("attempts", f"{totals.attempts:,} of {totals.leases:,} leases, {totals.stale:,} stale settlements"),
        ("faults", f"{totals.crashes:,} crashes, {totals.pauses:,} pauses, {totals.jumps:,} clock jumps"),
        ("lost commits", f"{totals.rollbacks:,} times"),
        ("breakers", f"{totals.breaker_changes:,} changes"),
        ("operators", f"{totals.commands:,} commands"),
        ("receipts", f"{totals.receipts:,}"),
        ("dead-letter events", f"{totals.events:,}"),
        ("outcomes", _listed(totals.outcomes)),
        ("statuses", _listed(totals.statuses)),
        ("violations", f"{len(totals.failures)}"),
    ]
    wide = max(len(name) for name, _ in rows)
    lines = [f"{name:<{wide}}  {value}" for name, value in rows]
    for failure in totals.failures:
        lines += ["", failure.text, f"  reproduce with: {failure.replay}"]
    return "\n".join(lines) + "\n"


class _Progress:
    """Shows progress on stderr: an overwritten line on a terminal, else a new line every 15 seconds."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._began = time.monotonic()
        self._shown = 0.0
        self._failures = 0
        self._on_screen = sys.stderr.isatty()
        self.totals = CampaignTotals()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._began

    def show(self, totals: CampaignTotals) -> None:
        self.totals = totals
        for failure in totals.failures[self._failures :]:  # a long run may be aborted later
            self.end()
            sys.stderr.write(f"invariant {failure.invariant} is violated: {failure.replay}\n")
        self._failures = len(totals.failures)
        now = time.monotonic()
        if now - self._shown < (0.2 if self._on_screen else 15.0):
            return
        self._shown = now
        rate = totals.lifetimes / max(0.001, self.passed_s)
        left_s = (self._wanted - totals.lifetimes) / rate if rate else 0.0
        line = (
            f"{totals.lifetimes:,} of {self._wanted:,} lifetimes, {rate:,.0f}/s, "
            f"{_clock(max(0.0, left_s))} left, {len(totals.failures)} violations"
        )
        sys.stderr.write(f"\r{line:<78}" if self._on_screen else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._on_screen:
            sys.stderr.write("\r" + " " * 78 + "\r")


def _replay(seed: int, requests: int) -> int:
    trace = Trace(keep=None)
    # The order of rows that SQLite may choose freely can differ between versions.
    sys.stdout.write(f"SQLite {sqlite3.sqlite_version}\n")
    answer = try_simulation(seed, requests, trace)
    sys.stdout.writelines(f"{line}\n" for line in trace.lines)
    if isinstance(answer, FailedRun):
        sys.stdout.write(f"{answer.text}\n")
        return 1
    sys.stdout.write(f"seed {seed}: no violation, trace {answer.trace_sha256}\n")
    return 0


def _hunt(seed: int) -> int:
    """Plants every bug in turn and prints which invariant found it. Returns 1 if a bug was not found."""
    missed = 0
    for bug in load_all_bugs():
        caught = hunt_bug(bug, range(seed, seed + SEEDS))
        missed += caught is None
        found = (
            "NOT FOUND"
            if caught is None
            else f"by invariant {caught.violation.invariant}, seed {caught.seed}"
        )
        sys.stdout.write(f"{bug.name:<26} {bug.what:<56} {found}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{missed} of {len(load_all_bugs())} planted bugs were not found\n")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument(
        "--lifetimes",
        type=_positive,
        default=10_000,
        metavar="N",
        help="notifications to simulate (default 10000)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the first run (default 1)")
    parser.add_argument(
        "--processes", type=_positive, default=1, metavar="P", help="parallel processes (default 1)"
    )
    parser.add_argument(
        "--requests",
        type=_positive,
        default=REQUESTS,
        metavar="R",
        help=f"requests per run (default {REQUESTS})",
    )
    parser.add_argument(
        "--failures",
        type=_positive,
        default=1,
        metavar="F",
        help="stop after this many violations (default 1)",
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one simulation and print its trace")
    parser.add_argument(
        "--planted", action="store_true", help="plant each bug in turn and check that it is found"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _positive(text: str) -> int:
    value = int(text.replace("_", "").replace(",", ""))
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda c: -c[1]))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


if __name__ == "__main__":
    sys.exit(main())

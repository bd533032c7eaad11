"""Measures how long importing Homing takes, compared with what any async program with SQLite imports anyway.

Each import runs in a fresh interpreter and is timed inside it. The contestants alternate within each round,
so that other load affects all of them, and medians are compared. The first round only warms the file cache.
Homing loads its names on first use, so `from homing import Homing` is the real cost for a program that sends.
`--top N` lists the slowest modules.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys

BAR = 2.5
"""Target: `import homing` may take at most this many times as long as `YARDSTICK`."""

YARDSTICK = "import asyncio, json, sqlite3"
HOMING = "import homing"
IN_USE = "from homing import Homing"
CONTESTANTS = (YARDSTICK, HOMING, IN_USE)

_TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"
_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|( +)(\S+)")


def seconds(statement: str) -> float:
    """Returns the seconds that one import takes in a fresh interpreter."""
    command = [sys.executable, "-c", _TIMED.format(statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(rounds: int) -> dict[str, list[float]]:
    """Times all import statements in alternation and returns the seconds of each round by statement."""
    taken: dict[str, list[float]] = {statement: [] for statement in CONTESTANTS}
    for number in range(rounds + 1):
        for statement in CONTESTANTS:
            lasted = seconds(statement)
            if number:
                taken[statement].append(lasted)
    return taken


def dominant(statement: str, count: int) -> list[tuple[int, str]]:
    """Returns (microseconds without nested imports, module), longest first, from `-X importtime`."""
    command = [sys.executable, "-X", "importtime", "-c", statement]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    own = [(int(found[1]), found[4]) for line in output.splitlines() if (found := _LINE.match(line))]
    return sorted(own, reverse=True)[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="at least 9 (default 15)")
    parser.add_argument("--top", type=int, default=0, help="list the N modules that take longest")
    options = parser.parse_args()
    taken = measure(max(9, options.rounds))
    yardstick = statistics.median(taken[YARDSTICK])
    print(f"{'import':<32} {'median':>9} {'fastest':>9} {'slowest':>9} {'ratio':>6}")
    for statement, times in taken.items():
        median = statistics.median(times)
        print(
            f"{statement:<32} {median * 1000:>6.1f} ms {min(times) * 1000:>6.1f} ms"
            f" {max(times) * 1000:>6.1f} ms {median / yardstick:>6.2f}"
        )
    for own_us, module in dominant(IN_USE, options.top):
        print(f"{own_us / 1000:>8.1f} ms  {module}")
    ratio = statistics.median(taken[HOMING]) / yardstick
    print(f"target: {HOMING} at most {BAR} times; {'met' if ratio <= BAR else 'missed'} with {ratio:.2f}")
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())

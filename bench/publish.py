"""Copies the results of `make bench-long` and `make bench-peers` into docs/explanation/performance.md.

    python bench/publish.py [--build build]

Tables go between their markers in the page, charts to docs/images. Results without a new run stay unchanged.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "performance.md"
IMAGES = ROOT / "docs" / "images"
SHOWN = {
    "bench": "Notifications per second, by part and store",
    "peers": "Jobs per second, Homing and other queues",
}


def publish(name: str, build: Path) -> bool:
    """Copies one table and its chart. Returns False if there is no new run."""
    table, chart = build / f"{name}.md", build / f"{name}.svg"
    if not table.exists() or not chart.exists():
        return False
    picture = IMAGES / f"performance-{name}.svg"
    picture.write_text(chart.read_text(encoding="utf-8"), encoding="utf-8")
    inner = f"![{SHOWN[name]}](../images/{picture.name})\n\n{table.read_text(encoding='utf-8')}"
    marks = re.compile(f"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    page, found = marks.subn(lambda mark: f"{mark[1]}{inner}{mark[2]}", PAGE.read_text(encoding="utf-8"))
    if found != 1:
        sys.exit(f"{PAGE.name} has no markers for {name}")
    PAGE.write_text(page, encoding="utf-8")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build", help="folder with the results of the runs"
    )
    build = parser.parse_args().build
    for name in SHOWN:
        print(f"{name}: {'published' if publish(name, build) else 'no new run, left unchanged'}")


if __name__ == "__main__":
    main()

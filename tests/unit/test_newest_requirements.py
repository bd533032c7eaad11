"""`make check-latest` installs newer releases than the project allows."""

from __future__ import annotations

from pathlib import Path

from newest_requirements import unbounded_requirements

PROJECT = """
[project]
dependencies = ["msgspec>=0.19"]
[project.optional-dependencies]
smtp = ["aiosmtplib>=4,<6"]
tracing = ["opentelemetry-api>=1.40,!=1.45.2,<2"]
all = ["homing[smtp,tracing]"]
[dependency-groups]
dev = ["uvicorn[standard]<1", "pytest>=8.3"]
"""


def test_upper_bounds_are_dropped_and_exclusions_stay(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert list(unbounded_requirements(tmp_path / "pyproject.toml")) == [
        "aiosmtplib>=4",
        "opentelemetry-api>=1.40,!=1.45.2",
        "uvicorn[standard]",
    ]


def test_the_libraries_with_private_names_are_among_them() -> None:
    names = {need.partition(">")[0] for need in unbounded_requirements()}
    assert names >= {"aiosmtplib", "botocore", "jinja2", "opentelemetry-api", "uvicorn"}

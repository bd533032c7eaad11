"""Settings of the dashboard. They can be loaded without Starlette and Jinja."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from homing.core.bounds import PositiveDurationMs

EnvironmentName = Annotated[str, Meta(max_length=30, extra={"form": "a name of at most 30 characters"})]


class DashboardSettings(Struct, frozen=True, kw_only=True):
    """What the dashboard shows about this installation, and how long people stay signed in."""

    environment: EnvironmentName = ""
    """Name of the environment in the header of every page, such as `production`. Empty means none."""
    color: Literal["gray", "blue", "green", "amber", "red", "purple"] = "gray"
    """Color of the environment's name."""
    idle_ms: PositiveDurationMs = 1_800_000
    """Time without a request after which a session ends."""
    session_ms: PositiveDurationMs = 43_200_000
    """Time after which a session ends, however much it is used."""

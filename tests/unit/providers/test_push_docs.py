"""The docs pages of the push providers and Apprise list exactly the existing settings."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from homing.providers.apprise.provider import AppriseProvider
from homing.providers.fcm.provider import FcmProvider
from homing.providers.webpush.provider import WebPushProvider

PAGES = Path(__file__).parents[3] / "docs/reference/providers"
NOT_SETTINGS = {"self", "transport", "now_ms"}


@pytest.mark.parametrize(
    ("page", "provider"), [("fcm", FcmProvider), ("webpush", WebPushProvider), ("apprise", AppriseProvider)]
)
def test_every_setting_is_described_in_order_with_its_default(page: str, provider: Any) -> None:
    text = (PAGES / f"{page}.md").read_text().partition("## Settings\n")[2].partition("\n## ")[0]
    told: list[str] = []
    takes = signature(provider).parameters
    for names, default in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", text, re.MULTILINE):
        found = re.findall(r"`(\w+)`", names)
        told += found
        if default.startswith("`"):
            shown = repr(takes[found[0]].default).replace("'", '"').replace("False", "false")
            assert default == f"`{shown}`", found
    assert told == [name for name in takes if name not in NOT_SETTINGS]

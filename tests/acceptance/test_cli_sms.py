"""`explain` shows the number of SMS segments before they are paid for."""

from __future__ import annotations

from pathlib import Path

from support.cli_driver import SETTINGS, Cli


def test_explain_counts_the_segments_of_a_long_text(tmp_path: Path) -> None:
    (tmp_path / "homing.toml").write_text(SETTINGS)
    homing = Cli(tmp_path)
    texts = ("a" * 160, "a" * 161, "ê" * 71)
    sent = [
        homing("send", "--to", "+15550100", "--channel", "sms", "--body", text, "--json") for text in texts
    ]
    short, long, wide = (homing("explain", one.json["notificationIds"][0]).out for one in sent)
    assert "SMS (" not in short
    assert "2 SMS segments (gsm-7)" in long
    assert "2 SMS segments (ucs-2)" in wide

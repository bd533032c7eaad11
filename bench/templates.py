"""Measures how many messages per second one core renders from compiled templates.

    python bench/templates.py

There are three typical messages: a short SMS, an email with subject and text, and an HTML email with a
layout and a list. The best of several rounds counts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from homing.core.notifications import Channel
from homing.rendering.folder_templates import FolderTemplates

ROUNDS, RENDERS = 7, 2_000
DATA: dict[str, Any] = {
    "name": "Ada",
    "number": 4711,
    "items": [{"name": f"Thing {n}", "price": n + 0.5} for n in range(5)],
}
FILES = {
    "_shared/layout.html": "<html><body>{% block content %}{% endblock %}</body></html>",
    "sms/en-US/sms.txt": "Hello {{ name }}, your order {{ number }} is on its way.",
    "plain/en-US/email.subject.txt": "Your order {{ number }}",
    "plain/en-US/email.txt": "Hello {{ name }},\n\nyour order {{ number }} is on its way.\n",
    "html/en-US/email.subject.txt": "Your order {{ number }}",
    "html/en-US/email.html": (
        '{% extends "_shared/layout.html" %}{% block content %}<p>Hello {{ name }}</p><ul>'
        "{% for item in items %}<li>{{ item.name }}: {{ item.price }}</li>{% endfor %}</ul>{% endblock %}"
    ),
}
CONTESTANTS = {"sms": Channel.SMS, "plain": Channel.EMAIL, "html": Channel.EMAIL}


async def per_second(templates: FolderTemplates, key: str) -> float:
    """Returns renders per second of CPU time, from the best round."""
    best = float("inf")
    await templates.render("default", key, CONTESTANTS[key], "en-US", DATA)
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(RENDERS):
            await templates.render("default", key, CONTESTANTS[key], "en-US", DATA)
        best = min(best, time.process_time() - started)
    return RENDERS / best


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        templates = FolderTemplates(Path(folder))
        for key in CONTESTANTS:
            rate = asyncio.run(per_second(templates, key))
            print(f"{key:<6} {rate:>8,.0f} renders/s  {1e6 / rate:>5.1f} µs")


if __name__ == "__main__":
    main()

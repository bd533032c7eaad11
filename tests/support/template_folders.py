"""Template folders and renders for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homing.core.model import Channel, Content
from homing.rendering.files import Folder, Source, Written, file_name
from homing.rendering.templates import Library, rendered

ORDER: dict[str, str] = {
    "order/sample.json": '{"name": "Ada", "items": [{"name": "Tea", "price": 9.5}]}',
    "order/en-US/email.subject.txt": "Your order, {{ name }}\n",
    "order/en-US/email.html": "<p>Hello {{ name }}</p>\n",
    "order/en-US/sms.txt": "Hello {{ name }}: {{ items | length }} on the way",
    "order/de/email.subject.txt": "Ihre Bestellung, {{ name }}\n",
    "order/de/email.html": "<p>Hallo {{ name }}</p>\n",
    "order/de/sms.txt": "Hallo {{ name }}: {{ items | length }} unterwegs",
}


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Writes these files below the folder and returns it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def render(
    source: str,
    data: Mapping[str, Any] | None = None,
    *,
    part: str = "text",
    partials: Mapping[str, str] | None = None,
) -> Content:
    """Renders one source as the only part of an email."""
    name = f"t/en/{file_name(Channel.EMAIL, part)}"
    one = Source(name=name, channel=Channel.EMAIL, part=part, text=source)
    written = {"t": {"en": Written(sources=(one,), version="1")}}
    library = Library(Folder(written=written, partials=dict(partials or {})))
    return rendered(library.compiled("t", "en"), "t", Channel.EMAIL, data or {}).content


def text(source: str, data: Mapping[str, Any] | None = None, **more: Any) -> str:
    found = render(source, data, **more)
    made = found.html if found.html is not None else found.text
    assert made is not None
    return made

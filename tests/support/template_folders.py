"""Template folders and renders for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homing.core.notifications import Channel, Content
from homing.rendering.folder_templates import (
    TemplateFile,
    TemplateFolder,
    TemplateLibrary,
    TemplateSources,
    part_file_name,
    render_with_json_data,
)

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
    name = f"t/en/{part_file_name(Channel.EMAIL, part)}"
    one = TemplateFile(name=name, channel=Channel.EMAIL, part=part, text=source)
    written = {"t": {"en": TemplateSources(sources=(one,), version="1")}}
    library = TemplateLibrary(TemplateFolder(written=written, partials=dict(partials or {})))
    return render_with_json_data(library.compiled("t", "en"), "t", Channel.EMAIL, data or {}).content


def text(source: str, data: Mapping[str, Any] | None = None, **more: Any) -> str:
    found = render(source, data, **more)
    made = found.html if found.html is not None else found.text
    assert made is not None
    return made

"""The switch between pages and API, which looks only at the start of the path."""

from __future__ import annotations

from typing import Any

import pytest

from homing.http_server.asgi import PrefixSwitch


class NamedApp:
    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._seen.append(self._name)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({"type": "http", "path": "/"}, "pages"),
        ({"type": "http", "path": "/ui/"}, "pages"),
        ({"type": "http", "path": "/ui/pages.css"}, "pages"),
        ({"type": "http", "path": "/ui"}, "others"),
        ({"type": "http", "path": "/uix"}, "others"),
        ({"type": "http", "path": "//"}, "others"),
        ({"type": "http", "path": ""}, "others"),
        ({"type": "http", "path": "/api/v1/ui/x"}, "others"),
        ({"type": "lifespan"}, "others"),
    ],
)
async def test_pages_are_found_by_path_or_prefix(scope: dict[str, Any], expected: str) -> None:
    seen: list[str] = []
    switch = PrefixSwitch(NamedApp("pages", seen), NamedApp("others", seen), paths=("/",), prefix="/ui/")
    await switch(scope, None, None)
    assert seen == [expected]

"""Endpoints that need no key: the API's description, its page, and the probes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.running_service import RunningService


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/docs", "text/html"),
        ("/docs/docs.css", "text/css"),
        ("/docs/docs.js", "text/javascript"),
        ("/api/v1/openapi.json", "application/json"),
    ],
)
def test_the_description_and_its_page_are_public_with_a_strict_policy(
    serve: Callable[..., RunningService], path: str, kind: str
) -> None:
    answer = serve(store="memory:").call("GET", path, key=None)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(kind)
    if "docs" in path:
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")


def test_the_probes_are_public_and_the_metrics_are_not(serve: Callable[..., RunningService]) -> None:
    service = serve(store="memory:")
    assert service.call("GET", "/healthz", key=None).body == b"ok\n"
    assert service.call("GET", "/readyz", key=None).json == {"ready": True, "store": "ok", "worker": "ok"}
    assert service.call("GET", "/metrics", key=None).status == 401
    assert service.call("GET", "/metrics", key="default:read,send").status == 403
    assert service.call("GET", "/metrics").json["error"]["code"] == "NOT_FOUND", "nothing is counted here"

"""A short schemathesis run on the whole API."""

from __future__ import annotations

import pytest
import schema_run


@pytest.mark.slow
def test_no_response_is_undescribed_broken_or_another_tenant_s() -> None:
    tenants = ("acme", "initech")  # one of each kind: without and with the scope admin
    reports = list(schema_run.run(examples=2, phases="examples,fuzzing", seed=3, tenants=tenants))
    assert [report.tenant for report in reports] == list(tenants)
    for report in reports:
        assert not report.failed, report.said
        assert report.cases > 100

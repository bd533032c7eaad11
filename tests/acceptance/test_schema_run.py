"""A short form of what schemathesis tries on the whole description."""

from __future__ import annotations

import pytest
import schema_run


@pytest.mark.slow
def test_no_answer_is_undescribed_broken_or_another_tenants() -> None:
    tenants = ("acme", "initech")  # one of either kind: who may not administrate, and who may
    reports = list(schema_run.run(examples=2, phases="examples,fuzzing", seed=3, tenants=tenants))
    assert [report.tenant for report in reports] == list(tenants)
    for report in reports:
        assert not report.failed, report.said
        assert report.cases > 100

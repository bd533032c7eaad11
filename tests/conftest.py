"""That this file is here puts the folder on the import path: what several suites share lies in it."""

import pytest

# The suites live in the package; their assertions are to explain themselves like any test's.
pytest.register_assert_rewrite("homing.testing.store_suite", "homing.testing.provider_suite")
pytest_plugins = ["servers", "service"]

"""The suite lives in the package; its assertions are to explain themselves like any test's."""

import pytest

pytest.register_assert_rewrite("homing.testing.store_suite")

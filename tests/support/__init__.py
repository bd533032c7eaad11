"""Helpers of all suites: builders, fakes, fixtures and real servers. Import them as `support.MODULE`."""

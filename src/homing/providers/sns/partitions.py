"""The partitions of AWS, each with regions and a domain of its own."""

from __future__ import annotations

_SUFFIXES = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
}
"""Beginning of a region's name → domain, for the partitions other than the public ones."""

_PUBLIC = "amazonaws.com"

DNS_SUFFIXES = (_PUBLIC, *_SUFFIXES.values())


def dns_suffix(region: str) -> str:
    """Returns the domain of the region's partition."""
    return next((suffix for start, suffix in _SUFFIXES.items() if region.startswith(start)), _PUBLIC)

"""Settings of a database that change what SQL means, or how its results look."""

from __future__ import annotations

ODD_SETTINGS = {
    "array_nulls": "off",
    "bytea_output": "'escape'",
    '"DateStyle"': "'SQL, DMY'",
    '"IntervalStyle"': "'sql_standard'",
    '"TimeZone"': "'Asia/Kathmandu'",
    "client_encoding": "'LATIN1'",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "'serializable'",
    "enable_nestloop": "off",
    "extra_float_digits": "-15",
    "row_security": "off",
    "search_path": "odd, public, pg_catalog",
    "standard_conforming_strings": "off",
    "statement_timeout": "'30s'",
    "synchronous_commit": "'local'",
    "transform_null_equals": "on",
}
"""Name and value of each setting, as in `ALTER DATABASE … SET`."""

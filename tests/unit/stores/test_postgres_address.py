"""URLs and schema names."""

from __future__ import annotations

import pytest

from homing.core.errors import ConfigError
from homing.stores.postgres.address import in_schema, parse_database_url
from homing.stores.postgres.statements import BatchStatement


def test_homing_s_own_options_are_removed_from_the_url() -> None:
    address = parse_database_url(
        "postgresql://ada:secret@db:5433/app?schema=outbox&sslmode=require&pool_size=3&listen=false"
        "&cached_statements=0"
    )
    assert address.url == "postgresql://ada:secret@db:5433/app?sslmode=require"
    assert (address.schema, address.pool_size, address.cached_statements, address.listen) == (
        "outbox",
        3,
        0,
        False,
    )
    assert address.where == "db:5433/app"
    assert "secret" not in repr(address)


def test_a_direct_url_for_listen_keeps_its_secrets() -> None:
    address = parse_database_url(
        "postgresql://pooler:6432/app?pool_size=3&listen_url=postgresql://u:s3@db/a?x=1"
    )
    assert address.url == "postgresql://pooler:6432/app"
    assert address.listen_at is not None
    assert (address.listen_at.url, address.listen_at.where) == ("postgresql://u:s3@db/a?x=1", "db/a")
    assert "s3" not in repr(address)
    with pytest.raises(ConfigError, match="has a listen_url that is not a postgresql:// URL") as refused:
        parse_database_url("postgresql://db/app?listen_url=mysql://u:s3@db/a")
    assert "s3" not in str(refused.value)


@pytest.mark.parametrize(("text", "listens"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_listening_is_turned_on_and_off(text: str, listens: bool) -> None:
    assert parse_database_url(f"postgresql://db/app?listen={text}").listen is listens


@pytest.mark.parametrize(
    ("location", "hosts"),
    [
        ("db/app", ["db:5432"]),
        ("ada:s@cret@one:5433,two,[::1]:5434/app", ["one:5433", "two:5432", "[::1]:5434"]),
        ("/app?host=one,two&port=5433", ["one:5433", "two:5433"]),
        ("/app?host=one,two&port=5433,5434", ["one:5433", "two:5434"]),
        ("%2Frun%2Fpostgresql/app", ["/run/postgresql:5432"]),
        ("/app?host=/run/postgresql", ["/run/postgresql:5432"]),
        ("/app", []),
        ("one:x/app", []),
        ("one,two/app?port=1,2,3", []),
        ("db/app?service=prod", []),
    ],
)
def test_the_hosts_of_a_url(location: str, hosts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are none, the driver takes them from elsewhere, or reports what is wrong."""
    for name in ("PGHOST", "PGPORT", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    assert [str(host) for host in parse_database_url(f"postgresql://{location}").hosts] == hosts


def test_the_hosts_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSERVICE", raising=False)
    monkeypatch.setenv("PGHOST", "one,two")
    monkeypatch.setenv("PGPORT", "5433,5434")
    assert [str(host) for host in parse_database_url("postgresql:///app").hosts] == ["one:5433", "two:5434"]
    monkeypatch.setenv("PGPORT", "5433")
    assert [str(host) for host in parse_database_url("postgresql://db/app").hosts] == ["db:5433"]
    monkeypatch.setenv("PGSERVICE", "prod")
    assert not parse_database_url("postgresql:///app").hosts


@pytest.mark.parametrize(
    "url", ["u:s3@db:99999/a", "u:s3@db:0/a", "u:s3@db:abc/a", "u:s3@one,two/a?port=1,2,3", "u:s3@/a?port=x"]
)
def test_a_direct_url_for_listen_with_a_wrong_host_or_port_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="has a listen_url with a wrong host or port") as refused:
        parse_database_url(f"postgresql://db/app?listen_url=postgresql://{url}")
    assert "s3" not in str(refused.value)


def test_a_direct_url_for_listen_needs_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    for url in ("postgresql:///a", "postgresql:///a?port=5433", "postgresql://db/a?service=prod"):
        address = parse_database_url(f"postgresql://db/app?listen_url={url}").listen_at
        assert address is not None
        assert not address.hosts


def test_what_the_url_demands_of_a_server_and_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSSLMODE", "PGTARGETSESSIONATTRS"):
        monkeypatch.delenv(name, raising=False)
    plain = parse_database_url("postgresql://one,two/app")
    assert (plain.connect_timeout, plain.verifies_name, plain.session_attrs) == (0, False, None)
    demanding = parse_database_url(
        "postgresql://one,two/app?connect_timeout=5&sslmode=verify-full&target_session_attrs=primary"
    )
    assert (demanding.connect_timeout, demanding.verifies_name, demanding.session_attrs) == (
        5,
        True,
        "primary",
    )
    assert demanding.url.endswith("?sslmode=verify-full&target_session_attrs=primary")


@pytest.mark.parametrize(
    "query",
    [
        "connect_timeout=0",
        "schema=Homing",
        "schema=a-b",
        "schema=",
        "pool_size=0",
        "pool_size=x",
        "listen=maybe",
    ],
)
def test_a_wrong_option_is_named(query: str) -> None:
    name = query.partition("=")[0]
    with pytest.raises(ConfigError, match=f"store: has a {name}"):
        parse_database_url(f"postgresql://db/app?{query}")


def test_only_names_of_the_schema_are_rewritten() -> None:
    sql = "SELECT homing.now_ms(), nextval('homing.seqs') FROM homing.live WHERE x = 'homing'"
    assert in_schema(sql, "homing") is sql
    assert in_schema(sql, "outbox") == (
        "SELECT outbox.now_ms(), nextval('outbox.seqs') FROM outbox.live WHERE x = 'homing'"
    )


def test_a_batch_without_common_values_has_an_array_per_column() -> None:
    batch = BatchStatement("SELECT * FROM {rows}", {"seq": "bigint", "id": "uuid"})
    assert batch.text == (
        "SELECT * FROM (SELECT a.seq, a.id"
        " FROM unnest($1::text::bigint[], $2::text::uuid[]) AS a(seq, id)) AS u"
    )


def test_values_common_to_all_rows_are_sent_once_and_numbers_as_one_text() -> None:
    batch = BatchStatement(
        "SELECT * FROM {rows}", {"seq": "bigint", "name": "text", "at": "bigint", "is_new": "boolean"}
    )
    rows = [(seq, "a", None if seq else 5, seq > 3) for seq in range(9)]
    shape, parameters = batch.fitted(rows)
    assert shape == (False, True, False, False)
    assert parameters == [
        "{0,1,2,3,4,5,6,7,8}",
        "a",
        "{5" + ",NULL" * 8 + "}",
        "{False,False,False,False,True,True,True,True,True}",
    ]
    assert batch.in_shape(shape, first=4).startswith(
        "SELECT * FROM (SELECT a.seq, $5::text AS name, a.at, a.is_new FROM unnest($4::text::bigint[],"
    )


def test_the_number_of_a_queue_is_compared_with_its_name() -> None:
    batch = BatchStatement("SELECT * FROM {rows}", {"seq": "bigint", "queue": "integer"})
    queues = {7: ("standard.email", "default", "mail"), 9: ("bulk.email", "acme", "mail")}
    shape, parameters = batch.fitted([(1, 7), (2, 9)], queues)
    names = [["standard.email", "bulk.email"], ["default", "acme"], ["mail", "mail"]]
    assert parameters == ["{1,2}", "{7,9}", "{7,9}", *names]
    assert batch.parameters == len(parameters)
    text = batch.in_shape(shape, first=2)
    assert "unnest($4::text::integer[], $5::text[], $6::text[], $7::text[])" in text
    assert "THEN a.queue END AS queue" in text
    assert batch.fitted([(1, 7)])[1][2:] == ["{}", [], [], []]


def test_small_batches_have_one_form_whatever_their_rows_have_in_common() -> None:
    batch = BatchStatement("SELECT * FROM {rows}", {"seq": "bigint", "name": "text"})
    assert batch.fitted([(1, "a")]) == ((False, True), ["{1}", "a"])
    assert batch.fitted([(1, "a"), (2, "a")]) == ((False, False), ["{1,2}", ["a", "a"]])

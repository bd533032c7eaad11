"""URLs with several hosts: hosts that hang, that accept no writes, and the order in which they are tried."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.errors import StoreError, StoreUnavailable
from homing.stores.postgres import PostgresStore, connection
from homing.stores.postgres.address import Host, parse_database_url
from homing.stores.postgres.connection import Database
from homing.stores.postgres.hosts import Hosts, describe_host_error
from homing.stores.postgres.statements import PostgresTransaction
from homing.testing.builders import a_claim_request, a_submission, sent
from support.postgres_cluster import PostgresCluster
from support.postgres_servers import opened, skip_if_missing
from support.private_postgres import PrivatePostgres
from support.tcp_proxy import TcpProxy


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresCluster]:
    with skip_if_missing(), PostgresCluster() as cluster:
        yield cluster


@pytest.fixture
def proxies(postgres_url: str) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """Two ways to the same server."""
    port = parse_database_url(postgres_url).hosts[0].port
    with TcpProxy(port) as one, TcpProxy(port) as two:
        yield one, two


@pytest.fixture
def two_hosts(postgres_url: str, proxies: tuple[TcpProxy, TcpProxy]) -> str:
    return _url(postgres_url, *(proxy.port for proxy in proxies))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions count as slow early, so that the tests are short."""
    monkeypatch.setattr(connection, "_SLOW_S", 0.2)
    monkeypatch.setattr(connection, "_WATCH_INTERVAL_S", 0.05)


def _url(url: str, *ports: int) -> str:
    """Returns a URL of the same database with other hosts, which have a second each to answer."""
    host = str(parse_database_url(url).hosts[0])
    return f"{url.replace(host, ','.join(f'127.0.0.1:{port}' for port in ports))}?connect_timeout=1"


@contextmanager
def _failing_over(cluster: PostgresCluster) -> Iterator[PrivatePostgres]:
    """Returns the primary. Whatever happens to it, the next test has a primary and a standby that work."""
    former = cluster.primary
    try:
        yield former
    finally:
        former.thaw()
        former.unfence()
        if cluster.primary is not former:
            cluster.rebuild_standby()


@asynccontextmanager
async def _hung_host() -> AsyncIterator[tuple[int, list[Any]]]:
    """A server that accepts connections and never answers: its port, and the connections so far."""
    accepted: list[Any] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        await reader.read()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], accepted
    finally:
        server.close()
        for writer in accepted:
            writer.close()


async def _delivers(store: PostgresStore) -> bool:
    """Accepts, claims and settles one notification. Each of them finds out for itself which host works."""
    [answer] = await store.accept([a_submission()])
    claims = (await store.claim(a_claim_request())).claims
    assert [claim.id for claim in claims] == list(answer.ids)
    return (await store.settle([sent(claim) for claim in claims])).applied == answer.ids


# Connecting ------------------------------------------------------------------------------------------------


async def test_a_first_host_that_hangs_is_tried_once_and_the_second_one_is_used(postgres_url: str) -> None:
    port = parse_database_url(postgres_url).hosts[0].port
    async with _hung_host() as (hung, accepted):
        database = Database(parse_database_url(_url(postgres_url, hung, port)), timeout_s=30)
        await database.open()
        try:
            for _ in range(3):
                await database._expire()
                assert await database.look(lambda tx: tx.one("SELECT 1")) == 1
        finally:
            await database.close()
        assert len(accepted) == 1


async def test_the_last_good_host_stays_first_after_the_other_one_is_back(
    two_hosts: str, proxies: tuple[TcpProxy, TcpProxy]
) -> None:
    hosts = Hosts(parse_database_url(two_hosts))
    used = []
    changes: list[Callable[[], None]] = [lambda: None, proxies[0].cut, proxies[0].resume, proxies[1].cut]
    for change in changes:
        change()
        opened = await hosts.connect()
        used.append(opened.origin.host.port)
        opened.terminate()
    one, two = (proxy.port for proxy in proxies)
    assert used == [one, two, two, one]


async def test_if_no_host_works_the_error_names_what_is_wrong_with_each(
    two_hosts: str, proxies: tuple[TcpProxy, TcpProxy]
) -> None:
    proxies[0].cut()
    proxies[1].swallow()
    with pytest.raises(StoreUnavailable) as raised:
        await PostgresStore(two_hosts).open()
    assert f":{proxies[0].port}: Connection refused" in str(raised.value)
    assert f":{proxies[1].port}: does not answer" in str(raised.value)


async def test_the_addresses_of_a_name_are_tried_like_hosts(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections by the name and to one of its two addresses fail."""
    host = parse_database_url(postgres_url).hosts[0]
    address = parse_database_url(postgres_url.replace(str(host), f"db.test:{host.port}"))
    connect_to = Hosts._connect_to

    async def resolve(self: Hosts, named: Host) -> list[Any]:
        return [(2, 1, 6, "", (ip, named.port)) for ip in ("127.0.0.1", "240.0.0.1")]

    async def connect(self: Hosts, to: Host | None, *args: Any, **options: Any) -> Any:
        if to != host:
            raise ConnectionRefusedError
        return await connect_to(self, to, *args, **options)

    monkeypatch.setattr(Hosts, "_resolve", resolve)
    monkeypatch.setattr(Hosts, "_connect_to", connect)
    hosts = Hosts(address)
    for _ in range(2):  # the second time, the address that works is the first one
        opened = await hosts.connect()
        opened.terminate()
        assert opened.origin.host == host
    verifying = Hosts(replace(address, verifies_name=True))  # a certificate has no addresses
    with pytest.raises(ConnectionRefusedError):
        await verifying.connect()


async def test_a_wrong_password_is_a_clear_error_when_the_store_isopened(cluster: PostgresCluster) -> None:
    url = cluster.primary.url.replace("homing_app@", "stranger:wrong@")
    with pytest.raises(StoreError, match="rejected the login; check the user, password and database"):
        await PostgresStore(url).open()


# Hosts that hang -------------------------------------------------------------------------------------------


async def test_work_goes_on_when_the_host_of_the_open_connections_hangs(
    two_hosts: str, proxies: tuple[TcpProxy, TcpProxy]
) -> None:
    async with opened(two_hosts) as store:
        assert await _delivers(store)
        proxies[0].swallow()
        async with asyncio.timeout(20):
            delivered, *_ = await asyncio.gather(_delivers(store), *(store.now_ms() for _ in range(3)))
        assert delivered


async def test_a_suspended_server_is_left_for_the_promoted_one(cluster: PostgresCluster) -> None:
    """In the middle of transactions: each call fails or is done once, and can be repeated."""
    url = cluster.url.partition("?")[0]
    with _failing_over(cluster) as former:
        async with opened(f"{url}?connect_timeout=1") as store:
            assert await _delivers(store)
            cluster.wait_for_standby()
            former.freeze()
            waiting = [asyncio.create_task(store.accept([a_submission()])) for _ in range(20)]
            await asyncio.to_thread(cluster.promote)
            done = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
            assert all(isinstance(one, tuple | StoreUnavailable) for one in done)
            stored = {id for one in done if isinstance(one, tuple) for id in one[0].ids}
            claims = (await store.claim(a_claim_request(slots=50))).claims
            assert stored <= {claim.id for claim in claims}
            await store.settle([sent(claim) for claim in claims])
            assert await _delivers(store)


async def test_a_statement_that_only_takes_long_is_not_given_up(postgres_url: str) -> None:
    database = Database(parse_database_url(postgres_url), timeout_s=30)
    await database.open()
    try:
        assert await database.do(lambda tx: tx.one("SELECT 7 FROM pg_sleep(1)"), timed=False) == 7
    finally:
        await database.close()


async def test_a_host_that_answers_a_transaction_is_kept_even_if_it_answers_no_new_connection(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler whose server sessions are all in use, or a server without free connections."""
    checked: list[object] = []

    async def no(self: Hosts, host: object, **_: object) -> bool:
        checked.append(host)
        await asyncio.sleep(0.3)
        return False

    monkeypatch.setattr(Hosts, "answers", no)
    database = Database(parse_database_url(postgres_url), timeout_s=30)
    await database.open()
    try:

        async def work(tx: PostgresTransaction) -> int:
            for _ in range(12):
                await tx.one("SELECT 1 FROM pg_sleep(0.1)")
            return 7

        assert await database.do(work, timed=False) == 7
        assert checked
    finally:
        await database.close()


def a_certificate_error(problem: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_message = problem
    return error


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), False),
        (OSError("Multiple exceptions: refused, refused"), False),  # a name with several addresses
        (FileNotFoundError(errno.ENOENT, "no Unix socket"), False),
        (PermissionError(errno.EPERM, "dropped by a firewall"), False),
        (socket.gaierror("no name server"), True),
        (ssl.SSLError("expired"), True),
        (OSError(errno.EMFILE, "too many open files"), True),
    ],
)
async def test_which_errors_say_that_a_host_does_not_answer(
    error: OSError, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Hosts, "_connect_to", fail)
    hosts = Hosts(parse_database_url("postgresql://db/app"))
    assert await hosts.answers(Host("db", 5432)) is answers


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "does not answer"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "Connection refused"),
        (FileNotFoundError(errno.ENOENT, "no Unix socket"), "No such file or directory"),
        (OSError("Multiple exceptions: refused, refused"), "Multiple exceptions: refused, refused"),
        (OSError(), "OSError"),
        (socket.gaierror(socket.EAI_NONAME, "no name"), "its name cannot be resolved"),
        (
            ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong"),
            "TLS failed: [SSL: WRONG_VERSION_NUMBER] wrong",
        ),
        (
            a_certificate_error("self-signed certificate"),
            "its certificate is not valid: self-signed certificate",
        ),
    ],
)
def test_the_error_of_a_host_is_described_in_words(error: Exception, text: str) -> None:
    assert describe_host_error(error).startswith(text)


async def test_a_long_migration_is_kept_even_if_the_server_answers_no_new_connection(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no(self: Hosts, host: object, **_: object) -> bool:
        return False

    monkeypatch.setattr(Hosts, "answers", no)
    database = Database(parse_database_url(postgres_url), timeout_s=30)
    await database.open()
    try:

        async def migrate(tx: PostgresTransaction) -> int:
            number: int = await tx.one("SELECT 7 FROM pg_sleep(1)")
            return number

        assert await database.do(migrate, timed=False, may_take_long=True) == 7
        with pytest.raises(StoreUnavailable):
            await database.do(migrate, timed=False)
    finally:
        await database.close()


async def test_a_listener_leaves_a_host_that_hangs(
    two_hosts: str, postgres_url: str, proxies: tuple[TcpProxy, TcpProxy]
) -> None:
    async with opened(two_hosts) as store:
        woken = asyncio.Event()
        listening = asyncio.create_task(store.listen(woken.set, lambda: None))
        try:
            async with asyncio.timeout(20):
                await woken.wait()  # the listener is connected
                proxies[0].swallow()
                woken.clear()
                await store.accept([a_submission()])  # finds out that the host hangs
                await woken.wait()  # the listener is connected to the other host
                woken.clear()
                async with opened(postgres_url) as other:
                    await other.accept([a_submission()])
                await woken.wait()
        finally:
            listening.cancel()


# Hosts that accept no writes -------------------------------------------------------------------------------


async def test_a_fenced_primary_is_left_for_the_promoted_standby(
    cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write finds out, and is made on the new primary without an error."""
    monkeypatch.setattr(connection, "_READ_ONLY_PAUSE_S", 0)
    url = cluster.url.partition("?")[0]
    with _failing_over(cluster) as former:
        async with opened(url) as store:
            assert await _delivers(store)
            cluster.wait_for_standby()
            former.fence()
            await asyncio.to_thread(cluster.promote)
            assert await _delivers(store)


async def test_while_no_host_accepts_writes_the_store_is_unavailable_and_goes_on_afterwards(
    cluster: PostgresCluster,
) -> None:
    url = cluster.url.partition("?")[0]
    async with opened(url) as store:
        cluster.primary.fence()
        try:
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await store.accept([a_submission()])
        finally:
            cluster.primary.unfence()
        assert await _delivers(store)

"""The connection to Redis: passwords, TLS, Sentinel, and what is refused with a sentence."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from homing import ConfigError
from homing.brokers.redis import RedisConnection, RedisFailure, read_address
from support.redis_server import RedisServer, skip_if_no_redis

PASSWORD = "correct-horse-battery"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Path]]:
    """Files of an authority, and of a certificate for 127.0.0.1 with its key."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    authority.cert_pem.write_to_path(files[0])
    issued.cert_chain_pems[0].write_to_path(files[1])
    issued.private_key_pem.write_to_path(files[2])
    yield files
    shutil.rmtree(folder)


def started(*options: str, **more: object) -> RedisServer:
    with skip_if_no_redis():
        return RedisServer(*options, **more)  # type: ignore[arg-type]


async def failure_of(connection: RedisConnection) -> RedisFailure:
    with pytest.raises(RedisFailure) as caught:
        await connection.open()
    return caught.value


async def problem_of(connection: RedisConnection) -> str:
    return str(await failure_of(connection))


async def test_the_password_comes_from_the_environment_or_a_file_and_is_in_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_REDIS_PASSWORD", PASSWORD)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    with started(password=PASSWORD) as server:
        for given in ("env:OUR_REDIS_PASSWORD", f"file:{tmp_path / 'password'}"):
            assert "version" in await RedisConnection(server.url, password=given).diagnose()
        inside = server.url.replace("//", f"//default:{PASSWORD}@")
        assert PASSWORD not in await RedisConnection(inside).diagnose()
        monkeypatch.setenv("OUR_REDIS_URL", inside)
        await RedisConnection("env:OUR_REDIS_URL").diagnose()
        wrong = inside.replace(PASSWORD, "another-secret")
        for connection in (RedisConnection(wrong), RedisConnection(server.url)):
            said = await problem_of(connection)
            assert said == f"Redis at 127.0.0.1:{server.port} rejects the user name or password"


async def test_a_user_with_few_rights_is_enough(redis_server: RedisServer) -> None:
    rights = ("reset", "on", ">pw", "~*", "&*", "+ping", "+client", "+get")
    async with redis_server.client() as client:
        await client.execute_command("ACL", "SETUSER", "few", *rights)
    limited = RedisConnection(redis_server.url, username="few", password="pw")
    assert await limited.diagnose() == f"Redis at 127.0.0.1:{redis_server.port}"
    await limited.open()
    with pytest.raises(RedisFailure, match="does not let this user do it") as caught, limited.translated():
        await limited.client.set("a", "b")
    assert caught.value.advice == "give the user these commands, keys and channels"
    await limited.close()


async def test_tls_is_verified_with_the_given_authority(certificates: tuple[Path, Path, Path]) -> None:
    authority, *tls = certificates
    with started(tls=(tls[0], tls[1])) as server:
        assert server.url.startswith("rediss://")
        await RedisConnection(server.url, ca_file=str(authority)).diagnose()
        by_name = server.url.replace("127.0.0.1", "localhost")
        for connection in (
            RedisConnection(server.url),
            RedisConnection(by_name, ca_file=str(authority)),
        ):
            failure = await failure_of(connection)
            assert "CERTIFICATE_VERIFY_FAILED" in str(failure)
            assert (failure.advice or "").startswith("set ca_file to the certificate of ")


async def test_a_server_that_does_not_exist_is_named(redis_server: RedisServer) -> None:
    redis_server.kill()
    said = await problem_of(RedisConnection(f"redis://u:{PASSWORD}@127.0.0.1:{redis_server.port}"))
    assert said.startswith(f"Redis at 127.0.0.1:{redis_server.port} cannot be reached: ")
    assert PASSWORD not in said


async def test_a_cluster_is_refused_with_a_sentence() -> None:
    with started("--cluster-enabled", "yes") as server:
        failure = await failure_of(RedisConnection(server.url))
    assert str(failure).endswith(
        "is a cluster, which Homing does not support; use a single server, or a master behind Sentinel"
    )
    assert failure.advice == ""


async def test_behind_sentinel_the_new_master_is_used_after_a_failover() -> None:
    with (
        started() as first,
        started("--replicaof", f"127.0.0.1 {first.port}") as second,
        started(sentinel=True) as sentinel,
    ):
        said = await problem_of(RedisConnection(sentinel.url))
        assert said.endswith("is a Sentinel; name its master in the setting sentinel")
        watch_client = sentinel.client()
        await watch_client.execute_command("SENTINEL", "MONITOR", "ours", "127.0.0.1", first.port, 1)
        for option in (("down-after-milliseconds", 300), ("failover-timeout", 2000)):
            await watch_client.execute_command("SENTINEL", "SET", "ours", *option)
        behind = RedisConnection(sentinel.url, sentinel="ours")
        await behind.open()
        assert str(behind) == f"Redis master ours of the Sentinels at 127.0.0.1:{sentinel.port}"
        with behind.translated():
            await behind.client.set("before", 1)
        async with asyncio.timeout(60):
            while not await watch_client.execute_command("SENTINEL", "REPLICAS", "ours"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        first.kill()
        async with asyncio.timeout(60):
            while True:
                try:
                    with behind.translated():
                        await behind.client.set("after", 1)
                    break
                except RedisFailure:
                    await asyncio.sleep(0.05)
        await behind.close()
        after = RedisConnection(second.url)
        await after.open()
        assert await after.client.get("after") == b"1"
        await after.close()
        unknown = await failure_of(RedisConnection(sentinel.url, sentinel="theirs"))
        assert "cannot be reached: No master found" in str(unknown)
        assert (unknown.advice or "").endswith("correct url and sentinel")
        await watch_client.aclose()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://localhost", "must have the form redis://"),
        (f"{PASSWORD}", "must have the form redis://"),
        ("redis://", "has a host or port that cannot be read"),
        ("redis://h:port", "has a host or port that cannot be read"),
        (f"redis://:{PASSWORD}@[::1", "is not a URL"),
        ("redis://a,b/0", "lists several hosts; that needs the setting sentinel"),
        ("redis://h/zero", "must end with the number of a database"),
        ("redis://h/0?ssl_cert_reqs=none", "has options after the database"),
        ("unix:///tmp/redis.sock", "must have the form redis://"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_address(url)
    assert str(caught.value).startswith(f"url: {said}")
    assert PASSWORD not in str(caught.value)


def test_the_parts_of_a_url_are_read() -> None:
    found = read_address("rediss://me:p%40ss@redis.example.org:7000/3")
    assert (found.hosts, found.database, found.tls) == ((("redis.example.org", 7000),), 3, True)
    assert (found.username, found.password) == ("me", "p@ss")
    assert "p@ss" not in str(found)
    assert read_address("redis://[::1]").hosts == (("::1", 6379),)
    assert read_address("redis://a,b:5", sentinel=True).hosts == (("a", 26379), ("b", 5))


def test_settings_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    for options, said in (
        ({"ca_file": "/nowhere/ca.pem", "url": "rediss://h"}, "ca_file: is /nowhere/ca.pem, which cannot"),
        ({"ca_file": str(tmp_path / "text"), "url": "rediss://h"}, "ca_file: is"),
        ({"ca_file": "ca.pem", "url": "redis://h"}, "ca_file: is set, but url does not start with rediss://"),
        ({"sentinel_password": "x"}, "sentinel_password: is set without sentinel"),
        ({"timeout_ms": 0}, "timeout_ms: is out of range"),
        ({"timeout_ms": "2h"}, "timeout_ms: is out of range"),
        ({"password": "env:NO_SUCH_VARIABLE"}, "password: refers to the environment variable"),
    ):
        with pytest.raises(ConfigError, match=said):
            RedisConnection(**options)

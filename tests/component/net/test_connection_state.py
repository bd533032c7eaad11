"""Whether a pooled connection is still open, by the local socket's state."""

from __future__ import annotations

import socket

from homing.net.curl_sockets import PooledConnections


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        return ours, theirs


def port_of(one: socket.socket) -> int:
    port: int = one.getsockname()[1]
    return port


def test_a_connection_closed_by_the_other_side_is_dead_even_with_unread_data() -> None:
    known = PooledConnections()
    ours, theirs = pair()
    with ours:
        assert known.alive(port_of(ours), [ours.fileno()])
        theirs.sendall(b"last words")
        assert known.alive(port_of(ours), [])
        theirs.close()
        assert not known.alive(port_of(ours), [])


def test_an_unknown_connection_counts_as_alive() -> None:
    assert PooledConnections().alive(50_000, [])


def test_of_several_sockets_tried_the_connected_one_counts() -> None:
    known = PooledConnections()
    (ours, theirs), (other, others) = pair(), pair()
    with ours, other, others:
        assert known.alive(port_of(ours), [other.fileno(), 10**6, ours.fileno()])
        theirs.close()
        assert not known.alive(port_of(ours), [])


def test_open_connections_are_remembered_however_many_come_and_go() -> None:
    known = PooledConnections()
    ours, theirs = pair()
    with ours:
        known.alive(port_of(ours), [ours.fileno()])
        for _ in range(3_000):
            with socket.socket() as passing:
                passing.bind(("127.0.0.1", 0))
                known.alive(port_of(passing), [passing.fileno()])
        assert len(vars(known)["_by_port"]) <= 1_024
        theirs.close()
        assert not known.alive(port_of(ours), [])

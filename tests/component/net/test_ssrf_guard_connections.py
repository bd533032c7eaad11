"""The guard against requests into our own network, at the moment of connecting."""

from __future__ import annotations

import asyncio

import pytest

from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from homing.net.ssrf_guard import AddressGuard, parse_networks
from homing.testing import fault_server
from homing.testing.fault_server import FaultServer


def guard(*allowed: str) -> AddressGuard:
    return AddressGuard(networks=parse_networks(allowed, "test"), http=True)


async def ask(transport: CurlTransport, url: str, *, guarded: bool = True) -> HttpResponse | TransportFailure:
    return await transport.send(HttpRequest(url=url, body=b"{}", guarded=guarded), timeout_ms=60_000)


def refused(answer: HttpResponse | TransportFailure) -> bool:
    return isinstance(answer, TransportFailure) and answer.code == "refused_address" and not answer.written


async def test_a_name_that_resolves_to_this_machine_is_not_even_connected_to(server: FaultServer) -> None:
    transport = CurlTransport(guard=guard())
    assert refused(await ask(transport, f"http://localhost:{server.port}/"))
    await transport.close()
    assert server.connections == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254"])
async def test_a_name_is_refused_by_its_addresses(server: FaultServer, address: str) -> None:
    place = f"innocent.example:{server.port}"
    transport = CurlTransport(guard=guard(), resolve={place: f"[{address}]" if ":" in address else address})
    assert refused(await ask(transport, f"http://{place}/"))
    await transport.close()
    assert server.connections == 0


async def test_a_name_that_resolves_differently_the_second_time_is_refused_too(server: FaultServer) -> None:
    place = f"rebind.example:{server.port}"
    resolves = {place: "127.0.0.1"}
    transport = CurlTransport(guard=guard("127.0.0.1/32"), resolve=resolves)
    server.play(fault_server.CLOSE_AFTER_ANSWER)
    assert isinstance(await ask(transport, f"http://{place}/"), HttpResponse)
    resolves[place] = (
        "127.0.0.2"  # the server listens only on 127.0.0.1, but that is not the reason for the refusal
    )
    assert refused(await ask(transport, f"http://{place}/"))
    await transport.close()


async def test_a_guarded_request_does_not_use_a_connection_of_an_unguarded_one(
    server: FaultServer,
) -> None:
    place = f"shared.example:{server.port}"
    transport = CurlTransport(guard=guard(), resolve={place: "127.0.0.1"})
    assert isinstance(await ask(transport, f"http://{place}/", guarded=False), HttpResponse)
    assert refused(await ask(transport, f"http://{place}/"))
    assert isinstance(await ask(transport, f"http://{place}/", guarded=False), HttpResponse)
    await transport.close()
    assert len(server.received) == 2


async def test_a_redirect_into_our_own_network_is_not_followed(server: FaultServer) -> None:
    async with FaultServer() as inside:
        server.play(fault_server.answer(302, headers={"location": f"{inside.url}/secret"}))
        transport = CurlTransport(guard=guard("127.0.0.0/8"))
        answer = await ask(transport, f"{server.url}/")
        await transport.close()
        assert isinstance(answer, HttpResponse)
        assert answer.status == 302
        assert inside.connections == 0


async def test_a_name_with_one_refused_address_fails_like_the_other_address(server: FaultServer) -> None:
    """A private address among public ones is skipped; it does not make the recipient a bad one."""
    place = f"two.example:{server.port}"
    transport = CurlTransport(guard=guard("127.0.0.1/32"), resolve={place: "[::1],127.0.0.1"})
    assert isinstance(await ask(transport, f"http://{place}/"), HttpResponse)
    await server.stop()
    missed = await ask(transport, f"http://{place}/")
    await transport.close()
    assert isinstance(missed, TransportFailure)
    assert missed.code == "connect"


async def test_ports_are_checked_when_connecting_too(server: FaultServer) -> None:
    transport = CurlTransport(
        guard=AddressGuard(networks=guard("127.0.0.1/32").networks, http=True, ports=(443,))
    )
    assert refused(await ask(transport, f"http://127.0.0.1:{server.port}/"))
    await transport.close()
    assert server.connections == 0


async def test_allowed_addresses_work_and_are_pooled(server: FaultServer) -> None:
    transport = CurlTransport(guard=guard("127.0.0.0/8"))
    answers = [await ask(transport, f"http://localhost:{server.port}/") for _ in range(5)]
    await asyncio.gather(*(ask(transport, f"http://localhost:{server.port}/") for _ in range(20)))
    await transport.close()
    assert all(isinstance(answer, HttpResponse) for answer in answers)
    assert len(server.received) == 25
    assert server.connections <= 20

"""Measures requests per second of the HTTP transport against a local sink, compared with bare libcurl.

    python bench/transport.py

The sink runs in a separate process and answers every POST with 200. "Bare" is pycurl's own loop
(`CurlMulti.perform` and `select`) without an event loop, futures or address checks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import pycurl  # type: ignore[import-untyped]
import uvloop

from homing.benching.http_sink import HttpSink
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse

BODY = b'{"type":"order_confirmed","data":{"n":1,"text":"' + b"x" * 400 + b'"}}'


async def ours(url: str, requests: int, at_once: int) -> float:
    """Returns requests per second through the transport."""
    transport = CurlTransport(max_host_connections=at_once)
    left = iter(range(requests))

    async def carry() -> None:
        for _ in left:
            asked = HttpRequest(url=url, body=BODY, headers=(("content-type", "application/json"),))
            assert isinstance(await transport.send(asked, timeout_ms=30_000), HttpResponse)

    began = time.perf_counter()
    await asyncio.gather(*(carry() for _ in range(at_once)))
    took = time.perf_counter() - began
    await transport.close()
    return requests / took


def bare(url: str, requests: int, at_once: int) -> float:
    """Returns requests per second with pycurl alone."""
    multi = pycurl.CurlMulti()
    idle = []
    for _ in range(at_once):
        handle = pycurl.Curl()
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.POSTFIELDS, BODY)
        handle.setopt(pycurl.HTTPHEADER, ["content-type: application/json"])
        handle.setopt(pycurl.WRITEFUNCTION, lambda piece: None)
        idle.append(handle)
    begun = done = 0
    began = time.perf_counter()
    while done < requests:
        while idle and begun < requests:
            multi.add_handle(idle.pop())
            begun += 1
        multi.perform()
        _, ended, failed = multi.info_read()
        assert not failed, failed
        for handle in ended:
            multi.remove_handle(handle)
            idle.append(handle)
            done += 1
        if not ended:
            multi.select(1.0)
    return requests / (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    best = {"bare": 0.0, "asyncio": 0.0, "uvloop": 0.0}
    with HttpSink() as sink:
        for _ in range(given.rounds):  # alternating, so that other load affects all of them
            best["bare"] = max(best["bare"], bare(sink.url, given.requests, given.at_once))
            for name, loop in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
                with asyncio.Runner(loop_factory=loop) as runner:
                    best[name] = max(best[name], runner.run(ours(sink.url, given.requests, given.at_once)))
    for name, rate in best.items():
        print(f"{name:8} {rate:9,.0f} requests/s   {rate / best['bare']:.2f} of bare")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures how soon one tenant's critical notifications start during another tenant's flood.

    python bench/flood.py                                                   (a temporary SQLite file)
    python bench/flood.py sqlite: postgresql://postgres@127.0.0.1/postgres
    python bench/flood.py --bulk 10000 --hanging 200 --probes 21

Tenant a has 100,000 bulk mails, and 990 webhooks to as many hosts that never answer, at a provider that
serves all channels. Then tenant b sends 102 critical notifications, in turn as mail, as SMS and as webhook to
a host that is not known yet, through the same provider. The script ends when all of them have started, or
after two minutes. It exits with 1 if one of them started more than a second after it was accepted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterator

from homing.benching import InvalidMeasurement
from homing.benching.scratch_store import open_scratch_store
from homing.benching.worker_processes import run_async
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Content, OutcomeKind, Recipient
from homing.core.ports.providers import Delivery
from homing.core.send_request import SendRequest
from homing.engine.intake.accept import SendResult
from homing.library import Homing

_BETWEEN_PROBES_S = 0.1

_WARM_UP_S = 5.0
"""Time that the flood has before the first probe, so that every slot it can take is taken."""

_PATIENCE_S = 120.0

_ALLOWED_S = 1.0


class SharedProvider:
    """Takes 20 ms, and never answers a webhook of tenant a."""

    channels = ("email", "sms", "webhook")
    host_slots = 64

    def __init__(self) -> None:
        self.starts: dict[str, float] = {}
        """Notification id of tenant b → Unix time at which its first attempt started."""
        self.flooded = 0
        """Number of attempts for tenant a."""

    async def send(self, delivery: Delivery) -> Outcome:
        """Records the start of the attempt."""
        if delivery.tenant == "b":
            self.starts.setdefault(delivery.notification_id, time.time())
        else:
            self.flooded += 1
        hangs = delivery.channel == "webhook" and delivery.tenant == "a"
        await asyncio.sleep(3600 if hangs else 0.02)
        return Outcome(OutcomeKind.ACCEPTED)

    async def check(self) -> bool:
        """Returns True: the provider works."""
        return True

    async def close(self) -> None:
        """Does nothing: there are no connections."""


def flood(bulk: int, hanging: int) -> Iterator[SendRequest]:
    """Yields the requests of tenant a."""
    content = Content(subject="News", body="There is news.")
    for n in range(bulk):
        yield SendRequest(
            recipient=Recipient(email=f"p{n}@example.org"), channel="email", bulk=True, content=content
        )
    for n in range(hanging):
        url = f"https://host{n}.example.org/hook"
        yield SendRequest(recipient=Recipient(url=url), channel="webhook", content=content)


async def measure(server: str, options: argparse.Namespace) -> tuple[dict[str, list[float]], float]:
    """Returns the lateness of the probes in seconds, by channel, and the rate of the flood beside them."""
    provider = SharedProvider()
    async with (
        open_scratch_store(server) as scratch,
        Homing(scratch.store, providers={"shared": provider}) as homing,
    ):
        async for result in homing.of("a").submit_many(flood(options.bulk, options.hanging)):
            if not isinstance(result, SendResult):
                raise InvalidMeasurement(f"a valid request was rejected: {result}")
        await scratch.rested()
        homing.start_worker()
        await asyncio.sleep(_WARM_UP_S)
        flooded, began = provider.flooded, time.time()
        accepted: dict[str, tuple[str, float]] = {}
        for n in range(options.probes):
            channel = ("sms", "email", "webhook")[n % 3]
            url = f"https://new{n}.example.org/hook"
            request = SendRequest(
                recipient=Recipient(phone="+491701234567", email="ada@example.org", url=url),
                channel=channel,
                priority="critical",
                content=Content(subject="Fire", body="It burns."),
            )
            sent = await homing.of("b").submit(request)
            accepted[sent.notification_ids[0]] = (channel, time.time())
            await asyncio.sleep(_BETWEEN_PROBES_S)
        rate = (provider.flooded - flooded) / (time.time() - began)
        deadline = time.time() + _PATIENCE_S
        while len(provider.starts) < options.probes and time.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await homing.stop_worker(hard=True)
    late: dict[str, list[float]] = {"sms": [], "email": [], "webhook": []}
    for id, (channel, at) in accepted.items():
        late[channel].append(max(0.0, provider.starts.get(id, deadline) - at))
    return late, rate


async def main(options: argparse.Namespace) -> bool:
    """Measures each store and prints a table. Returns True if every probe started in time."""
    print(
        f"{options.bulk:,} bulk mails and {options.hanging} webhooks to hanging hosts of tenant a,"
        f" {options.probes} critical probes of tenant b\n"
    )
    print(f"{'store':<12}{'probes':<18}{'median':>10}{'latest':>10}{'late':>6}{'flood':>12}")
    in_time = True
    for server in options.servers:
        found, rate = await measure(server, options)
        name = "postgresql" if server.startswith("postgres") else "sqlite"
        titles = {"sms": "another channel", "email": "same channel", "webhook": "new host"}
        for channel, title in titles.items():
            late = sorted(found[channel])
            number = sum(value > _ALLOWED_S for value in late)
            in_time = in_time and not number
            median, latest = late[len(late) // 2] * 1000, late[-1] * 1000
            print(
                f"{name:<12}{title:<18}{median:>7.0f} ms{latest:>7.0f} ms{number:>6}{rate:>10.0f}/s",
                flush=True,
            )
    return in_time


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", nargs="*", default=["sqlite:"], help="sqlite: or a PostgreSQL URL")
    parser.add_argument("--bulk", type=int, default=100_000)
    parser.add_argument("--hanging", type=int, default=990)
    parser.add_argument("--probes", type=int, default=102)
    logging.getLogger("homing").setLevel(logging.CRITICAL)
    sys.exit(0 if run_async(main(parser.parse_args())) else 1)

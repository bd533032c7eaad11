"""Starts the servers that a benchmark needs, as the tests start theirs, and runs a command with them.

    python bench/with_servers.py postgres redis rabbitmq -- homing bench sqlite: {postgres}

A server of your own is used instead if BENCH_POSTGRES, BENCH_REDIS, BENCH_MONGO or BENCH_AMQP has its
URL. In the command, `{postgres}`, `{redis}`, `{mongo}` and `{rabbitmq}` stand for the URLs, and its
environment has them in these variables. The servers are empty, write to disk as in production, and
end with this program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

SERVERS = {
    "postgres": ("BENCH_POSTGRES", "support.private_postgres", "PrivatePostgres"),
    "redis": ("BENCH_REDIS", "support.redis_server", "RedisServer"),
    "mongo": ("BENCH_MONGO", "support.mongo_server", "PrivateMongo"),
    "rabbitmq": ("BENCH_AMQP", "support.rabbitmq_server", "PrivateRabbitMQ"),
}
"""Name of a server → variable with its URL, and the class of the tests that starts one."""


@contextmanager
def running(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Starts the servers with these names that the environment does not name. Yields name → URL."""
    urls: dict[str, str] = {}
    with ExitStack() as stack:
        for name in names:
            variable, module, kind = SERVERS[name]
            if not (url := os.environ.get(variable)):
                print(f"starting {name}", file=sys.stderr, flush=True)
                url = stack.enter_context(getattr(import_module(module), kind)()).url
            urls[name] = url
        yield urls


def main(arguments: Sequence[str]) -> int:
    if "--" not in arguments or not set(names := arguments[: arguments.index("--")]) <= SERVERS.keys():
        print(__doc__, file=sys.stderr)
        return 2
    with running(names) as urls:
        command = [_filled(word, urls) for word in arguments[arguments.index("--") + 1 :]]
        named = {SERVERS[name][0]: url for name, url in urls.items()}
        return subprocess.run(command, env={**os.environ, **named}, check=False).returncode


def _filled(word: str, urls: dict[str, str]) -> str:
    for name, url in urls.items():
        word = word.replace(f"{{{name}}}", url)
    return word


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The garbage collector of a process that goes on and has much under way at once."""

from __future__ import annotations

import gc

_YOUNG = 50_000


def calm_collector() -> None:
    """To be called once all is open: what is there now stays, and is not looked at again and again.

    By default Python looks at the young objects after every 700 that were made and not yet dropped. A process
    with hundreds of requests and attempts under way makes that many within milliseconds, nearly all of them
    alive: it looks in vain. Fewer and larger looks find the same.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 100)

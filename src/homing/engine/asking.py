"""What a recipient directory says of claims. It may be a user's own, so its answer is untrusted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from homing.core.decide import Facts
from homing.core.model import Claim
from homing.core.ports import Directory
from homing.core.redact import redact

log = logging.getLogger("homing.deliverer")

_HOOK_S = 10
_HOOK_PAUSE_MS = 5_000
_LONGEST_POSTPONE_MS = 366 * 86_400_000


async def facts_of(directory: Directory, claims: Sequence[Claim]) -> Mapping[str, Facts]:
    """What the directory says. Where it fails, hangs or answers nonsense, nobody is told anything yet."""
    try:
        async with asyncio.timeout(_HOOK_S):
            said: object = await directory.facts(claims)
        if isinstance(said, Mapping):
            return _sound(claims, said)
        error: object = f"it answered with {type(said).__name__}"
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        error = "it broke itself off"
    except Exception as raised:  # a user's hook may fail in any way
        error = str(raised) or "no answer"
    log.warning("recipient directory failed, %d notifications wait: %s", len(claims), redact(str(error)))
    return dict.fromkeys((claim.id for claim in claims), Facts(postpone_ms=_HOOK_PAUSE_MS))


def _sound(claims: Sequence[Claim], said: Mapping[Any, Any]) -> dict[str, Facts]:
    """What makes sense of the facts; what does not has its notification wait, and no other."""
    if not said:
        return {}
    facts = {claim.id: said[claim.id] for claim in claims if claim.id in said}
    senseless = [id for id, one in facts.items() if not _makes_sense(one)]
    if senseless:
        log.warning("recipient directory answered with nonsense, %d notifications wait", len(senseless))
        facts.update(dict.fromkeys(senseless, Facts(postpone_ms=_HOOK_PAUSE_MS)))
    return facts


def _makes_sense(facts: object) -> bool:
    """Whether a user's hook answered with facts, all of the right kind and within reason."""
    if not isinstance(facts, Facts):
        return False
    try:
        msgspec.convert(msgspec.to_builtins(facts), Facts)
    except (msgspec.ValidationError, TypeError, OverflowError):
        return False
    return 0 <= facts.postpone_ms <= _LONGEST_POSTPONE_MS

"""Asks the recipient directory for facts about claims.

The directory may be user code, so it is not trusted.
"""

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

_TIMEOUT_S = 10
_POSTPONE_MS = 5_000
_MAX_POSTPONE_MS = 366 * 86_400_000


async def facts_of(directory: Directory, claims: Sequence[Claim]) -> Mapping[str, Facts]:
    """Returns the directory's facts by notification id.

    If the directory fails, hangs or returns invalid facts, the notifications are postponed.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            returned: object = await directory.facts(claims)
        if isinstance(returned, Mapping):
            return _valid_facts(claims, returned)
        error: object = f"it returned {type(returned).__name__} instead of a mapping"
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        error = "it cancelled itself"
    except Exception as raised:  # user code may raise anything
        error = str(raised) or "no answer"
    log.warning(
        "the recipient directory failed, %d notifications are postponed: %s", len(claims), redact(str(error))
    )
    return dict.fromkeys((claim.id for claim in claims), Facts(postpone_ms=_POSTPONE_MS))


def _valid_facts(claims: Sequence[Claim], returned: Mapping[Any, Any]) -> dict[str, Facts]:
    """Returns the valid facts.

    A notification with invalid facts is postponed; the others are not affected.
    """
    if not returned:
        return {}
    facts = {claim.id: returned[claim.id] for claim in claims if claim.id in returned}
    invalid = [id for id, one in facts.items() if not _is_valid(one)]
    if invalid:
        log.warning(
            "the recipient directory returned invalid facts, %d notifications are postponed", len(invalid)
        )
        facts.update(dict.fromkeys(invalid, Facts(postpone_ms=_POSTPONE_MS)))
    return facts


def _is_valid(facts: object) -> bool:
    """Returns True if the directory returned `Facts` whose fields have valid types and values."""
    if not isinstance(facts, Facts):
        return False
    try:
        msgspec.convert(msgspec.to_builtins(facts), Facts)
    except (msgspec.ValidationError, TypeError, OverflowError):
        return False
    return 0 <= facts.postpone_ms <= _MAX_POSTPONE_MS

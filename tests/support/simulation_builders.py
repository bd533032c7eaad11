"""Builders of what the simulator's checks expect."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from simulation.shadow_state import ShadowState

from homing.core.lifecycle.claims import Claim
from homing.core.notifications import Status


def shadow_of(claim: Claim, **changes: Any) -> ShadowState:
    """Returns the expected state of a claimed notification, with these fields changed."""
    shadow = ShadowState(
        id=claim.id,
        tenant=claim.tenant,
        batch_id=claim.batch_id,
        mode=claim.mode,
        channel=claim.channel,
        type=claim.type,
        category=claim.category,
        origin=claim.origin,
        priority=claim.priority,
        address=claim.address,
        recipient_id=None,
        digest=b"",
        status=Status.SENDING,
        pinned=claim.pinned,
        provider=claim.provider,
        expires_at=claim.expires_at,
        aged_from=claim.aged_from,
        max_age_ms=10**9,
        attempts=1,
    )
    return replace(shadow, **changes)

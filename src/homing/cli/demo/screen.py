"""The demo's output: lines of text and, on a terminal, a footer with the current state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from homing.cli.common.masking import mask_text
from homing.cli.common.screen import STYLES, Screen, styled

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from homing.core.lifecycle.outcomes import Settlement


_BAR_CELLS = 40

_SHOWN = ("sent", "sending", "retrying", "pending", "failed")


class DemoScreen:
    """Prints the demo's events. Attempts that succeed within 0.3 s share a line."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._began = time.monotonic()
        self._live: Live | None = None
        self._numbers: dict[str, int] = {}
        self._taken: dict[str, list[int]] = {}
        self._lost: list[int] = []
        self._collected_since_s = self._began
        self.phases: dict[str, str] = {}
        self.counts: Mapping[str, int] = {}

    def __enter__(self) -> Self:
        if self.screen.live:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._state,
                console=self.screen.console,
                refresh_per_second=10,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    async def pause(self, seconds: float) -> None:
        """Pauses, so that a reader can follow. Does nothing if the output is not a terminal."""
        if self.screen.live:
            await asyncio.sleep(seconds)

    def act(self, number: int, title: str) -> None:
        """Prints the heading of one part."""
        self.flush()
        self.screen.line("")
        self.screen.line(styled(f" {number} ", "reverse bold"), styled(title, "bold"))

    def say(self, *parts: Any) -> None:
        """Prints one line with its time."""
        self.flush()
        self._line(*parts)

    def accepted(self, ids: tuple[str, ...]) -> None:
        """Numbers the notifications, because numbers are easier to follow than ids."""
        for id in ids:
            self._numbers[id] = len(self._numbers) + 1

    def number(self, id: str) -> str:
        return f"#{self._numbers.get(id, 0)}"

    def settled(self, settlement: Settlement, applied: bool) -> None:
        """Prints a failed attempt, or collects a successful or lost one for `flush`."""
        attempt = settlement.attempt
        if not applied or attempt is None:
            return
        number = self._numbers.get(settlement.id, 0)
        if attempt.outcome.value in ("accepted", "lost"):
            if not self._taken and not self._lost:
                self._collected_since_s = time.monotonic()
            lost = attempt.outcome.value == "lost"
            (self._lost if lost else self._taken.setdefault(attempt.provider, [])).append(number)
            return
        number_text = self.number(settlement.id)
        if settlement.status.value == "retrying":
            if settlement.free_move:
                then = f"goes to {settlement.provider} at once"
            else:
                then = f"retry in {settlement.delay_ms / 1000:.1f} s at {settlement.provider}"
            mark = styled("✗", "yellow")
        else:
            then, mark = f"dead letter ({settlement.reason})", styled("✗", "red")
        error = mask_text(attempt.error) or ""
        self.say(mark, f"{number_text} {attempt.provider}: {attempt.error_code} {error} – {then}")

    def phase(self, provider: str, phase: str) -> None:
        """Stores a breaker's phase, and prints a line if it has changed."""
        before = self.phases.get(provider, "closed")
        self.phases[provider] = phase
        if phase == before:
            return
        change = {
            "open": f"{provider}'s breaker opens: it gets no more notifications",
            "half_open": f"{provider}'s breaker is half open: one trial is sent",
            "closed": f"{provider}'s breaker closes: back in service, with traffic ramping up",
        }[phase]
        self.say(styled("◆", STYLES[phase]), styled(change, STYLES[phase]))

    def flush(self, older_than_s: float = 0) -> None:
        """Prints the collected attempts, unless the first is newer than `older_than_s` seconds."""
        if time.monotonic() - self._collected_since_s < older_than_s:
            return
        lost, self._lost = self._lost, []
        taken, self._taken = self._taken, {}
        if lost:
            self._line(
                styled("✗", "magenta"), f"lost with their worker: {_listed(lost)} – each is retried soon"
            )
        for provider, numbers in taken.items():
            self._line(styled("✓", "green"), f"{provider} sent {_listed(numbers)}")

    def _line(self, *parts: Any) -> None:
        at = f"{time.monotonic() - self._began:5.1f}s"
        self.screen.line(styled(at, "bright_black"), *parts)

    def _state(self) -> Text:
        """Builds the footer: breaker phases, then the number of notifications per status."""
        from rich.text import Text

        footer = Text("\n ")
        for provider, phase in self.phases.items():
            footer.append("● ", style=STYLES[phase]).append(f"{provider} {phase.replace('_', ' ')}   ")
        total = max(1, sum(self.counts.values()))
        for status in _SHOWN:
            cells = round(_BAR_CELLS * self.counts.get(status, 0) / total)
            footer.append("█" * cells, style=STYLES[status])
        for status in _SHOWN:
            if count := self.counts.get(status, 0):
                footer.append(f"  {status} {count}", style=STYLES[status])
        return footer


def _listed(numbers: list[int]) -> str:
    return " ".join(f"#{number}" for number in sorted(numbers))

"""Retries: when a failed message is handled again, and when it becomes a dead letter."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

CRASHES: Final = 3
"""Deliveries beyond the retries before a message whose handler kills its process becomes a dead letter."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and when a handler is called again.

    Attributes:
        immediate: attempts that follow at once, in the same process, while the message is locked.
        delayed: seconds of pauses before further deliveries, which the broker counts: they survive a crash,
            and each may be handled by another process. Every delivery has its immediate attempts.
        never: exceptions that are not retried; the message becomes a dead letter at once.
    """

    immediate: int = 0
    delayed: Sequence[float] = ()
    never: tuple[type[BaseException], ...] = field(default=())

    def __post_init__(self) -> None:
        if self.immediate < 0:
            raise ValueError(f"expected 0 immediate attempts or more, found {self.immediate}")
        if any(pause < 0 for pause in self.delayed):
            raise ValueError(f"expected pauses of 0 seconds or more, found {list(self.delayed)}")
        object.__setattr__(self, "delayed", tuple(self.delayed))

    def pause_s(self, error: BaseException, delivery_count: int) -> float | None:
        """Seconds before the next delivery; None after the last one.

        Args:
            delivery_count: failed deliveries before this one.
        """
        if isinstance(error, self.never) or delivery_count >= len(self.delayed):
            return None
        return self.delayed[delivery_count]

    @property
    def max_delivery_count(self) -> int:
        """Deliveries after which the broker makes an unsettled message a dead letter."""
        return len(self.delayed) + 1 + CRASHES


NO_RETRY: Final = Retry()

"""The wire between a frontend's ShardPeer and a shard: messages wait until the test moves them."""

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from lightrail.wire.sockets.wiring import Wiring


def wiring_of(connect: Callable[..., object]) -> Wiring:
    """A Wiring whose sockets are made by the test."""
    return cast(Wiring, SimpleNamespace(connect=connect))


class Wire:
    """Takes the place of the frontend's socket: messages wait in both directions until they are moved."""

    def __init__(
        self,
        address: str,
        receive: Callable[[list[bytes]], None],
        after: Any,
        **_: Any,
    ) -> None:
        self.receive = receive
        self.up = True
        self.to_shard: deque[list[bytes]] = deque()
        self.to_frontend: deque[list[bytes]] = deque()

    def send(self, parts: Sequence[bytes]) -> bool:
        if self.up:
            self.to_shard.append(list(parts))
        return self.up

    def close(self, linger_ms: int = 0) -> None:
        return


class Timers:
    """A loop whose timers ring when the test wants."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_later(self, wait_s: float, call: Any) -> Any:
        calls = self.calls
        calls.append(call)

        class Handle:
            def cancel(self) -> None:
                if call in calls:
                    calls.remove(call)

        return Handle()

    def ring(self) -> None:
        calls, self.calls[:] = list(self.calls), []
        for call in calls:
            call()

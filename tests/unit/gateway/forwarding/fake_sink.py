"""A sink that keeps what it is sent, and refuses it or answers late where a test wants that."""

import asyncio
from collections.abc import Callable, Sequence

from lightrail.gateway.forwarding.sink import NotSentError
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.gateway.messages.sending import Carried


class FakeSink:
    """Keeps what it is sent, by name; `refuse` says why a letter is not taken."""

    def __init__(self) -> None:
        self.letters: dict[str, list[Outgoing]] = {}
        self.refuse: Callable[[str, Outgoing], NotSentError | None] = lambda _name, _letter: None
        self.gate: asyncio.Event | None = None
        """While it is there and not set, answers wait; the letters are stored all the same."""
        self.waiting = 0
        """Letters that were sent while there was a gate."""

    async def send(self, name: str, letters: Sequence[Outgoing]) -> list[NotSentError | None]:
        answers = [self.refuse(name, letter) for letter in letters]
        taken = [letter for letter, problem in zip(letters, answers, strict=True) if problem is None]
        self.letters.setdefault(name, []).extend(taken)
        if self.gate is not None:
            self.waiting += len(letters)
            await self.gate.wait()
        return answers

    async def set_aside(self, source: str, message: Outgoing) -> NotSentError | None:
        (problem,) = await self.send(f"{source}/$transfer/$dlq", [message])
        return problem

    async def route(
        self, router: str, message: Outgoing, carried: Carried, came_ms: int
    ) -> NotSentError | None:
        (problem,) = await self.send(router, [message])
        return problem

    def messages(self, name: str) -> list[bytes]:
        return [letter.message for letter in self.letters.get(name, [])]

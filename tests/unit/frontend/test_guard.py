"""The guard: links lose a name that was deleted, and keep one that the coordinator only lost for a while."""

import asyncio
from typing import Any

from lightrail.cluster.coordinator import Write
from lightrail.cluster.history import begin
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend.guard import Guard
from lightrail.model.policy import QUEUE
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import NAMES, Name, Right
from lightrail.namespace.rights import ANYBODY, Caller


class Connection:
    """Of somebody who may do everything."""

    def caller_for(self, _: str) -> Caller:
        return ANYBODY


def test_a_name_that_was_put_back_is_the_same_for_its_links_and_one_that_was_made_again_is_not() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        directory = Directory(coordinator)

        async def make_again() -> None:
            await coordinator.write([Write(NAMES + "q", None)])
            await coordinator.write([Write(NAMES + "q", Name("q", QUEUE).to_value())])

        await make_again()
        directory.refresh()
        guard = Guard(directory, lambda _: None)
        connection: Any = Connection()
        lost: list[str] = []
        guard.hold(connection, Right.SEND, directory.get("q"), lambda _, why: lost.append(why))

        await make_again()
        await begin(coordinator)
        directory.refresh()
        assert lost == []
        # In the new history it is as ever.
        await make_again()
        directory.refresh()
        assert lost == ["q was deleted"]

    asyncio.run(run())

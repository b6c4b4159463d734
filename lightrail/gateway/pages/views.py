"""Views: the port through which pages see the broker; the gateway's own requests are behind it."""

from typing import Any, Protocol

from lightrail.namespace.rights import Caller


class Views(Protocol):
    """What pages ask for; every answer has the shape of the JSON request of the same name.

    Raises, each: `Forbidden` without the right, `Missing` for what is not there, `Refused`, and
    `ShardDownError` when it can't be known now.
    """

    async def status(self, caller: Caller) -> dict[str, Any]:
        """As GET /!status."""

    async def queues(self, caller: Caller, prefix: str, after: str, limit: int) -> dict[str, Any]:
        """As GET /!queues."""

    async def queue(self, caller: Caller, name: str) -> dict[str, Any]:
        """As GET /NAME/!figures: with `consumers_list`, each with label, credit, held and since."""

    async def messages(self, caller: Caller, name: str, first: int, count: int) -> list[dict[str, Any]]:
        """As GET /NAME/!messages."""

    async def purge(self, caller: Caller, name: str) -> int:
        """As DELETE /NAME/!messages; the number that went."""

    async def redrive(self, caller: Caller, name: str) -> dict[str, Any]:
        """As POST /!transfers with mode redrive; the transfer."""

    async def connections(self, caller: Caller) -> list[dict[str, Any]]:
        """As GET /!connections."""

    async def connection(self, caller: Caller, id: str) -> dict[str, Any]:
        """As GET /!connections/ID."""

    async def close_connection(self, caller: Caller, id: str) -> None:
        """As DELETE /!connections/ID."""

"""Views: the port through which pages read and change the broker."""

from typing import Any, Protocol

from lightrail.namespace.rights import Caller


class Views(Protocol):
    """The data and actions of pages; every answer has the shape of the JSON request of the same name.

    Each raises ForbiddenError, MissingError, ShardRefusedError, and ShardDownError without an answer.
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
        """As DELETE /NAME/!messages; the number of messages removed."""

    async def redrive(self, caller: Caller, name: str) -> dict[str, Any]:
        """As POST /!transfers with mode redrive; the transfer."""

    async def connections(self, caller: Caller) -> list[dict[str, Any]]:
        """As GET /!connections."""

    async def connection(self, caller: Caller, id: str) -> dict[str, Any]:
        """As GET /!connections/ID."""

    async def close_connection(self, caller: Caller, id: str) -> None:
        """As DELETE /!connections/ID."""

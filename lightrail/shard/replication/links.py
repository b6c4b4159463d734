"""Links: the sockets between the members of a shard.

Every member listens at one address (`MembersSocket`), where the others attach while it owns, and ask how far
it reaches. A member that follows has a connection to the owner (`OwnerLink`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lightrail.cluster.replica_sets import MEMBERS_MAX
from lightrail.shard.replicas.candidate import ENDED_NS, LOOK_NS
from lightrail.wire import looking
from lightrail.wire.frames import WireError
from lightrail.wire.replication import MemberMessage, MessageKind, Reach, decode, is_look
from lightrail.wire.sockets.wiring import Wiring

if TYPE_CHECKING:
    from lightrail.model.settings import Settings
    from lightrail.shard.replication.stream import Stream

LEAVE_MS: Final = 100
"""How long a member that ends tries to say so to the owner."""
MESSAGES_AHEAD: Final[int] = 1_000
"""Messages of one connection that wait to be received."""
MESSAGES_A_TURN: Final = 256
"""Messages of other members that are read before the loop continues with its other work."""

log = logging.getLogger("lightrail.shard.replication.links")


def address_for_members(settings: "Settings") -> str:
    """Where a member listens: a port that the system chooses, on the host of the wire."""
    return f"tcp://{settings.wire.host}:0"


class MembersSocket:
    """The listening socket of one member.

    Args:
        receive: called with the identity of a connection and the parts of its message.

    Raises OSError: the address can't be bound.
    """

    def __init__(self, wiring: Wiring, address: str, receive: Callable[[bytes, list[bytes]], None]) -> None:
        # The stream bounds what is kept for a member.
        self._socket = wiring.listen(address, receive, receive_max=MESSAGES_AHEAD, per_turn=MESSAGES_A_TURN)
        self.address = self._socket.address

    def send(self, identity: bytes, parts: Sequence[bytes]) -> bool:
        """Sends a message; False if the connection is lost."""
        return self._socket.send(identity, parts)

    def close(self) -> None:
        """Sends what was sent for half a second at most."""
        self._socket.close(linger_ms=500)


class Inbox:
    """What other members send to this one: looks, and what is for the owner's stream, once there is one.

    Args:
        answer: answers a LOOK that a connection has sent.
        refuse: answers a connection that this member does not own the shard.
    """

    def __init__(
        self, answer: Callable[[bytes, MemberMessage], None], refuse: Callable[[bytes], None]
    ) -> None:
        self.stream: Stream | None = None
        """To the other members, while this one owns."""
        self.keeps_attaches = False
        """Whether this member takes over: others may attach before it has recovered its journal."""
        self._attaches: dict[bytes, list[bytes]] = {}
        """What they have sent then, by their connections."""
        self._answer = answer
        self._refuse = refuse

    def receive(self, identity: bytes, parts: list[bytes]) -> None:
        """A message of a connection."""
        if self.stream is not None and not is_look(parts):
            self.stream.receive(identity, parts)
            return
        try:
            kind = decode(parts[:1]).kind
        except WireError as error:
            log.error("a message of a member can't be read: %s", error)
            return
        if kind is MessageKind.LOOK:
            self._answer(identity, decode(parts))
        elif self.keeps_attaches and kind is MessageKind.ATTACH and len(self._attaches) < MEMBERS_MAX:
            self._attaches[identity] = parts
        else:
            self._refuse(identity)

    def begin(self, stream: "Stream") -> None:
        """This member owns: those that have attached already are answered first."""
        self.stream = stream
        for identity, parts in self._attaches.items():
            stream.receive(identity, parts)
        self._attaches.clear()


class OwnerLink:
    """The connection of a member to another one: to the owner, or to ask how far it reaches."""

    def __init__(self, wiring: Wiring, address: str, receive: Callable[[list[bytes]], None]) -> None:
        self.address: Final = address
        self._socket = wiring.connect(address, receive, receive_max=MESSAGES_AHEAD)

    def send(self, parts: Sequence[bytes]) -> bool:
        """Sends a message; False if the other end does not listen."""
        return self._socket.send(parts)

    @property
    def is_refused(self) -> bool:
        """Whether there was a connection, and there is none now: the process at the other end has ended, or
        the network reset the connection. A hint, and no proof."""
        return self._socket.was_open and not self._socket.is_open

    def close(self, linger_ms: int = 0) -> None:
        """What was sent has `linger_ms` to leave; the rest is dropped."""
        self._socket.close(linger_ms)


async def look_around(
    loop: asyncio.AbstractEventLoop,
    wiring: Wiring,
    addresses: Mapping[str, str],
    epoch: int,
    ended: str = "",
) -> list[Reach]:
    """How far the members at these addresses reach that answer within LOOK_NS; see wire/looking.py.

    Args:
        ended: a member whose process has probably ended: it gets ENDED_NS.
    """
    found = await looking.look_around(
        loop,
        wiring,
        addresses,
        epoch,
        lambda missing: (ENDED_NS if missing <= {ended} else LOOK_NS) / 1e9,
    )
    return [*found.values()]

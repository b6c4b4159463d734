"""A receiving link with its credit and whole messages, however many reads of the engine they need."""

from typing import Any, Final

from lightrail.bench.engine import ACCEPTED, Connection, ffi, lib
from lightrail.bench.plan import Options

NO_LENGTH: Final = -2
"""Stands for an unknown length: no read of the engine has this size."""
ROOM_BYTES: Final = 65_536
"""Bytes of the buffer beyond a body."""


class Incoming:
    """The link; messages are accepted when they are read."""

    __slots__ = (
        "buffer",
        "capacity",
        "connection",
        "credit",
        "length",
        "link",
        "owed",
        "pieces",
        "settled",
        "start",
    )

    def __init__(self, connection: Connection, link: Any, options: Options, credit: int) -> None:
        self.connection = connection
        self.link = link
        self.settled = options.pre_settled
        self.credit = credit
        self.capacity = options.size + ROOM_BYTES
        self.buffer = bytearray(self.capacity)
        self.start: Any = ffi.from_buffer("char[]", self.buffer)
        self.length = NO_LENGTH
        """Bytes of a message of the known form; NO_LENGTH: unknown, or a message has arrived in part."""
        self.pieces = bytearray()
        """The part of a message that has arrived."""
        self.owed = 0
        """Messages since the last grant of credit."""

    def open_credit(self) -> None:
        """Grant the first credit."""
        lib.pn_link_flow(self.link, self.credit)

    def give_back(self, taken: int) -> None:
        """Grant credit for the messages read, once they are half of the credit."""
        self.owed += taken
        if self.owed * 2 >= self.credit:
            lib.pn_link_flow(self.link, self.owed)
            self.owed = 0

    def gather(self, size: int) -> bytearray | None:
        """Complete the message of which ``size`` bytes were just read; None when there is none."""
        link = self.link
        while True:
            handle = lib.pn_link_current(link)
            if not handle:
                return None
            if size > 0:
                self.pieces += self.buffer[:size]
                size = lib.pn_link_recv(link, self.start, self.capacity)
                continue
            if size == 0 or lib.pn_delivery_partial(handle):
                self.length = NO_LENGTH
                return None
            break
        whole, self.pieces = self.pieces, bytearray()
        aborted = size != lib.PN_EOS
        if not self.settled and not aborted:
            lib.pn_delivery_update(handle, ACCEPTED)
        lib.pn_delivery_settle(handle)
        return bytearray() if aborted else whole

"""Delivery marks: sequences below which messages of a queue may have been delivered, also after a crash.

A shard that is killed loses the list of its unsettled deliveries, and settlements that no commit had yet.
These messages are delivered again, which their delivery-count has to show (messaging 3.2.1). So the mark of
each queue is stored in a small file beside the journal (docs/formats/delivery-marks.md). A separate thread
writes marks somewhat ahead, so that most deliveries need no write and do not wait. Deliveries beyond the mark
in the file are sent when the file has their mark. ADR 28 has the reasons why it is no record of the journal.
"""

import asyncio
import logging
import os
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from lightrail.shard.journal.commit import Worker
from lightrail.shard.journal.store import NewerFormatError, StoreRefusedError

DELIVERY_MARK_WAIT_MS: Final[int] = 1_000
"""How long deliveries beyond the mark in the file wait for a new mark; if the disk hangs, they are sent
anyway."""

log = logging.getLogger("lightrail.shard.queues.delivery_marks")

FILE: Final = "delivery-marks"
TOKEN_BYTES: Final = 16
EVERYTHING: Final = 1 << 62
"""The mark above every sequence, used if it is unknown which messages were delivered."""
HEAD: Final = struct.Struct("<8sHH16s16s")
"""Magic, version, state, boot of the machine, token of the start; also of the file of locks."""
_MAGIC: Final = b"LRDMARKS"
_VERSION: Final = 1
_OPEN: Final = 0
_CLOSED_WITHOUT: Final = 1
"""State of a file that an earlier version closed in order: its marks do not count."""
_CLOSED: Final = 2
"""The shard was stopped in order: the marks are exact, and were synced."""
_SLOTS_AT: Final = 64
_SLOT: Final = struct.Struct("<Q")
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


@dataclass(eq=False, repr=False)
class DeliveryMarks:
    """Marks in memory, for a store in memory and for tests."""

    _former: dict[int, int] = field(default_factory=dict)
    _former_last: int = -1
    """The highest number of a queue in `_former`."""
    _unknown: int = 0
    """The mark of queues that are not in `_former`."""
    is_exact: bool = False
    """Whether `before` returns marks of an orderly end, which are not ahead of the deliveries."""
    is_after_kill: bool = False
    """Whether the former process did not end in order: it may have delivered what it had not stored."""
    _noted: dict[int, int] = field(default_factory=dict)

    def before(self, queue: int) -> int:
        """The sequence below which messages may have been delivered before the start.

        Args:
            queue: number of the queue in the journal.
        """
        return self._former.get(queue, self._unknown)

    def lost_one(self, queue: int) -> bool:
        """Whether a queue that the start did not find may have delivered messages under this number."""
        return self.is_after_kill and (self._unknown > 0 or queue <= self._former_last)

    def note(self, queue: int, mark: int) -> None:
        """Sets the mark of a queue; a lower one than before replaces what was ahead of the deliveries."""
        self._noted[queue] = mark

    def there(self, queue: int) -> int:
        """The mark that the next start would find if this process were killed now."""
        return self._noted.get(queue, 0)

    def forget(self, queue: int) -> None:
        """Removes a deleted queue; its number is not used again."""
        self._noted.pop(queue, None)

    def hold(self, queue: int, seen_to: int) -> None:
        """Notes that messages up to `seen_to` are delivered; frames wait until the file has the mark."""

    @property
    def holds(self) -> bool:
        """Whether frames wait until the file has their marks."""
        return False

    def begin(self, loop: asyncio.AbstractEventLoop, release: Callable[[], None]) -> None:
        """Begins to write marks; called before the first delivery.

        Args:
            release: called on the loop when no frame has to wait any longer.
        """

    def close(self, last: dict[int, int]) -> None:
        """Writes the marks of an orderly end.

        Args:
            last: by queue, the sequence below which messages may have been delivered and are delivered
                again, 0 for none; missing queues keep the noted mark.
        """


class FileMarks(DeliveryMarks):
    """Marks in a file of the shard's directory.

    Args:
        directory: the shard's directory.
        boot_id: the boot id of the machine. If it has changed, marks that were not synced are lost, so it is
            unknown which messages were delivered.
        is_followed: whether the shard has other members: one of them may have delivered since the file was
            written, so the file is not read.

    Raises:
        StoreRefusedError: the file has a newer version, or can't be read.
    """

    def __init__(self, directory: str, boot_id: bytes | None = None, *, is_followed: bool = False) -> None:
        super().__init__()
        self._path = os.path.join(directory, FILE)
        self.boot_id = machine_boot_id() if boot_id is None else boot_id
        self.former_token = bytes(TOKEN_BYTES)
        """The token of the start that wrote the file; zeros if that was none, or of a former version."""
        self.token = secrets.token_bytes(TOKEN_BYTES)
        """The token of this start, by which other files of it are recognised."""
        self._file = -1
        self._worker: Worker | None = None
        self._writing = False
        self._failing = False
        self._there: dict[int, int] = {}
        """The mark that each queue has in the file at least; 0 before the first one is written."""
        self._awaited: dict[int, int] = {}
        """The mark by queue that the file must have before the deliveries of this step are sent."""
        self._timer: asyncio.TimerHandle | None = None
        if is_followed:
            self._unknown, self.is_after_kill = EVERYTHING, True
            return
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreRefusedError(f"{self._path} can't be read: {error}") from error
        self._read(data)

    def _read(self, data: bytes) -> None:
        if len(data) < _SLOTS_AT or not data.startswith(_MAGIC):
            log.warning(
                "expected delivery marks in %s, found %d other bytes: all messages count as delivered before",
                *(self._path, len(data)),
            )
            self._unknown = EVERYTHING
            self.is_after_kill = True
            return
        _, version, state, boot_id, token = HEAD.unpack_from(data)
        if version != _VERSION:
            raise NewerFormatError(
                f"expected delivery marks of version {_VERSION} in {self._path}, found version {version}: "
                "start a newer LightRail, or delete the file: redelivered messages are not marked then"
            )
        self.former_token = token
        if state == _CLOSED_WITHOUT:
            return
        self.is_exact = state == _CLOSED
        self.is_after_kill = not self.is_exact
        if boot_id != self.boot_id and not self.is_exact:
            self._unknown = EVERYTHING
            return
        slots = len(data[_SLOTS_AT:]) // _SLOT.size
        for queue, (mark,) in enumerate(_SLOT.iter_unpack(data[_SLOTS_AT : _SLOTS_AT + slots * _SLOT.size])):
            if mark:
                self._former[queue] = mark
                self._former_last = queue

    # --- while the shard serves ---------------------------------------------------------------------------

    def begin(self, loop: asyncio.AbstractEventLoop, release: Callable[[], None]) -> None:
        """See DeliveryMarks; writes a new file with the marks of the recovered queues.

        A failure is logged: without the file, messages that are delivered again after a crash are not marked.
        """
        self._there, self._noted = self._noted, {}
        self._loop, self._release = loop, release
        try:
            self._file = self._make(_OPEN, self._there)
        except OSError as error:
            self._failed(error)
        self._worker = Worker(loop, "marks")

    def _make(self, state: int, marks: dict[int, int]) -> int:
        """Makes a new file with these marks; returns its descriptor. It is synced when it is closed."""
        slots = bytearray((max(marks, default=-1) + 1) * _SLOT.size)
        for queue, mark in marks.items():
            _SLOT.pack_into(slots, queue * _SLOT.size, mark)
        partial_path = f"{self._path}.new"
        file = os.open(partial_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, self._head(state) + slots, 0)
            if state == _CLOSED:
                os.fdatasync(file)
            os.rename(partial_path, self._path)
        except OSError:
            os.close(file)
            raise
        return file

    @property
    def holds(self) -> bool:
        return bool(self._awaited)

    def there(self, queue: int) -> int:
        return self._there.get(queue, 0)

    def forget(self, queue: int) -> None:
        super().forget(queue)
        self._there.pop(queue, None)

    def hold(self, queue: int, seen_to: int) -> None:
        """See DeliveryMarks; only if the file can be written, and for DELIVERY_MARK_WAIT_MS."""
        if self._worker is None or self._file < 0 or self._failing:
            return
        self._awaited[queue] = seen_to
        if self._timer is None:
            self._timer = self._loop.call_later(DELIVERY_MARK_WAIT_MS / 1000, self._waited_long)

    def _waited_long(self) -> None:
        self._timer = None
        self._failed(TimeoutError(f"the disk has not answered for {DELIVERY_MARK_WAIT_MS} ms"))
        self._let_go()

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._awaited:
            self._awaited.clear()
            self._release()

    def note(self, queue: int, mark: int) -> None:
        """See DeliveryMarks; the thread writes all marks that have gathered at once."""
        self._noted[queue] = mark
        self._there.setdefault(queue, 0)
        self._write()

    def _write(self) -> None:
        if self._worker is not None and self._file >= 0 and not self._writing and self._noted:
            self._writing = True
            noted, self._noted = self._noted, {}
            # A mark that was ahead of a queue which has become slower falls: the file may have the lower one
            # from now on, and deliveries beyond it have to wait, although the thread has not answered yet.
            there = self._there
            for queue, mark in noted.items():
                if mark < there.get(queue, 0):
                    there[queue] = mark
            self._worker.submit(partial(self._put, noted), partial(self._written, noted))

    def _put(self, noted: dict[int, int]) -> None:
        for queue, mark in noted.items():
            os.pwrite(self._file, _SLOT.pack(mark), _SLOTS_AT + queue * _SLOT.size)

    def _written(self, noted: dict[int, int], error: BaseException | None) -> None:
        self._writing = False
        if error is not None:
            self._failed(error)
            self._let_go()
            return
        self._failing = False
        there = self._there
        for queue, mark in noted.items():
            if queue in there:
                there[queue] = mark
        # No frame waits for the mark of a queue that has ended.
        if all(there.get(queue, seen_to) >= seen_to for queue, seen_to in self._awaited.items()):
            self._let_go()
        self._write()

    def _failed(self, error: BaseException) -> None:
        if not self._failing:
            log.error(
                "%s can't be written, so messages that are redelivered after a crash are not marked: %s",
                *(self._path, error),
            )
        self._failing = True

    def close(self, last: dict[int, int]) -> None:
        """See DeliveryMarks; the file then has exact marks, and is synced."""
        if self._worker is None:
            return
        self._worker.close()
        self._worker = None
        self._let_go()
        if self._file < 0:
            return
        os.close(self._file)
        self._file = -1
        try:
            os.close(self._make(_CLOSED, {**self._there, **self._noted, **last}))
        except OSError as error:
            self._failed(error)

    def _head(self, state: int) -> bytes:
        return HEAD.pack(_MAGIC, _VERSION, state, self.boot_id, self.token).ljust(_SLOTS_AT, b"\0")


def machine_boot_id() -> bytes:
    """16 bytes that differ after each boot of the machine; zeros if the system has no boot id."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)

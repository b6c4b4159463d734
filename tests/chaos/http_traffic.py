"""Senders and receivers of the chaos tests over plain HTTP: one numbered message per request."""

import http.client
import json
import time

from tests.chaos.ledger import ACCEPTED, SENT, TRAILER, Ledger
from tests.chaos.traffic import RECONNECT_S, Address, Traffic
from tests.support.http_client import Http

BODY_BYTES = 64
LOOK_S = 1
"""How long a receiver waits at the head of the queue before it asks again."""


class HttpWorker(Traffic):
    """One kept connection to a gateway, opened again when it is lost."""

    def visit(self) -> None:
        try:
            with Http(self.address()) as connection:
                self.connections += 1
                self.work(connection)
        except (OSError, http.client.HTTPException) as error:
            self.losses[type(error).__name__] += 1
            self.stopping.wait(RECONNECT_S)

    def work(self, connection: Http) -> None:
        """Requests until the work is done; raises OSError or HTTPException where the connection is lost."""
        raise NotImplementedError


class HttpSender(HttpWorker):
    """Posts one durable message after the other; 201 is accepted, all else leaves the message in doubt.

    Args:
        rate: messages per second, at most.
    """

    def __init__(
        self, address: Address, queue: str, ledger: Ledger, *, number: int, count_max: int, rate: float
    ) -> None:
        super().__init__(f"http-sender-{number}", address)
        self.pause_s = 1 / rate
        self.queue = queue
        self.number = number
        self.calm = ledger.calm
        self.page = ledger.page(number, count_max)

    def work(self, connection: Http) -> None:
        page = self.page
        while not self.stopping.is_set() and page.sent < page.count_max:
            number = page.sent
            page.mark(number, number + 1, SENT)
            page.born[number] = self.calm.epoch
            page.sent = number + 1
            body = bytes(BODY_BYTES - TRAILER.size) + TRAILER.pack(self.number, 1, number)
            answer = connection("POST", f"/{self.queue}", body)
            if answer.status == 201:
                page.mark(number, number + 1, ACCEPTED)
                self.stopping.wait(self.pause_s)
            else:
                self.losses[f"status {answer.status}"] += 1
                self.stopping.wait(RECONNECT_S)


class HttpReceiver(HttpWorker):
    """Locks the message at the head, and completes it."""

    def __init__(self, address: Address, queue: str, ledger: Ledger, *, number: int) -> None:
        super().__init__(f"http-receiver-{number}", address)
        self.queue = queue
        self.ledger = ledger
        self.received = 0

    def work(self, connection: Http) -> None:
        order: dict[tuple[int, int], int] = {}
        while not self.stopping.is_set():
            got = connection("POST", f"/{self.queue}/!head?timeout={LOOK_S}")
            if got.status == 201:
                marked = json.loads(got.headers["brokerproperties"])["DeliveryCount"] > 0
                self.ledger.arrive([got.body], marked=marked, order=order)
                self.received += 1
                self.latest_arrival = time.monotonic()
                # Where the lock is lost the message comes again, and is counted then.
                connection("DELETE", got.headers["location"])
            elif got.status != 204:
                self.losses[f"status {got.status}"] += 1
                self.stopping.wait(RECONNECT_S)

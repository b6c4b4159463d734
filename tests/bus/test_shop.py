"""The shop of examples/shop: every order is billed once and shipped once, whatever is killed in between."""

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait
from tests.support.amqp.returning_broker import ReturningBroker
from tests.support.broker import ROOT

SHOP = ROOT / "examples" / "shop"
SERVICES = ("orders", "billing", "shipping")
ORDERS = 150
ROUNDS = 2
"""Kills of each service and of the broker."""
DEADLINE_S = 90.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ReturningBroker]:
    made = ReturningBroker(tmp_path / "broker")
    yield made
    made.stop()


class Shop:
    """The services, each in a process of its own, and a customer."""

    def __init__(self, url: str, data: Path) -> None:
        self.data = data
        self._environ = os.environ | {
            "SHOP_URL": f"amqp://{url}",
            "SHOP_DATA": str(data),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, service: str) -> None:
        command = [sys.executable, "-m", "lightrail.cli.main", "bus", "run", f"{service}:bus"]
        self._processes[service] = self._started(command)

    def customer(self, orders: int) -> "subprocess.Popen[bytes]":
        self._processes["customer"] = self._started([sys.executable, "place.py", str(orders)])
        return self._processes["customer"]

    def kill(self, service: str) -> None:
        """kill -9."""
        self._processes[service].kill()
        self._processes[service].wait()

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            process.wait(60)

    def rows(self, service: str, query: str) -> list[tuple[int, ...]]:
        """Of a service's database; none where the service has not made its table yet."""
        try:
            database = sqlite3.connect(f"file:{self.data / service}.db?mode=ro", uri=True)
            found = database.execute(query).fetchall()
            database.close()
        except sqlite3.OperationalError:
            return []
        return found

    def shipped(self) -> int:
        rows = self.rows("shipping", "select count(*) from shipments")
        return rows[0][0] if rows else 0

    def _started(self, command: list[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, cwd=SHOP, env=self._environ)


def test_every_order_is_billed_once_and_shipped_once_over_kills_of_everything(
    broker: ReturningBroker, tmp_path: Path
) -> None:
    shop = Shop(broker.url, tmp_path / "shop")
    for service in SERVICES:
        shop.start(service)
    customer = shop.customer(ORDERS)
    try:
        victims = itertools.cycle([*SERVICES, "broker"])
        step = ORDERS // (ROUNDS * (len(SERVICES) + 1) + 1)
        for number in range(1, ROUNDS * (len(SERVICES) + 1) + 1):
            # Kills are spread over the work, by what is done.
            wait.until_with(
                number * step, lambda enough: shop.shipped() >= enough, f"round {number}", DEADLINE_S
            )
            victim = next(victims)
            if victim == "broker":
                broker.kill()
                broker.start()
            else:
                shop.kill(victim)
                shop.start(victim)
        assert customer.wait(DEADLINE_S) == 0
        wait.until(
            lambda: shop.rows("orders", "select count(*) from lightrail_sagas") == [(0,)],
            "all sagas have ended",
            DEADLINE_S,
        )
    finally:
        shop.stop()
    expected = [(number, 1) for number in range(1, ORDERS + 1)]
    for service, table in (("orders", "orders"), ("billing", "invoices"), ("shipping", "shipments")):
        query = f"select number, count(*) from {table} group by number order by number"
        assert shop.rows(service, query) == expected, service


def test_one_command_runs_the_shop(broker: ReturningBroker, tmp_path: Path) -> None:
    environ = os.environ | {
        "SHOP_URL": f"amqp://{broker.url}",
        "SHOP_DATA": str(tmp_path / "shop"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, str(SHOP / "run.py"), "20"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "20 of 20 are shipped" in done.stdout
    assert "Invoice(order=1, total=Decimal('0.01'))" in done.stdout

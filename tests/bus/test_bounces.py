"""Subscriptions survive a broker that is bounced again and again (the seed on EasyNetQ)."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightrail.bus import Bus
from lightrail.transport import SendRefusedError
from tests.bus.conftest import play
from tests.bus.shop import OrderPlaced
from tests.support import wait
from tests.support.amqp.returning_broker import ReturningBroker
from tests.support.broker import ROOT

SUBSCRIBERS = 3
BOUNCES = 4
EVENTS = 25
"""Published between two bounces."""

SUBSCRIBER = """
import asyncio, sys
from lightrail.bus import Bus
from tests.bus.shop import OrderPlaced

url, name = sys.argv[1:]
bus = Bus(url, name=name)

@bus.handler
async def handle(order: OrderPlaced) -> None:
    print(order.order, flush=True)

asyncio.run(bus.run())
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ReturningBroker]:
    made = ReturningBroker(tmp_path / "broker")
    yield made
    made.stop()


def test_every_subscriber_is_back_after_each_bounce_and_gets_every_event(
    broker: ReturningBroker, tmp_path: Path
) -> None:
    url = f"amqp://{broker.url}"
    (tmp_path / "subscriber.py").write_text(SUBSCRIBER)
    processes = []
    outputs = []
    for number in range(SUBSCRIBERS):
        output = tmp_path / f"output-{number}"
        outputs.append(output)
        with open(output, "wb") as file:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(tmp_path / "subscriber.py"), url, f"subscriber-{number}"],
                    stdout=file,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                )
            )

    def got(number: int) -> set[int]:
        return {int(line) for line in outputs[number].read_text().split()}

    async def test() -> None:
        import asyncio

        async with Bus(url, name="publisher") as bus:
            order = 0

            async def publish(event: OrderPlaced) -> None:
                """Again where it is not known whether it was published."""
                while True:
                    try:
                        await bus.publish(event, id=f"order-{event.order}")
                        return
                    except SendRefusedError as error:
                        if error.is_certain:
                            raise

            # Everybody has subscribed when everybody gets an event.
            while not all(got(number) for number in range(SUBSCRIBERS)):
                await publish(OrderPlaced(0))
                await asyncio.sleep(0.05)
            for bounce in range(BOUNCES):
                working = [asyncio.create_task(publish(OrderPlaced(order + 1 + n))) for n in range(EVENTS)]
                order += EVENTS
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
                back = time.monotonic()
                await asyncio.gather(*working)
                await publish(OrderPlaced(100_000 + bounce))
                for number in range(SUBSCRIBERS):
                    await asyncio.to_thread(
                        wait.until_with,
                        (number, bounce),
                        lambda of: 100_000 + of[1] in got(of[0]),
                        "back",
                        20,
                    )
                print(json.dumps({"back_s": round(time.monotonic() - back, 2)}))

    try:
        play(test(), 100.0)
        for number in range(SUBSCRIBERS):
            wait.until_with(
                number,
                lambda number: set(range(BOUNCES * EVENTS + 1)) <= got(number),
                "all events are there",
                20,
            )
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            assert process.wait(30) == 0

"""Memory of a frontend process: clients that do not read, all of them together."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.encoder import encode
from lightrail.amqp.performatives import Attach, Source, Target
from lightrail.amqp.values import Symbol
from lightrail.frontend.outflow import FRONTEND_UNREAD_BYTES, ROOMS
from lightrail.model import limits
from tests.chaos import attacks
from tests.chaos.attacks import Attacker, frame
from tests.chaos.bystanders import bystanders
from tests.chaos.ledger import Ledger
from tests.chaos.traffic import Sender
from tests.support import wait
from tests.support.amqp.socket_client import Client
from tests.support.broker import Broker
from tests.support.namespace import give

MB = 1024 * 1024
CLIENTS = 250
HEAP = 1.5
"""What a shared byte takes in the process: the allocator keeps some of the pieces between."""
SLACK = 64 * MB
MARK = 16 * MB


def browse(handle: int = 0) -> bytes:
    return frame(
        Attach(
            name=f"browser{handle}",
            handle=handle,
            role=True,
            source=Source(address="stuck", distribution_mode=Symbol("copy")),
            target=Target(),
        )
    )


def test_clients_that_do_not_read_share_what_may_wait_for_them(tmp_path: Path) -> None:
    """Each browses 10 MB and reads nothing: the process keeps to its bound, and others go on."""
    shared = int(HEAP * FRONTEND_UNREAD_BYTES)
    bound = shared + ROOMS * CLIENTS * limits.WRITE_ROOM_MIN + SLACK
    with bystanders(tmp_path / "data", growth_max=bound) as them, ExitStack() as stack:
        where = lambda: them.broker.amqp  # noqa: E731 - asked again with every connection
        with Sender(where, "stuck", Ledger(), number=9, count_max=10_000, size=1_000) as sender:
            wait.until(lambda: sender.page.accepted == 10_000 or sender.failure, "it is filled", 60.0)
            sender.finish()
        them.before = them.weigh()
        them.peak.clear()
        begin = frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN + browse() + attacks.credit(0, 0x7FFFFFFF)
        for _ in range(CLIENTS):
            stack.enter_context(Attacker(them.broker.amqp, receive_buffer=4_096)).say(begin)
        for _ in range(5):
            them.still_served()
            them.weigh()
        assert them.growth < bound, them.report()


LARGE = 8 * MB


def test_a_receiver_that_does_not_read_is_sent_few_large_messages_however_much_credit_it_gave(
    tmp_path: Path,
) -> None:
    """A window counts messages of the mean size so far: behind small ones it would be all 24 of these, 192
    MB, and as many at the beginning, where no size is known."""
    bound = SLACK + 4 * LARGE
    with bystanders(tmp_path / "data", growth_max=bound) as them, ExitStack() as stack:
        where = lambda: them.broker.amqp  # noqa: E731 - asked again with every connection
        for size, count in ((10, 5_000), (LARGE, 24)):
            with Sender(where, "stuck", Ledger(), number=9, count_max=count, size=size) as sender:
                wait.until(lambda: sender.page.accepted == count or sender.failure, "it is filled", 60.0)  # noqa: B023
                sender.finish()
        them.before = them.weigh()
        them.peak.clear()
        attacker = stack.enter_context(Attacker(them.broker.amqp, receive_buffer=1 << 20))
        begin = frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN + browse()
        attacker.say(begin + attacks.credit(0, 10_000))
        for _ in range(10):
            them.still_served()
            them.weigh()
        assert them.growth < bound, them.report()


LINKS = 60


@pytest.mark.parametrize(
    ("connections", "is_browser"),
    [(1, True), (1, False), (20, True)],
    ids=["one that browses", "one that consumes", "twenty that browse"],
)
def test_nor_does_each_link_of_such_clients_get_a_large_message(
    tmp_path: Path, connections: int, is_browser: bool
) -> None:
    """Sixty links with credit for messages of 8 MB: browsers would get 480 MB, consumers all 192."""
    per_connection = LINKS // connections
    bound = SLACK + (4 * LARGE if connections == 1 else int(HEAP * FRONTEND_UNREAD_BYTES))
    count = 2 if is_browser else 24
    with (
        bystanders(tmp_path / "data", "--memory-mark", str(MARK), growth_max=bound) as them,
        ExitStack() as stack,
    ):
        where = lambda: them.broker.amqp  # noqa: E731 - asked again with every connection
        with Sender(where, "stuck", Ledger(), number=9, count_max=count, size=LARGE) as sender:
            wait.until(lambda: sender.page.accepted == count or sender.failure, "it is filled", 60.0)
            sender.finish()
        them.before = them.weigh()
        them.peak.clear()
        # What it took to write the messages is not what clients that do not read cost.
        them.sender.slowest_answer = 0.0
        for _ in range(connections):
            attacker = stack.enter_context(Attacker(them.broker.amqp, receive_buffer=4_096))
            links = [
                browse(handle) if is_browser else attacks.attach(handle, "stuck", receiver=True)
                for handle in range(per_connection)
            ]
            credits = [attacks.credit(handle, 100) for handle in range(per_connection)]
            attacker.say(b"".join([frames.AMQP_HEADER, attacks.OPEN, attacks.BEGIN, *links, *credits]))
        for _ in range(15):
            them.still_served()
            them.weigh()
        assert them.growth < bound, them.report()


def listen(handle: int) -> bytes:
    """A listener that has messages settled: their sender has its answer when they are on their way."""
    return frame(
        Attach(
            name=f"listener{handle}",
            handle=handle,
            role=True,
            snd_settle_mode=1,
            source=Source(address="point"),
            target=Target(),
        )
    )


def test_nor_do_listeners_of_a_connection_point(tmp_path: Path) -> None:
    """Nothing of such messages is stored: what does not fit waits in the shard or goes back."""
    bound = SLACK + 4 * LARGE
    with (
        bystanders(tmp_path / "data", "--memory-mark", str(MARK), growth_max=bound) as them,
        ExitStack() as stack,
    ):
        give(them.broker.data, "point", role="connection-point")
        attacker = stack.enter_context(Attacker(them.broker.amqp, receive_buffer=4_096))
        links = [listen(handle) for handle in range(LINKS)]
        credits = [attacks.credit(handle, 100) for handle in range(LINKS)]
        attacker.say(b"".join([frames.AMQP_HEADER, attacks.OPEN, attacks.BEGIN, *links, *credits]))
        client = stack.enter_context(Client(them.broker.amqp))
        sender = client.attach(client.session(), "sender", "point", sender=True)
        message = b"\x00\x53\x75" + encode(bytes(LARGE))
        for _ in range(40):
            wait.until(lambda: client.step(0.05) is not None and sender.credit > 0, "credit", 30.0)
            sender.send_one(message, 0, True)
            wait.until(lambda: client.step(0.05) is not None and not client.unwritten, "it is written", 30.0)
            them.still_served()
            them.weigh()
        assert them.growth < bound, them.report()


def test_who_reads_drains_large_messages_over_several_links(tmp_path: Path) -> None:
    """Each is larger than what its link may be sent ahead; the drain ends when all have come."""
    with Broker(tmp_path / "data") as broker:
        where = lambda: broker.amqp  # noqa: E731 - asked again with every connection
        with Sender(where, "large", Ledger(), number=9, count_max=4, size=LARGE) as sender:
            wait.until(lambda: sender.page.accepted == 4 or sender.failure, "it is filled", 60.0)
            sender.finish()
        with Client(broker.amqp) as client:
            session = client.session()
            drains, waits = [client.attach(session, name, "large", sender=False) for name in "ab"]
            drains.grant(10, drain=True)
            waits.grant(1)
            came = 0

            def all_came() -> bool:
                nonlocal came
                came += sum(isinstance(event, events.Transfers) for event in client.step(0.05))
                return came >= 4 and not drains.credit

            wait.until(all_came, "all messages and the end of the drain", 30.0)
            assert came == 4

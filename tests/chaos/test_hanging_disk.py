"""A disk that hangs: senders get their messages back, it is seen, and all goes on when the disk answers."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.chaos.failing_calls import built
from tests.chaos.ledger import RELEASED, Ledger
from tests.chaos.service import Service
from tests.chaos.traffic import Receiver, Sender
from tests.support import wait

pytestmark = pytest.mark.timeout(120)


def asked(service: Service, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{service.broker.http}{path}", timeout=10) as answer:
            text: bytes = answer.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    return text.decode()


def test_while_the_disk_hangs_senders_get_their_messages_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    failing = built(tmp_path, data / "shard-0")
    ledger = Ledger()
    with Service(data, "--shard-wait", "1s", environ=failing.environ()) as service:
        sender = Sender(service.where, "q", ledger, count_max=1_000_000, size=100, rate=2_000.0)
        with sender, Receiver(service.where, "q", ledger) as receiver:
            sender.until_accepted(1_000)
            for _ in range(2):
                ledger.calm.disturb()
                before = sender.page.state.count(RELEASED)
                failing.hang()
                wait.until(
                    lambda: "shard-0: the disk has not answered for" in asked(service, "/readyz"), "a reason"
                )
                assert "lightrail_commit_under_way_seconds" in asked(service, "/metrics")
                # What shows all shards does not wait for the one that hangs.
                assert '"ready": false' in asked(service, "/!status")
                assert '"name": "q", "ready": null' in asked(service, "/!queues")
                wait.until_with(
                    before,
                    lambda before: sender.page.state.count(RELEASED) > before,
                    "senders get their messages back",
                )
                failing.go_on()
                sender.until_accepted(1_000)
                wait.until(lambda: asked(service, "/readyz") == "ready\n", "it is ready")
                ledger.calm.settle()
            sender.finish()
            wait.until(lambda: not ledger.lost, "everything arrives")
            receiver.finish()
        print(ledger.summary())
        ledger.verdict()
        assert not ledger.again
        assert sender.connections == receiver.connections == 1
        assert service.starts == 1
        said = service.said()
        assert said.count("the disk answers again") == 2
        assert "Traceback" not in said

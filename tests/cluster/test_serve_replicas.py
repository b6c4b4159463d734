"""``lightrail serve --replicas``: all members of a shard, and their etcd, on one machine."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from lightrail.cli import local_etcd
from tests.cluster.test_replicas import Ledger
from tests.support import wait
from tests.support.broker import Broker

FLAGS = ("--shards", "1", "--frontends", "1", "--replicas", "3")


@pytest.mark.timeout(240)
def test_the_owner_is_killed_and_its_directory_removed_and_every_accepted_message_is_there(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with Broker(data, *FLAGS) as broker:
        members = [each for each in broker.ready["processes"] if each["role"] == "shard"]
        assert [(each["id"], each["member"], each["ready"]) for each in members] == [
            (0, 1, True),
            (0, 2, True),
            (0, 3, True),
        ]
        (owner,) = [each for each in members if not each["follows"]]
        ledger = Ledger(f"amqp://{broker.amqp}")
        ledger.start()
        ledger.more()
        os.kill(owner["pid"], signal.SIGKILL)
        shutil.rmtree(data / f"replica-{owner['member']}")
        ledger.more()
        wait.until(
            lambda: list((data / f"replica-{owner['member']}" / "shard-0").glob("*.segment")), "a copy"
        )
        ledger.more()
        etcd = local_etcd.address(str(data))
        assert etcd is not None
        assert broker.terminate() == 0
        assert local_etcd.address(str(data)) is None
    with Broker(data, *FLAGS) as broker:
        # Also after a start of everything: the second queue of this test is the same one.
        again = Ledger(f"amqp://{broker.amqp}")
        again.accepted = ledger.accepted
        again.start()
        again.more()
        again.finish()

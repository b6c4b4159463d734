#!/usr/bin/env python3
"""Runs the same load against another broker and LightRail in turns and adds the ratios to docs/benchmarks.md.

RabbitMQ is installed from Debian when it is missing and this runs as root; ActiveMQ Artemis and Apache
Qpid Broker-J are where scripts/setup.sh puts what the tests need. `make bench-peers` calls it.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.benchmarks import machine, peers, quorum, suite
from tests.benchmarks.load import LoadError
from tests.support.amqp.java_broker import JavaBroker
from tests.support.amqp.rabbitmq_cluster import RabbitCluster


def main() -> int:
    """The exit status: 0 when all targets were met, 1 when one was missed, 2 when there is no peer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="a row; may be given again")
    parser.add_argument("--runs", type=int, default=5, help="of each row (default 5)")
    parser.add_argument(
        "--scratch", default=machine.default_scratch(), help="where data directories are made; on a real disk"
    )
    given = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="lightrail-peer-", dir=given.scratch)
    try:
        peers.install()
        folders = [Path(directory, name) for name in ("rabbitmq", "artemis", "broker-j", "quorum")]
        for folder in folders:
            folder.mkdir()
        rabbit = peers.RabbitMQ(folders[0])
        artemis = peers.Artemis(folders[1], options=peers.JVM_OPTIONS, file_bytes=peers.ARTEMIS_FILE_BYTES)
        broker_j = peers.BrokerJ(folders[2], options=peers.JVM_OPTIONS)
        cluster = RabbitCluster(folders[3])
        found = (
            (rabbit, peers.rows_of_rabbitmq(rabbit)),
            (artemis, peers.rows_of_artemis(artemis)),
            (broker_j, peers.rows_of_broker_j(broker_j)),
            (cluster, quorum.rows_of_quorum(cluster)),
        )
        names = [row.name for _, rows in found for row in rows]
        if unknown := set(given.only or ()) - set(names):
            parser.error(f"--only: expected {', '.join(names)}, found {', '.join(sorted(unknown))}")
        met = True
        for peer, rows in found:
            chosen = [row for row in rows if row.name in (given.only or names)]
            if chosen:
                # One at a time: also a broker that does nothing takes its share of two cores.
                with peer:
                    if isinstance(peer, JavaBroker):
                        suite.say(peer.name, "warming up")
                        peers.warm_up(peer)
                    elif isinstance(peer, RabbitCluster):
                        peer.declare("bench")
                    met &= suite.run(chosen, given.runs, given.scratch, names, "peers")
        return 0 if met else 1
    except (peers.PeerMissingError, LoadError, TimeoutError) as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

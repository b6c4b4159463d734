"""The broker as rhea, the JavaScript client, sees it: scenarios of node processes (tests/interop/rhea)."""

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from proton import Described, char, symbol, ulong

from lightrail.cli import admin
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, received
from tests.support.amqp.proton_messages import COMMON_VALUES, messages, passed_on, same
from tests.support.amqp.returning_broker import ReturningBroker
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.http_client import Http

HERE = Path(__file__).parent


def node(scenario: str, broker: Broker | str, queue: str, *, quiet: bool = True, **options: Any) -> Any:
    """Run one scenario of scenarios.js; gives what it found. `quiet`: rhea has nothing to complain of."""
    assert (HERE / "node_modules" / "rhea").is_dir(), "rhea is not installed: run scripts/setup.sh test"
    address = broker if isinstance(broker, str) else broker.amqp
    done = subprocess.run(
        ["node", "rhea/scenarios.js", scenario, address, queue, json.dumps(options)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, f"{scenario}: {done.stderr}"
    assert not (quiet and done.stderr), f"{scenario}: {done.stderr}"
    return json.loads(done.stdout)


# --- messages --------------------------------------------------------------------------------------------

VALUES: dict[str, Any] = COMMON_VALUES | {
    "null": None,
    "char": char("\U0001f682"),
    "list-empty": [],
    "list-described": [Described(symbol("example:selector:string"), "selector")],
}
"""What messages.js sends, as python-qpid-proton has to see it."""


def test_every_type_arrives_as_it_was_sent(broker: Broker, queue: str) -> None:
    found = node("types", broker, queue)
    assert found["outcomes"] == ["accepted"]
    assert len(found["messages"]) > 80
    for name, (sent, came) in found["messages"].items():
        assert came == sent, name


def test_every_type_arrives_at_proton(broker: Broker, queue: str) -> None:
    names = node("send_types", broker, queue)
    with connected(broker.amqp) as connection:
        found = received(connection.create_receiver(queue, credit=len(names)), len(names))
    by_name = dict(zip(names, found, strict=True))
    for name, value in VALUES.items():
        body = by_name[f"body-{name}"].body
        assert same(body, value), f"{name}: expected {value!r}, found {body!r}"
        (annotation,) = by_name[f"annotation-{name}"].annotations.values()
        assert same(annotation, value), f"annotation {name}"
        if (carrier := by_name.get(f"application-property-{name}")) is not None:
            assert same(carrier.properties[name], value), f"application property {name}"
    properties = by_name["properties"]
    assert (properties.durable, properties.priority) == (True, 9)
    assert (properties.id, properties.correlation_id) == ("id-1", ulong(7))
    assert (bytes(properties.user_id), properties.address, properties.subject) == (
        b"user",
        "to/here",
        "a subject",
    )
    assert (properties.expiry_time, properties.creation_time) == (4_102_444_800, 1_700_000_000.125)
    assert (properties.group_id, properties.group_sequence) == ("group", 5)


def test_every_type_of_proton_arrives(broker: Broker, queue: str) -> None:
    sent = messages()
    with connected(broker.amqp) as connection:
        sender = connection.create_sender(queue)
        for message in sent.values():
            sender.send(message)
    came = node("receive_raw", broker, queue, count=len(sent))
    for (name, message), found in zip(sent.items(), came, strict=True):
        assert found == bytes(passed_on(message).encode()).hex(), name


@pytest.mark.parametrize("durable", [False, True])
def test_order_over_thousands_of_messages(broker: Broker, queue: str, durable: bool) -> None:
    """More than rhea's session holds at a time: its windows open and close."""
    found = node("pass", broker, queue, count=5_000, durable=durable)
    assert found == {"bodies": list(range(5_000)), "outcomes": ["accepted"]}


@pytest.mark.parametrize("durable", [False, True])
def test_a_large_message(broker: Broker, queue: str, durable: bool) -> None:
    found = node("large", broker, queue, size=20 * 1024 * 1024, durable=durable)
    assert found == {
        "outcomes": ["accepted", "accepted"],
        "equal": True,
        "durable": durable,
        "after": "after",
    }


# --- settlement, flow ------------------------------------------------------------------------------------


def test_presettled_both_ways(broker: Broker, queue: str) -> None:
    presettled = {"snd_settle_mode": 1}
    found = node("pass", broker, queue, count=500, sender=presettled, receiver=presettled)
    assert found == {"bodies": list(range(500)), "outcomes": ["presettled"]}


def test_receiver_settle_mode_second(broker: Broker, queue: str) -> None:
    second = {"rcv_settle_mode": 1}
    found = node("pass", broker, queue, count=100, receiver=second)
    assert found == {"bodies": list(range(100)), "outcomes": ["accepted"]}


def test_outcomes_and_redelivery(broker: Broker, queue: str) -> None:
    found = node("outcomes", broker, queue)
    mine = {"x-opt-mine": 1}
    more = mine | {"x-opt-more": "new"}
    assert found["seen"] == [["m", 0, mine], ["m", 0, mine], ["m", 1, mine], ["m", 1, more]]
    assert found["barred"] == []
    assert found["attempts"] == 2
    dead = found["dead"]
    assert dead.pop("x-opt-dead-letter-time")
    assert dead == more | {
        "x-opt-dead-letter-reason": "rejected",
        "x-opt-dead-letter-source": queue,
        "x-opt-dead-letter-condition": "example:bad",
        "x-opt-dead-letter-description": "not like this",
        "x-opt-dead-letter-count": 1,
    }


def test_what_a_lost_client_held_comes_back(broker: Broker, queue: str) -> None:
    assert node("loss", broker, queue) == {"body": "held", "attempts": 1}


@pytest.mark.parametrize("credit", [1, 1_000])
def test_closing_counts_nothing_of_what_was_fetched_ahead(broker: Broker, queue: str, credit: int) -> None:
    found = node("closing", broker, queue, rounds=100, messages=200, credit=credit)
    assert found == {"bodies": list(range(100, 200)), "counts": 0}


FRONTENDS = 2


class Ends:
    """Ends in order what a client is connected to, each time that it is asked for."""

    def __init__(self, data: Path, what: str) -> None:
        self.what = what
        self.keeper = ReturningBroker(data, "--frontends", str(FRONTENDS), "--shards", "1")
        self.ended: set[int] = set()
        self.asked: Counter[bytes] = Counter()

    def frontends(self) -> list[int]:
        """The processes that serve and were not ended, the oldest first."""
        port = int(self.keeper.url.rpartition(":")[2])
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        sockets = {
            f"socket:[{line[9]}]" for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A"
        }
        supervisor = self.keeper.broker.process.pid
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        found = []
        for pid in children:
            with contextlib.suppress(OSError):  # of a process, or of its file, that has just ended
                files = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
                if files & sockets and int(pid) not in self.ended:
                    found.append(int(pid))
        return found

    def end(self, loss: bytes) -> None:
        """`loss`: how often the client lost its connection. For each loss a frontend ends at most once."""
        self.asked[loss] += 1
        if self.what == "frontend" and self.asked[loss] <= FRONTENDS:
            wait.until(lambda: len(self.frontends()) == FRONTENDS, "all frontends serve")
            oldest = self.frontends()[0]
            self.ended.add(oldest)
            os.kill(oldest, signal.SIGTERM)
        elif self.what == "broker" and self.asked[loss] == 1:
            self.keeper.broker.stop()
            self.keeper.start()


@pytest.mark.parametrize("what", ["frontend", "broker"])
def test_a_client_that_connects_again_loses_nothing_by_orderly_ends(tmp_path: Path, what: str) -> None:
    """A message that counts as failed once is a dead letter."""
    ends = Ends(tmp_path / "data", what)
    command = ["node", "rhea/scenarios.js", "reconnecting", ends.keeper.url, "orders", '{"losses": 2}']
    try:
        with Http(ends.keeper.broker.http) as http:
            assert http("POST", "/orders", {"role": "queue", "max_delivery_count": 1}).status == 201
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, cwd=HERE) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            try:
                while (line := wait.line(client.stdout, 60)).startswith(b"lost"):
                    ends.end(line)
                assert line == b"all\n"
                with Http(ends.keeper.broker.http) as http:

                    def empty() -> bool:
                        orders = http("GET", "/orders/!figures").json()
                        return bool(orders["ready"] == orders["in_flight"] == 0)

                    wait.until(empty, "the client settles all, copies among them")
                    assert http("GET", "/orders/$dlq/!figures").json()["ready"] == 0
                client.stdin.close()
                while (line := wait.line(client.stdout)).startswith(b"lost"):
                    pass
            finally:
                client.kill()
        assert json.loads(line) == ["amqp:connection:forced"]
    finally:
        ends.keeper.stop()


def test_browsers_see_all_in_order_and_take_nothing(broker: Broker, queue: str) -> None:
    numbers = list(range(50))
    found = node("browse", broker, queue, count=50)
    assert found == {"browsed": [numbers, numbers], "taken": numbers}


def test_draining_gives_what_is_there_and_takes_the_credit(broker: Broker, queue: str) -> None:
    assert node("drain", broker, queue) == {"bodies": [0, 1, 2], "credit": 0}


# --- many links, entering, staying -----------------------------------------------------------------------


@pytest.mark.parametrize(("pairs", "sessions"), [(250, 1), (100, 100)])
def test_five_hundred_links_and_many_sessions(broker: Broker, queue: str, pairs: int, sessions: int) -> None:
    found = node("links", broker, queue, pairs=pairs, sessions=sessions)
    assert found == [[0, 1, 2]] * pairs


def test_a_quiet_connection_stays(tmp_path: Path, queue: str) -> None:
    """Both sides send empty frames in time; rhea would close when ours did not come (2.4.5)."""
    with Broker(tmp_path / "data", "--idle-timeout", "1s") as broker:
        assert node("idle", broker, queue, ours_ms=600, quiet_ms=2_500) == ["accepted"]


def test_users_and_tls(tmp_path: Path, queue: str) -> None:
    """PLAIN with the right and a wrong password, TLS, a client certificate, nobody at all."""
    authority = Authority(tmp_path / "ca")
    server = authority.sign("localhost", "DNS:localhost")
    client = authority.sign("erin")
    data = tmp_path / "data"
    password = tmp_path / "password"
    password.write_text("secret\n")
    assert admin.main(["--data", str(data), "user", "add", "alice", "--password-file", str(password)]) == 0
    # A certificate proves a name; what the name may do is said like that of any user.
    assert admin.main(["--data", str(data), "permission", "set", "erin", "/", "all"]) == 0
    with Broker(
        data,
        *("--amqps", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key),
        *("--tls-client-ca", authority.path),
    ) as broker:
        tls = f"localhost:{broker.ready['amqps'].rpartition(':')[2]}"
        alice: dict[str, Any] = {"username": "alice", "password": "secret"}
        secure: dict[str, Any] = {"transport": "tls", "servername": "localhost"}
        secure["files"] = {"ca": authority.path}
        assert node("enter", broker, queue, **alice) is None
        assert "Failed to authenticate" in node("enter", broker, queue, **alice | {"password": "wrong"})
        assert "SASL layer not enabled" in node("enter", broker, queue, quiet=False)
        assert node("enter", tls, queue, **alice, **secure) is None
        secure["files"] = {"ca": authority.path, "cert": client.certificate, "key": client.key}
        assert node("enter", tls, queue, enable_sasl_external=True, **secure) is None


# --- nodes of the broker itself --------------------------------------------------------------------------


def test_management_answers_over_a_pair_of_links(broker: Broker, queue: str) -> None:
    assert node("manage", broker, queue) == [
        ["accepted", 0, 201, 7],
        ["accepted", 1, 409, None],
        ["accepted", 2, 200, 7],
        ["accepted", 3, 204, None],
    ]

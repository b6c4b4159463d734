"""RabbitMQ's definitions, imported into a broker: messages reach the queues that its bindings name."""

import json
from pathlib import Path
from typing import Any

from lightrail.cli import admin
from tests.support.broker import Broker
from tests.support.http_client import Http

QUEUES = ("red", "eu", "all", "direct", "pdf", "none")
EXCHANGES = {"events": "topic", "jobs": "direct", "everybody": "fanout", "documents": "headers"}
BINDINGS: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    ("events", "queue", "red", "*.red.#", {}),
    ("events", "queue", "eu", "eu.#", {}),
    ("events", "queue", "eu", "#.eu", {}),
    ("events", "exchange", "everybody", "loud", {}),
    ("jobs", "queue", "direct", "run", {}),
    ("jobs", "queue", "red", "eu.*", {}),
    ("everybody", "queue", "all", "ignored", {}),
    ("everybody", "queue", "direct", "", {}),
    ("documents", "queue", "pdf", "", {"x-match": "all", "format": "pdf", "type": "report"}),
    ("documents", "queue", "all", "", {"x-match": "any", "format": "pdf", "type": "report"}),
)
"""Exchange, kind and name of the destination, routing key, arguments."""
EXPECTED: tuple[tuple[str, str, dict[str, str], set[str]], ...] = (
    ("events", "eu.red.one", {}, {"red", "eu"}),
    ("events", "us.red", {}, {"red"}),
    ("events", "eu", {}, {"eu"}),
    ("events", "red", {}, set()),
    ("events", "loud", {}, {"all", "direct"}),
    ("jobs", "run", {}, {"direct"}),
    ("jobs", "eu.*", {}, {"red"}),
    ("everybody", "any", {}, {"all", "direct"}),
    ("documents", "", {"format": "pdf", "type": "report"}, {"pdf", "all"}),
    ("documents", "", {"format": "pdf", "type": "log"}, {"all"}),
    ("documents", "", {"format": "text"}, set()),
)
"""Exchange, routing key, headers, and the queues that RabbitMQ's bindings name."""


def test_a_message_reaches_exactly_the_queues_that_the_bindings_name(
    http: Http, broker: Broker, tmp_path: Path
) -> None:
    definitions = {
        "rabbit_version": "3.10.8",
        "vhosts": [{"name": "rabbit"}],
        "queues": [{"name": name, "vhost": "rabbit", "durable": True, "arguments": {}} for name in QUEUES],
        "exchanges": [{"name": name, "vhost": "rabbit", "type": type} for name, type in EXCHANGES.items()],
        "bindings": [
            {
                "source": source,
                "vhost": "rabbit",
                "destination": destination,
                "destination_type": kind,
                "routing_key": key,
                "arguments": arguments,
            }
            for source, kind, destination, key, arguments in BINDINGS
        ],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    assert admin.main(["--url", f"http://{broker.http}", "import", str(file)]) == 0
    for number, (exchange, key, headers, _) in enumerate(EXPECTED):
        sent = {f"LightRail-Property-{name}": value for name, value in headers.items()}
        if key:
            sent["BrokerProperties"] = json.dumps({"Subject": key})
        assert http("POST", f"/rabbit/{exchange}", f"message {number}", sent).status == 201
    found: dict[str, set[str]] = {}
    for queue in QUEUES:
        while (got := http("DELETE", f"/rabbit/{queue}/!head?timeout=0")).status == 200:
            assert queue not in found.setdefault(got.body.decode(), set())
            found[got.body.decode()].add(queue)
    expected = {f"message {number}": queues for number, (*_, queues) in enumerate(EXPECTED) if queues}
    assert found == expected


def test_dead_letters_reach_the_queues_behind_their_exchange(
    http: Http, broker: Broker, tmp_path: Path
) -> None:
    dead = {"x-dead-letter-exchange": "dlx", "x-message-ttl": 1}
    definitions = {
        "rabbit_version": "3.10.8",
        "queues": [
            {"name": "short", "vhost": "dying", "durable": True, "arguments": dead},
            {"name": "buried", "vhost": "dying", "durable": True, "arguments": {}},
        ],
        "exchanges": [{"name": "dlx", "vhost": "dying", "type": "fanout"}],
        "bindings": [
            {"source": "dlx", "vhost": "dying", "destination": "buried", "destination_type": "queue"}
        ],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    assert admin.main(["--url", f"http://{broker.http}", "import", str(file)]) == 0
    assert http("POST", "/dying/short", "expires").status == 201
    assert http("DELETE", "/dying/buried/!head?timeout=20").body == b"expires"

"""RabbitMQ's definitions, imported into a broker: messages reach the queues that its bindings name."""

import json
from pathlib import Path
from typing import Any

import pytest

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
    http: Http, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert f"{len(QUEUES) + len(EXCHANGES) + len(BINDINGS)} created" in capsys.readouterr().out
    assert admin.main(["--url", f"http://{broker.http}", "import", str(file)]) == 0
    assert "0 created, 0 changed" in capsys.readouterr().out
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


def test_dead_letters_reach_the_queue_that_their_own_key_names(
    http: Http, broker: Broker, tmp_path: Path
) -> None:
    def queue(name: str, **arguments: Any) -> dict[str, Any]:
        return {"name": name, "vhost": "dying", "durable": True, "arguments": arguments}

    def binding(source: str, destination: str, key: str) -> dict[str, Any]:
        ends = {"source": source, "destination": destination, "destination_type": "queue"}
        return {"vhost": "dying", "routing_key": key} | ends

    short = queue("short", **{"x-dead-letter-exchange": "dlx", "x-message-ttl": 1})
    definitions = {
        "rabbit_version": "3.10.8",
        "queues": [short, queue("buried"), queue("other")],
        "exchanges": [{"name": name, "vhost": "dying", "type": "topic"} for name in ("in", "dlx")],
        "bindings": [
            binding("in", "short", "#"),
            binding("dlx", "buried", "gone.#"),
            binding("dlx", "other", "kept.#"),
        ],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    assert admin.main(["--url", f"http://{broker.http}", "import", str(file)]) == 0
    subject = {"BrokerProperties": json.dumps({"Subject": "gone.one"})}
    assert http("POST", "/dying/in", "expires", subject).status == 201
    assert http("DELETE", "/dying/buried/!head?timeout=20").body == b"expires"
    assert http("DELETE", "/dying/other/!head?timeout=0").status == 204

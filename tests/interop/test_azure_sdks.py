"""Azure's clients for Go and Java: the same scenarios, each of which is a row of docs/use/clients.md."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.azure_scene import connection_string, key_of
from tests.interop.programs import HERE, Found, built_in_go, compiled_in_java, finished, trusting_in_java
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.namespace import give, subscribe

SCENARIOS = (
    "send",
    "batch",
    "settle",
    "renew",
    "peek",
    "schedule",
    "topic",
    "refused",
    "websocket",
    "session",
)
LANGUAGES = {"go": SCENARIOS, "java": (*SCENARIOS, "processor", "transaction")}
FIRST_COUNT = {"go": 1, "java": 0}
"""How the client calls the first delivery of a message."""
SECONDS = 100.0
"""In which the scenarios of a language end; they take 3."""

# The first test waits for all of them, and for the compiler.
pytestmark = pytest.mark.timeout(SECONDS + 260)


class Guarded(NamedTuple):
    broker: Broker
    authority: Authority

    def strings(self, language: str) -> list[str]:
        """Connection strings: of a user who may do everything, of one who may only receive, and over TLS."""
        everything = key_of(self.broker.data, f"{language}-all")
        listening = key_of(self.broker.data, f"{language}-listens", "--rights", "listen")
        port = self.broker.ready["amqps"].rpartition(":")[2]
        plain = [connection_string(self.broker, key) for key in (everything, listening)]
        return [*plain, f"Endpoint=sb://localhost:{port}/;{everything}"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker where each scenario of each language finds its own nodes."""
    folder: Path = tmp_path_factory.mktemp("azure")
    data = folder / "data"
    authority = Authority(folder / "ca")
    server = authority.sign("localhost", "DNS:localhost")
    tls = ("--amqps", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    key_of(data, "first")
    with Broker(data, "--allow-anonymous", "true", *tls) as broker:
        for language in LANGUAGES:
            give(data, f"{language}/renew", role="queue", lock_duration=30)
            give(data, f"{language}/session", role="queue", groups=True, lock_duration=30)
            give(data, f"{language}/schedule", role="queue", delay=True)
            give(data, f"{language}/topic", role="router")
            give(data, f"{language}/copies", role="queue")
            subscribe(data, f"{language}/topic", f"{language}/copies", id="mine")
        yield Guarded(broker, authority)


def run(language: str, guarded: Guarded, folder: Path) -> Found:
    """Compiles the program of a language, and runs all scenarios in one process."""
    certificates = Path(guarded.authority.path)
    command: list[str | Path]
    if language == "go":
        command = [built_in_go("azure", folder)]
    else:
        trust = trusting_in_java(certificates, folder)
        classpath = compiled_in_java(HERE / "azure" / "java", folder)
        quick = [
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        ]
        command = ["java", *quick, *trust, "-cp", classpath, "Azure"]
    output = finished(
        [*command, *guarded.strings(language), f"{language}/", *LANGUAGES[language]],
        SECONDS,
        env=os.environ | {"SSL_CERT_FILE": str(certificates)},
    )
    return Found.read(language, output)


@pytest.fixture(scope="module", params=LANGUAGES)
def sdk(request: pytest.FixtureRequest, guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(request.param, guarded, tmp_path_factory.mktemp(request.param))


def test_a_message_arrives_with_all_that_was_set(sdk: Found) -> None:
    found = dict(sdk["send"])
    # It ends a ttl after its arrival, and was enqueued a moment later.
    assert 3590 < found.pop("ttl") <= 3600
    assert found == {
        "body": "Zug \U0001f682",
        "application": {"text": "value", "number": 7, "flag": True, "part": 0.5},
        "properties": ["id", "correlation", "subject", "text/plain", "reply", "to"],
        "sequence": 1,
        "count": FIRST_COUNT[sdk.program],
        "locked": True,
        "token": True,
        "left": 0,
    }


def test_a_batch_becomes_messages_that_are_received_and_deleted(sdk: Found) -> None:
    assert sdk["batch"] == {"bodies": ["one", "two", "three"], "left": 0}


def test_messages_are_completed_abandoned_and_dead_lettered_with_a_reason(sdk: Found) -> None:
    assert sdk["settle"] == {
        "again": ["second", FIRST_COUNT[sdk.program] + 1],
        "dead": ["second", "second", "why", "weil es größer ist", f"{sdk.program}/settle"],
        "left": [0, 0],
    }


def test_a_lock_is_renewed_and_a_lost_one_is_not(sdk: Found) -> None:
    lost = {"go": "locklost", "java": "MESSAGE_LOCK_LOST"}
    assert sdk["renew"] == {"renewed": True, "lost": lost[sdk.program]}


def test_peeked_messages_stay(sdk: Found) -> None:
    found = sdk["peek"]
    assert found == {"first": ["one", "two"], "rest": ["three"], "from": [["two"], 2], "left": 3}


def test_messages_are_scheduled_and_cancelled(sdk: Found) -> None:
    assert sdk["schedule"] == {
        "numbers": [1, 2],
        "peeked": "one",
        "scheduled": True,
        "twice": True,
        "came": "soon",
        "early": False,
    }


def test_a_subscription_gets_what_a_topic_is_sent_and_has_dead_letters(sdk: Found) -> None:
    assert sdk["topic"] == {"body": "for all", "dead": "for all"}


def test_who_may_not_send_is_refused(sdk: Found) -> None:
    word = {"go": "unauthorized", "java": "UNAUTHORIZED"}[sdk.program]
    assert sdk["refused"] == {"right": word, "key": word}


def test_messages_pass_over_a_websocket(sdk: Found) -> None:
    assert sdk["websocket"] == {"body": "x"}


def test_a_session_is_accepted_by_its_id_and_as_the_next_one_and_has_a_state(sdk: Found) -> None:
    found = dict(sdk["session"])
    # That for Java has no list of sessions, and waits for the next session as long as for any call.
    only_go = {"none": "timeout", "listed": ["b", "a"]} if sdk.program == "go" else {}
    assert found == {
        "sessions": ["a", "b"],
        "bodies": ["a1", "a2"],
        "busy": {"go": True, "java": "SESSION_CANNOT_BE_LOCKED"}[sdk.program],
        "state": [0, "state"],
        "renewed": True,
        **only_go,
    }


@pytest.mark.parametrize("sdk", ["java"], indirect=True)
def test_a_processor_completes_and_abandons(sdk: Found) -> None:
    seen = ["USER_CALLBACK", "one 0", "three 0", "two 0", "two 1"]
    assert sdk["processor"] == {"seen": seen, "left": 0}


@pytest.mark.parametrize("sdk", ["java"], indirect=True)
def test_what_is_done_in_a_transaction_takes_effect_with_its_commit(sdk: Found) -> None:
    assert sdk["transaction"] == {
        "before": 0,
        "bodies": ["one", "two"],
        "left": 0,
        "dead": ["two", "why"],
        "again": ["three", 1],
    }

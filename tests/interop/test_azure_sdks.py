"""Azure's clients: the same scenarios in each language, each of which is a row of docs/use/clients.md."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from tests.interop import azure_pairs
from tests.interop.azure_scene import connection_string, http_by, key_of
from tests.interop.programs import (
    HERE,
    Found,
    built_in_go,
    compiled_in_java,
    csharp,
    finished,
    trusting_in_java,
)
from tests.support import wait
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.namespace import give_all, with_service
from tests.support.ports import free_ports

SCENARIOS = (
    "send",
    "batch",
    "settle",
    "renew",
    "lost",
    "peek",
    "schedule",
    "topic",
    "refused",
    "websocket",
    "deferred",
    "duplicates",
    "session",
)
LANGUAGES = {
    "python": (*SCENARIOS, "topic_schedule"),
    "javascript": (*SCENARIOS, "topic_schedule", "processor"),
    "go": SCENARIOS,
    "java": (*SCENARIOS, "processor", "transaction", "deferring", "settling", "sessions", "rules"),
}
FIRST_COUNT = {"python": 0, "javascript": 0, "go": 1, "java": 0}
"""How the client calls the first delivery of a message."""
POLICIES: dict[str, dict[str, Any]] = {
    "renew": {"lock_duration": 30},
    "lost": {"lock_duration": 1},
    "session": {"groups": True, "lock_duration": 30},
    "sessions": {"groups": True, "lock_duration": 30},
    "schedule": {"delay": True},
    "duplicates": {"duplicate_window": 60},
    "topic": {"role": "router"},
    "copies": {},
    "topic_schedule": {"role": "router"},
    "due": {},
    "rules": {"role": "router"},
    "ruled": {},
}
"""Nodes that scenarios of each language find, below its name; all others are made by their first use."""
LOCK_LOST = {
    "python": "MessageLockLostError",
    "javascript": "MessageLockLost",
    "go": "locklost",
    "java": "MESSAGE_LOCK_LOST",
}
SECONDS = 100.0
"""In which the scenarios of a language end; they take 3."""

# The first test waits for all of them, and for the compiler.
pytestmark = pytest.mark.timeout(SECONDS + 260)


class Guarded(NamedTuple):
    broker: Broker
    authority: Authority
    strings: list[str]
    """Connection strings: of a user who may do everything, of one who may only receive, and over TLS."""


class Program(NamedTuple):
    """The program of a language, without its arguments."""

    language: str
    command: list[str | Path]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker where each scenario of each language finds its own nodes."""
    folder: Path = tmp_path_factory.mktemp("azure")
    data = folder / "data"
    authority = Authority(folder / "ca")
    server = authority.sign("localhost", "DNS:localhost")
    tls = ("--amqps", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    everything, listening = key_of(data, "all"), key_of(data, "listens", "--rights", "listen")
    with Broker(data, "--service-bus-auto-create", "true", *tls) as broker:
        with_service(data, make_nodes)
        port = broker.ready["amqps"].rpartition(":")[2]
        plain = [connection_string(broker, key) for key in (everything, listening)]
        yield Guarded(broker, authority, [*plain, f"Endpoint=sb://localhost:{port}/;{everything}"])


async def make_nodes(service: Service) -> None:
    """The nodes of all scenarios, in one go: each change from outside opens the namespace anew."""
    for sender, receiver in itertools.product(azure_pairs.LANGUAGES, repeat=2):
        name = f"pairs/{sender}/{receiver}"
        await service.give(ANYBODY, name, Policy.parse({"role": "queue", "lock_duration": 60, "delay": True}))
        await service.give(ANYBODY, f"{name}/session", Policy.parse({"role": "queue", "groups": True}))
    for language in LANGUAGES:
        for scenario, policy in POLICIES.items():
            name = f"{language}/{scenario}"
            await service.give(ANYBODY, name, Policy.parse({"role": "queue", **policy}))
        await service.subscribe(ANYBODY, f"{language}/topic", f"{language}/copies", id="mine")
        await service.subscribe(ANYBODY, f"{language}/topic_schedule", f"{language}/due", id="mine")
        await service.subscribe(ANYBODY, f"{language}/rules", f"{language}/ruled", id="mine")


def command_of(language: str, certificates: Path, folder: Path) -> list[str | Path]:
    """Compiles the program of a language, where it has to be."""
    sources = HERE / "azure"
    if language == "python":
        return [sys.executable, sources / "scenarios.py"]
    if language == "dotnet":
        return csharp("Pairs")
    if language == "javascript":
        installed = (HERE / "node_modules" / "@azure" / "service-bus").is_dir()
        assert installed, "@azure/service-bus is not installed: run scripts/setup.sh test"
        return ["node", sources / "scenarios.mjs"]
    if language == "go":
        return [built_in_go("azure", folder)]
    trust = trusting_in_java(certificates, folder)
    classpath = compiled_in_java(sources / "java", folder)
    quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return ["java", *quick, *trust, "-cp", classpath, "Azure"]


@pytest.fixture(scope="module")
def programs(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Program]:
    """The program of each language, which is compiled once."""
    certificates = str(guarded.authority.path)
    trust = {"SSL_CERT_FILE": certificates, "NODE_EXTRA_CA_CERTS": certificates}

    @cache
    def made(language: str) -> Program:
        command = command_of(language, Path(certificates), tmp_path_factory.mktemp(language))
        return Program(language, command, os.environ | trust)

    return made


@pytest.fixture(scope="module", params=LANGUAGES)
def program(request: pytest.FixtureRequest, programs: Callable[[str], Program]) -> Program:
    return programs(request.param)


@pytest.fixture(scope="module")
def sdk(program: Program, guarded: Guarded) -> Found:
    """What all scenarios of a language found, which run in one process."""
    language = program.language
    arguments = [*guarded.strings, f"{language}/", *LANGUAGES[language]]
    output = finished([*program.command, *arguments], SECONDS, env=program.environment)
    return Found.read(language, output)


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
    found = dict(sdk["settle"])
    del found["changed"]
    assert found == {
        "again": ["second", FIRST_COUNT[sdk.program] + 1],
        "dead": ["second", "second", "why", "weil es größer ist", f"{sdk.program}/settle"],
        "left": [0, 0],
    }


@pytest.mark.parametrize("program", ["javascript", "go", "java"], indirect=True)
def test_what_an_outcome_changes_is_an_application_property(sdk: Found) -> None:
    """The client for Python changes nothing."""
    assert sdk["settle"]["changed"] == ["once", "once", "yard"]


def test_a_lock_is_renewed_and_a_lost_one_is_not(sdk: Found) -> None:
    assert sdk["renew"] == {"renewed": True, "lost": LOCK_LOST[sdk.program]}


def test_an_outcome_after_the_end_of_its_lock_is_an_error(sdk: Found) -> None:
    assert sdk["lost"] == {"again": "one", "lost": LOCK_LOST[sdk.program], "left": 0}


def test_peeked_messages_stay(sdk: Found) -> None:
    found = sdk["peek"]
    assert found == {"first": ["one", "two"], "rest": ["three"], "from": [["two"], 2], "left": 3}


def test_messages_are_scheduled_and_cancelled(sdk: Found) -> None:
    assert sdk["schedule"] == {
        "numbers": [1, 2],
        "peeked": "one",
        "scheduled": True,
        # The client for Java takes "not scheduled" for success.
        "twice": sdk.program != "java",
        "came": "soon",
        "early": False,
    }


def test_a_subscription_gets_what_a_topic_is_sent_and_has_dead_letters(sdk: Found) -> None:
    assert sdk["topic"] == {"body": "for all", "dead": "for all"}


@pytest.mark.parametrize("program", ["python", "javascript"], indirect=True)
def test_messages_are_scheduled_in_a_topic_and_cancelled(sdk: Found) -> None:
    assert sdk["topic_schedule"] == {
        "numbers": [1, 2],
        "twice": True,
        "came": ["three", "two"],
        "early": False,
    }


def test_who_may_not_send_is_refused(sdk: Found) -> None:
    right, key = {
        "python": ("ServiceBusAuthorizationError", "ServiceBusAuthenticationError"),
        "javascript": ("UnauthorizedAccess", "UnauthorizedAccess"),
        "go": ("unauthorized", "unauthorized"),
        "java": ("UNAUTHORIZED", "UNAUTHORIZED"),
    }[sdk.program]
    assert sdk["refused"] == {"right": right, "key": key}


def test_messages_pass_over_a_websocket(sdk: Found) -> None:
    assert sdk["websocket"] == {"body": "x"}


def test_a_deferred_message_is_received_by_its_number_and_once(sdk: Found) -> None:
    assert sdk["deferred"] == {"back": "one", "deferred": True, "twice": True, "left": [1, 0]}


def test_of_messages_with_one_id_the_first_is_stored(sdk: Found) -> None:
    assert sdk["duplicates"] == {"bodies": ["one", "three"], "left": 0}


@pytest.fixture(scope="module")
def restarted(
    programs: Callable[[str], Program], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Found]:
    """What each language found over a kill of the broker that all of them use at once."""
    data = tmp_path_factory.mktemp("restarted") / "data"
    amqp, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    flags = ("--service-bus-auto-create", "true", "--amqp", amqp, "--http", http)
    key = key_of(data, "all")
    found = {}
    with ExitStack() as stack:
        with Broker(data, *flags) as broker:
            give_all(data, (f"{language}/restart" for language in LANGUAGES), role="queue")
            clients = {}
            for language in LANGUAGES:
                program = programs(language)
                clients[language] = client = subprocess.Popen(
                    [*program.command, *[connection_string(broker, key)] * 3, f"{language}/", "restart"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env=program.environment,
                )
                stack.callback(client.wait)
                stack.callback(client.kill)
            for client in clients.values():
                assert client.stdout is not None
                half = json.loads(wait.line(client.stdout, SECONDS))
                assert half == {"scenario": "restart", "found": "half"}
            broker.kill_everything()
        for client in clients.values():
            assert client.stdin is not None
            client.stdin.write(b"\n")
        with Broker(data, *flags):
            for language, client in clients.items():
                output, _ = client.communicate(timeout=SECONDS)
                found[language] = Found.read(language, output.decode())
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_sends_and_receives_go_on_over_a_kill_of_the_broker(
    restarted: dict[str, Found], language: str
) -> None:
    """By the same objects of the client.

    Only the client for JavaScript has to be called again while connections are refused.
    """
    assert restarted[language]["restart"] == {"bodies": list(range(20))}


def test_a_session_is_accepted_by_its_id_and_as_the_next_one_and_has_a_state(sdk: Found) -> None:
    found = dict(sdk["session"])
    # Those for JavaScript and Java list no sessions, and wait for the next one as long as for any call.
    only_go = {"none": "timeout", "listed": ["b", "a"], "cleared": True} if sdk.program == "go" else {}
    busy: dict[str, object] = {"go": True, "javascript": "SessionCannotBeLocked"}
    busy |= {"java": "SESSION_CANNOT_BE_LOCKED", "python": "SessionCannotBeLockedError"}
    assert found == {
        "sessions": ["a", "b"],
        "bodies": ["a1", "a2"],
        "busy": busy[sdk.program],
        "state": [0, "state"],
        "renewed": True,
        **only_go,
    }


@pytest.mark.parametrize("program", ["javascript", "java"], indirect=True)
def test_a_processor_completes_and_abandons(sdk: Found) -> None:
    failed = {"javascript": "processMessageCallback", "java": "USER_CALLBACK"}[sdk.program]
    seen = sorted([failed, "one 0", "three 0", "two 0", "two 1"])
    assert sdk["processor"] == {"seen": seen, "left": 0}


@pytest.mark.parametrize("program", ["java"], indirect=True)
def test_what_is_done_in_a_transaction_takes_effect_with_its_commit(sdk: Found) -> None:
    assert sdk["transaction"] == {
        "before": 0,
        "bodies": ["one", "two"],
        "left": 0,
        "dead": ["two", "why"],
        "again": ["three", 1],
    }


@pytest.mark.parametrize("program", ["java"], indirect=True)
def test_a_message_is_deferred_by_the_commit_of_a_transaction(sdk: Found) -> None:
    assert sdk["deferring"] == {"back": "one", "state": "DEFERRED", "again": ["two", 1], "left": 0}


@pytest.mark.parametrize("program", ["java"], indirect=True)
def test_messages_received_by_their_numbers_are_settled_by_the_commit_of_a_transaction(sdk: Found) -> None:
    assert sdk["settling"] == {
        "answer": "answer",
        "locked": [True, True, True],
        "again": ["two", 1],
        "dead": ["three", "why"],
        # After the rollback its lock goes on.
        "left": ["four"],
    }


@pytest.mark.parametrize("program", ["java"], indirect=True)
def test_a_session_is_settled_and_sent_to_in_a_transaction(sdk: Found) -> None:
    assert sdk["sessions"] == {"sent": "a4", "late": "a2", "left": ["a3"]}


@pytest.mark.parametrize("program", ["java"], indirect=True)
def test_rules_are_added_listed_and_removed_over_amqp(sdk: Found) -> None:
    red = "red CorrelationRuleFilter: sys.CorrelationId = 'id'sys.Label = 'red'"
    listed = ["$Default TrueRuleFilter", "dear SqlRuleFilter: price > 100", red]
    assert sdk["rules"] == {"listed": listed, "left": 2}


def test_what_one_language_sends_another_one_settles(
    guarded: Guarded, programs: Callable[[str], Program]
) -> None:
    """Each with each, at the same time: fields, bodies of all kinds, schedules, sessions, all outcomes."""

    # Before the others wait for what one of them does not send.
    made = {language: programs(language) for language in azure_pairs.LANGUAGES}

    def played(language: str) -> dict[str, Any]:
        if language == "python":
            return azure_pairs.pairs(guarded.strings[0])
        _, command, environment = made[language]
        command = [command[0], HERE / "azure" / "pairs.mjs"] if language == "javascript" else command
        names = [] if language in ("javascript", "dotnet") else ["", "pairs"]
        output = finished([*command, *guarded.strings, *names], SECONDS + 60, env=environment)
        return dict(Found.read(language, output)["pairs"])

    with ThreadPoolExecutor(len(made)) as pool:
        found = dict(zip(made, pool.map(played, made), strict=True))
    assert [found[each] for each in made if "failed" in found[each]] == []
    http = http_by(guarded.broker, guarded.strings[0])
    for receiver, sender in itertools.product(azure_pairs.LANGUAGES, repeat=2):
        assert (receiver, sender, found[receiver][sender]) == (receiver, sender, azure_pairs.FOUND)
        queue = f"/pairs/{sender}/{receiver}"
        for name, count in ((queue, 0), (f"{queue}/session", 0), (f"{queue}/$dlq", 1)):
            figures = http("GET", f"{name}/!figures").json()
            assert (name, figures["ready"], figures["in_flight"]) == (name, count, 0)
    http.close()

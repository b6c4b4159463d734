"""docker-compose.yml, run as it is: a fresh machine, messages, more shards, a crash, a restart."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Message
from proton.utils import BlockingConnection

from tests.deploy.conftest import Docker
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, received
from tests.support.deploy.compose import Compose

pytestmark = pytest.mark.timeout(900)
PASSWORD = "chosen by the test"
LOGIN = {"user": "admin", "password": PASSWORD, "allowed_mechs": "PLAIN", "allow_insecure_mechs": True}
QUEUES = [f"orders-{number}" for number in range(12)]


@pytest.fixture(scope="module")
def stack(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """Everything that `docker compose up` starts, healthy."""
    scratch = tmp_path_factory.mktemp("compose")
    (scratch / "password").write_text(f"{PASSWORD}\n")
    (scratch / "password").chmod(0o600)
    compose = Compose(
        docker.engine, docker.program, scratch, LIGHTRAIL_PASSWORD_FILE=str(scratch / "password")
    )
    compose("build", time_s=600)
    compose.up()
    yield compose
    compose("--profile", "*", "down", "--volumes", "--timeout", "30")


def test_up_on_a_fresh_machine_is_two_frontends_three_shards_and_a_gateway(stack: Compose) -> None:
    assert [stack.healthy(name) for name in ("etcd", "shard", "frontend", "gateway", "proxy")] == [
        1,
        3,
        2,
        1,
        1,
    ]
    (init,) = stack.containers("init")
    assert (init["State"]["Status"], init["State"]["ExitCode"]) == ("exited", 0)


def test_what_is_sent_through_the_port_arrives(stack: Compose) -> None:
    with connected(stack.amqp, **LOGIN) as connection:
        _send(connection, "hello", "first")
        assert [message.body for message in received(connection.create_receiver("hello"), 1)] == ["first"]


def test_nobody_gets_in_without_the_password(stack: Compose) -> None:
    with pytest.raises(Exception, match=r"Authentication failed|amqp:unauthorized"):
        BlockingConnection(f"amqp://{stack.amqp}", timeout=10, **(LOGIN | {"password": "another"}))


def test_secrets_are_in_no_description_of_a_container_nor_in_a_command_line(stack: Compose) -> None:
    key = stack("exec", "-T", "gateway", "cat", "/run/lightrail/wire.key").strip()
    for service in stack.configuration()["services"]:
        for each in stack.containers(service):
            told = json.dumps(each)
            assert PASSWORD not in told
            assert not any(line in told for line in key.splitlines() if len(line) > 30)
    assert PASSWORD not in stack("logs", "init")
    assert PASSWORD not in stack("top")


def test_processes_of_the_broker_are_nobody_special_and_write_nothing_to_their_image(
    stack: Compose,
) -> None:
    for service in ("shard", "frontend", "gateway"):
        for each in stack.containers(service):
            assert each["Config"]["User"] == "10001:10001"
            assert each["HostConfig"]["ReadonlyRootfs"]
            assert each["HostConfig"]["CapDrop"] == ["ALL"]


def test_prometheus_scrapes_every_process_and_takes_the_rules(stack: Compose) -> None:
    stack.up("prometheus")

    def up() -> bool:
        targets = _json(stack, "/api/v1/targets")["data"]["activeTargets"]
        ready = [each["labels"]["job"] for each in targets if each["health"] == "up"]
        return ready.count("lightrail") == 6 and "etcd" in ready

    wait.until(up, "six targets that are up", 60)
    assert _json(stack, "/api/v1/rules")["data"]["groups"]


def test_a_shard_that_is_killed_comes_back_with_its_queues(stack: Compose) -> None:
    with connected(stack.amqp, **LOGIN) as connection:
        for queue in QUEUES:
            _send(connection, f"killed-{queue}", "before")
        victim = stack.containers("shard")[0]
        os.kill(victim["State"]["Pid"], signal.SIGKILL)

        def again() -> bool:
            now = stack.containers("shard")
            return stack.healthy("shard") == len(now) and any(
                each["Id"] == victim["Id"] and each["RestartCount"] == victim["RestartCount"] + 1
                for each in now
            )

        wait.until(again, "a shard that was started again", 60)
        for queue in QUEUES:  # on the connection that was there before
            (message,) = received(connection.create_receiver(f"killed-{queue}"), 1)
            assert message.body == "before"


def test_more_shards_take_their_part_of_the_queues(stack: Compose) -> None:
    with connected(stack.amqp, **LOGIN) as connection:
        for queue in QUEUES:
            _send(connection, f"spread-{queue}", "before")
        stack.up("--scale", "shard=5")
        assert stack.healthy("shard") == 5
        stack("run", "--rm", "-T", "admin", "rebalance", time_s=120)
        shards = json.loads(stack("run", "--rm", "-T", "admin", "shard", "list", "--json"))
        assert [each["id"] for each in shards] == [0, 1, 2, 3, 4]
        assert all(each["serving"] and each["queues"] for each in shards), shards
        for queue in QUEUES:
            (message,) = received(connection.create_receiver(f"spread-{queue}"), 1)
            assert message.body == "before"


def test_a_restart_of_everything_keeps_messages(stack: Compose) -> None:
    with connected(stack.amqp, **LOGIN) as connection:
        for queue in QUEUES:
            _send(connection, f"kept-{queue}", "before")
    stack("down", "--timeout", "30")
    stack.up("--scale", "shard=5")
    with connected(stack.amqp, **LOGIN) as connection:
        for queue in QUEUES:
            (message,) = received(connection.create_receiver(f"kept-{queue}"), 1)
            assert message.body == "before"


def test_the_load_generator_logs_in_and_loses_nothing(stack: Compose) -> None:
    flags = ("--url=amqp://proxy:5672/bench", "--user=admin", "--password-file=/run/passwords/admin")
    said = stack(
        "run", "--rm", "-T", "bench", *flags, "--queues=2", "--receivers=2", "--count=1000", "--json"
    )
    result = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert result["received"] == 1000, result


@pytest.mark.soak
def test_what_happens_to_messages_of_a_captured_queue_gets_into_the_lake(stack: Compose) -> None:
    """With the image of Spark, whose packages take minutes to fetch."""
    stack("--profile", "analytics", "build", time_s=1_500)
    stack("run", "--rm", "admin", "names", "set", "kept", "role=queue", "capture=true")
    with connected(stack.amqp, **LOGIN) as connection:
        for number in range(5):
            _send(connection, "kept", f"message {number}")
        assert len(received(connection.create_receiver("kept"), 3)) == 3
    stack("--profile", "analytics", "up", "--detach", "capture")

    def complete() -> bool:
        said = stack(
            *("--profile", "analytics", "run", "--rm", "spark"),
            *("verify", "/lake/messages", "--gateway", "http://gateway:8080", "--json"),
            check=False,
        )
        return '"complete": true' in said

    wait.until(complete, "all of it is in the table", 240)


def _send(connection: BlockingConnection, queue: str, body: str) -> None:
    sender = connection.create_sender(queue)
    sender.send(Message(body=body, durable=True))
    sender.close()


def _json(stack: Compose, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.ports['PROMETHEUS']}{path}", timeout=10) as answer:
        return json.load(answer)

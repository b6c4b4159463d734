"""Moves over HTTP with a real broker of three shards: plans, throttles, calling off, draining, verifying."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import PLACEMENT, Placed
from lightrail.cluster.sqlite import SqliteCoordinator
from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http

NAMES = itertools.count()
BODY = "x" * 50_000
BATCH = 40
"""Messages of this size in one request."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data: Path = tmp_path_factory.mktemp("moves")
    with Broker(data / "data", "--shards", "3") as running:
        yield running


@pytest.fixture
def queues(http: Http) -> Iterator["Queues"]:
    """Queues of one test, which are gone after it, as its moves are."""
    made = Queues(http)
    yield made
    for shard in shards(http):
        if shard["state"] == "draining":
            assert http("PUT", f"/!shards/{shard['id']}", {"state": "active"}).status == 200
    http("DELETE", "/!moves")
    settled(http)
    for name in made.names:
        assert http("DELETE", f"/{name}/!policy").status == 204


class Queues:
    def __init__(self, http: Http) -> None:
        self._http = http
        self.names: list[str] = []

    def make(self, count: int, *messages: str) -> list[str]:
        names = [f"moves-{next(NAMES)}" for _ in range(count)]
        for name in names:
            assert self._http("POST", f"/{name}", {"role": "queue"}).status == 201
            self.names.append(name)
            for message in messages:
                assert self._http("POST", f"/{name}", message).status == 201
        return names

    def large(self, batches: int) -> str:
        """One with so many BATCHes."""
        (name,) = self.make(1)
        headers = {"Content-Type": "application/vnd.lightrail.batch+json"}
        for _ in range(batches):
            body = [{"Body": BODY}] * BATCH
            assert self._http("POST", f"/{name}", body, headers).status == 201
        return name


def shards(http: Http) -> list[Any]:
    return list(http("GET", "/!shards").json()["shards"])


def where(http: Http, name: str) -> int:
    for shard in shards(http):
        if name in http("GET", f"/!shards/{shard['id']}").json()["queue_names"]:
            return int(shard["id"])
    raise AssertionError(f"{name} is nowhere")


def moving(http: Http) -> list[Any]:
    return list(http("GET", "/!moves").json()["moves"])


def settled(http: Http) -> None:
    wait.until(lambda: not moving(http), "no move is under way")


def begin(http: Http, name: str, throttle: int = 0) -> int:
    """Begins to move a queue elsewhere; where to."""
    to = (where(http, name) + 1) % 3
    answer = http("POST", f"/!moves?throttle={throttle}", {"moves": [{"queue": name, "to": to}]})
    assert (answer.status, len(answer.json()["begun"])) == (202, 1), answer.body
    return to


def end_of(http: Http, name: str) -> Any:
    """What the shard says that was to get it, which it may say a moment later."""
    return wait.until(
        lambda: [each for each in http("GET", "/!moves").json()["ended"] if each["queue"] == name],
        f"the end of the move of {name} is known",
        10,
    )[-1]


def gather(http: Http, names: list[str]) -> None:
    """All of them to shard 0."""
    rows = [{"queue": name, "to": 0} for name in names if where(http, name) != 0]
    assert http("POST", "/!moves", {"moves": rows}).status == 202
    settled(http)


def test_a_plan_is_carried_out_once_and_the_next_one_is_empty(http: Http, queues: Queues) -> None:
    names = queues.make(30, "hello")
    gather(http, names)
    plan = http("GET", "/!plan?sample=0").json()
    assert {(move["from"], move["to"]) for move in plan["moves"]} == {(0, 1), (0, 2)}
    assert all(move["bytes"] > 0 for move in plan["moves"])
    before = http("GET", "/!plan?sample=0").json()
    assert before["moves"] == plan["moves"]
    assert before["placement_revision"] == plan["placement_revision"]
    assert moving(http) == []

    few = http("GET", "/!plan?sample=0&max_moves=3").json()
    assert len(few["moves"]) == 3
    assert http("POST", "/!moves", few).json()["left_out"] == []
    settled(http)
    moved_on = http("POST", "/!moves", plan)
    assert moved_on.status == 409
    assert "make a new plan" in moved_on.json()["detail"]

    rest = http("GET", "/!plan?sample=0").json()
    assert http("POST", "/!moves", rest).status == 202
    assert http("GET", "/!plan?sample=0").json()["moves"] == []
    settled(http)
    assert http("GET", "/!plan?sample=0").json()["moves"] == []
    assert sorted(each["queues"] for each in shards(http)) == [10, 10, 10]
    assert http("GET", "/!verify").json()["problems"] == []
    for name in names:
        assert http("DELETE", f"/{name}/!head").body == b"hello"


def test_queues_move_under_traffic_and_nothing_is_lost_twice_or_out_of_order(
    broker: Broker, http: Http, queues: Queues
) -> None:
    (name,) = queues.make(1)
    taken: list[int] = []
    sent = itertools.count()
    stop = threading.Event()
    failed: list[str] = []

    def send() -> None:
        with Http(broker.http) as client:
            while not stop.is_set():
                answer = client("POST", f"/{name}", str(next(sent)))
                if answer.status != 201:
                    failed.append(f"{answer.status} {answer.body!r}")

    def receive() -> None:
        with Http(broker.http) as client:
            while (answer := client("DELETE", f"/{name}/!head?timeout=1")).status == 200 or not stop.is_set():
                if answer.status == 200:
                    taken.append(int(answer.body))

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            seen = len(taken)
            begin(http, name)
            settled(http)
            assert end_of(http, name)["result"] == "done"
            wait.until_with(seen, lambda seen: len(taken) > seen + 5, "messages flow at the new shard")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert taken == list(range(next(sent)))


def test_a_throttle_slows_a_copy_to_its_bytes_per_second(http: Http, queues: Queues) -> None:
    name = queues.large(3)
    size = 3 * BATCH * len(BODY)
    begin(http, name, throttle=size // 2)
    began_s = time.monotonic()
    settled(http)
    seconds = time.monotonic() - began_s
    over = end_of(http, name)
    assert over["result"] == "done"
    assert size <= over["bytes"] <= 1.2 * size
    # Never faster; slower by what the rest of a move takes, which depends on the machine.
    assert seconds >= 1.8, over


def test_a_move_that_copies_is_called_off_and_the_queue_stays_with_all_it_has(
    http: Http, queues: Queues
) -> None:
    name = queues.large(2)
    source = where(http, name)
    begin(http, name, throttle=20_000)
    wait.until(lambda: [each for each in moving(http) if each["phase"] == "copy"], "it copies")
    assert http("DELETE", f"/!moves?queue={name}").json() == {"cancelled": [name], "too_late": []}
    assert moving(http) == []
    assert end_of(http, name)["result"] == "cancelled"
    assert where(http, name) == source
    figures = http("GET", f"/{name}/!figures").json()
    assert figures["ready"] == 2 * BATCH
    # The next one does not wait for the throttle of the one before.
    to = begin(http, name)
    settled(http)
    assert where(http, name) == to
    assert http("DELETE", f"/{name}/!messages").json() == {"purged": 2 * BATCH}


def test_moves_that_wait_are_called_off(http: Http, queues: Queues) -> None:
    names = [queues.large(1) for _ in range(10)]
    gather(http, names)
    rows = [{"queue": name, "to": 1} for name in names]
    assert len(http("POST", "/!moves?throttle=20000", {"moves": rows}).json()["begun"]) == 10
    wait.until(lambda: sum(each["phase"] == "copy" for each in moving(http)) == 8, "as many as go at once")
    assert sum(each["phase"] == "waiting" for each in moving(http)) == 2
    assert sorted(http("DELETE", "/!moves").json()["cancelled"]) == sorted(names)
    settled(http)
    assert {where(http, name) for name in names} == {0}
    assert http("GET", "/!verify").json()["problems"] == []


def test_a_connection_point_moves_without_a_copy(http: Http, queues: Queues) -> None:
    name = f"moves-{next(NAMES)}"
    assert http("POST", f"/{name}", {"role": "connection-point"}).status == 201
    queues.names.append(name)
    to = begin(http, name)
    settled(http)
    assert where(http, name) == to
    assert http("GET", "/!verify").json()["problems"] == []


def test_a_shard_drains_to_empty_gets_nothing_and_is_revived(http: Http, queues: Queues) -> None:
    names = queues.make(12, "hello")
    assert http("PUT", "/!shards/2", {"state": "draining"}).json()["state"] == "draining"
    shown = {each["id"]: each for each in http("GET", "/!status").json()["shards"]}
    assert (shown[1]["state"], shown[2]["state"], shown[2]["moving_out"]) == ("active", "draining", 0)
    assert b"<td>draining</td>" in http("GET", "/!ui").body
    plan = http("GET", "/!plan?sample=0").json()
    assert http("POST", "/!moves", plan).status == 202
    settled(http)
    assert shards(http)[2]["queues"] == 0
    queues.make(3)
    assert shards(http)[2]["queues"] == 0
    assert http("POST", "/!moves", {"moves": [{"queue": names[0], "to": 2}]}).status == 422
    assert "still runs" in http("DELETE", "/!shards/2").json()["detail"]
    assert http("PUT", "/!shards/2", {"state": "active"}).json()["queues"] == 0
    queues.make(1)
    assert shards(http)[2]["queues"] == 1
    for name in names:
        assert http("DELETE", f"/{name}/!head").body == b"hello"


def test_a_placement_that_outlived_its_name_is_found_and_given_back(broker: Broker, http: Http) -> None:
    write(broker, "ghost", Placed.encode(1, 1))
    wait.until(lambda: where(http, "ghost") == 1, "the gateway has heard of it")
    (problem,) = http("GET", "/!verify").json()["problems"]
    assert problem.startswith("ghost is placed on shard 1 and has no role: ")
    assert http("POST", "/!moves", {"moves": [{"queue": "ghost", "to": 2}]}).status == 422
    assert http("POST", "/ghost", {"role": "queue"}).status == 201
    assert http("DELETE", "/ghost/!policy").status == 204
    assert http("GET", "/!verify").json()["problems"] == []


def test_verify_finds_a_queue_that_is_placed_on_a_shard_which_is_none(broker: Broker, http: Http) -> None:
    write(broker, "ghost", Placed.encode(7, 1))
    problem = "ghost is placed on shard 7, which is no part of this cluster"
    wait.until(lambda: http("GET", "/!verify").json()["problems"] == [problem], "it is found")
    assert http("GET", "/!plan?sample=0").json()["moves"] == []
    write(broker, "ghost", None)
    wait.until(lambda: http("GET", "/!verify").json()["problems"] == [], "nothing is wrong any more")


def write(broker: Broker, queue: str, value: str | None) -> None:
    """Another process of this installation writes down where a queue is."""

    async def put() -> None:
        coordinator = await SqliteCoordinator.open(str(broker.data / "coordinator.sqlite"))
        await coordinator.write([Write(PLACEMENT + queue, value)])
        await coordinator.close()

    asyncio.run(put())


def test_a_shard_that_was_drained_goes_with_a_start_with_fewer(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, "--shards", "3") as running, Http(running.http) as http:
        names = Queues(http).make(9, "hello")
        assert http("PUT", "/!shards/2", {"state": "draining"}).status == 200
        assert http("POST", "/!moves", http("GET", "/!plan?sample=0").json()).status == 202
        settled(http)
    with Broker(data, "--shards", "2") as running, Http(running.http) as http:
        assert [each["id"] for each in shards(http)] == [0, 1]
        for name in names:
            assert http("DELETE", f"/{name}/!head?timeout=20").body == b"hello"

"""Every kind of receiver of Azure's SDK for .NET while the broker is broken.

Processors with and without sessions, one that fetches ahead, a loop that receives, receive-and-delete,
transactions: messages are counted by their ids.

With the soak marker fault after fault for LIGHTRAIL_SOAK_SECONDS, chosen by LIGHTRAIL_CHAOS_SEED.
"""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lightrail.amqp.performatives import Accepted, Disposition
from tests.chaos.scene import RECOVERY_S, hold
from tests.chaos.service import Service
from tests.interop.azure_scene import key_of
from tests.interop.programs import Found, in_csharp
from tests.support import wait
from tests.support.amqp.bus_peer import VENDOR
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.amqp.frame_peer import Peer
from tests.support.http_client import Http
from tests.support.moves import move
from tests.support.namespace import give

SECONDS = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("LIGHTRAIL_CHAOS_SEED", "1"))
LOCK_S = 5
SESSIONS = 8
KINDS = ("processor", "prefetch", "loop", "deletes", "transactions", "sessions")
FAULTS = (
    "move",
    "cut",
    "kill frontend",
    "kill shard",
    "end frontend",
    "end shard",
    "end everything",
    "kill everything",
)
BETWEEN = 10
"""Messages that each kind settles between two faults."""
CLOCK_MS = 500
"""A message is locked a little earlier than its handler begins."""


@dataclass(frozen=True, slots=True)
class Event:
    """Of a call of a handler: "got" with the delivery count, "done" with how settling failed, or "none"."""

    ms: int
    id: int
    what: str
    value: str


class Scene:
    """A service, and connections to it that can be cut."""

    def __init__(self, service: Service, name: str, key: str, folder: Path) -> None:
        self.service, self.folder = service, folder
        self.key = (name, key)
        self.proxy = CuttingProxy(int(service.address.rpartition(":")[2]))
        self.connection = (
            f"Endpoint=sb://{self.proxy.url};SharedAccessKeyName={name};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true"
        )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    data = folder / "data"
    name, _, key = key_of(data, "shop").removeprefix("SharedAccessKeyName=").partition(";SharedAccessKey=")
    with Service(data, "--shards", "2") as service:
        found = Scene(service, name, key, folder)
        try:
            yield found
        finally:
            found.proxy.close()


class Round:
    """One run of the program: `count` messages of each kind in queues of their own."""

    def __init__(self, scene: Scene, prefix: str, count: int) -> None:
        self.scene, self.service, self.prefix, self.count = scene, scene.service, prefix, count
        self.folder = scene.folder / prefix
        self.folder.mkdir()
        self.done: Counter[str] = Counter()
        data = self.service.data
        policy: dict[str, Any] = {"role": "queue", "lock_duration": LOCK_S, "duplicate_window": 3_600}
        for kind in KINDS:
            give(data, f"{prefix}/{kind}", **policy, groups=kind == "sessions")
        give(data, f"{prefix}/answers", role="queue")

    def program(self) -> Found:
        arguments = (self.scene.connection, self.prefix, str(self.count), str(self.folder))
        return in_csharp("Consumers", *arguments, seconds=600 + SECONDS)

    def events(self, kind: str) -> list[Event]:
        """Those of a kind, in order."""
        try:
            lines = (self.folder / kind).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        words = (line.split() for line in lines if line.endswith("\n"))
        return [Event(int(ms), int(id), what, value) for ms, id, what, value in words]

    def settled(self, kind: str) -> int:
        return len({each.id for each in self.events(kind) if (each.what, each.value) == ("done", "none")})

    def at_work(self, running: "Future[Found]") -> None:
        """Waits until each kind has settled some more messages, or most of what it has."""
        goals = {kind: min(self.settled(kind) + BETWEEN, self.count // 2) for kind in KINDS}

        def reached() -> bool:
            assert not running.done(), running.result()
            return all(self.settled(kind) >= goal for kind, goal in goals.items())

        wait.until(reached, f"{goals} are settled", 2 * RECOVERY_S)

    def run(self, fault: str, chance: random.Random) -> None:
        self.done[fault] += 1
        how, _, what = fault.partition(" ")
        if how == "cut":
            self.scene.proxy.cut()
        elif how == "move":
            move(self.service.data, *(f"{self.prefix}/{kind}" for kind in KINDS))
        elif what == "everything" and how == "kill":
            self.service.kill_everything()
        else:
            role = "supervisor" if what == "everything" else what
            id = chance.randrange(2) if role == "shard" else 0
            if how == "kill":
                self.service.kill(role, id)
                return
            pid = self.service.supervisor if role == "supervisor" else self.service.find(role, id)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            wait.until(lambda: wait.gone(pid), f"{role} ends", RECOVERY_S)

    def left(self) -> dict[str, object]:
        """What is not sent, and the figures of queues that have messages, or could not be asked."""
        found: dict[str, object] = {}
        with (
            suppress(OSError, HTTPException),
            Http(self.service.gateway, *self.scene.key, deadline_s=5.0) as http,
        ):
            for kind in KINDS:
                answer = http("GET", f"/{self.prefix}/{kind}/!figures")
                figures = answer.json() if answer.status == 200 else {}
                if figures.get("ready", 1) or figures["in_flight"]:
                    found[kind] = figures or answer.body
                elif not (self.folder / f"sent-{kind}").exists():
                    found[kind] = "not sent"
            return found
        return {"gateway": "does not answer"}

    def finish(self, running: "Future[Found]") -> None:
        """Lets the program receive what there is, and applies the laws."""
        deadline = time.monotonic() + RECOVERY_S
        while (left := self.left()) and not running.done() and time.monotonic() < deadline:
            hold(0.1)
        (self.folder / "stop").touch()
        found = running.result()
        print(f"{self.prefix}: {dict(self.done)}, {dict(found.scenarios) | {'answers': '...'}}")
        assert not left, f"{dict(self.done)}: still there: {left}, {found.scenarios}"
        complaints = [f"{kind}: {each}" for kind in KINDS for each in self.complaints(kind)]
        answers: list[int] = sorted(found["answers"])
        if answers != list(range(self.count)):
            complaints.append(f"answers: {Counter(answers) - Counter(range(self.count))} too many")
        assert not complaints, "\n".join([str(dict(self.done)), *complaints])

    def complaints(self, kind: str) -> Iterator[str]:
        """What no fault allows.

        A message that is settled does not come again. Before, it comes again when its lock has ended: by
        time, or with a process of a shard, or that of a session with its link. After a loss the delivery
        count is two at least; it is raised by a client whose connection was lost, and by nobody else. What is
        received and deleted at once may be lost, and comes once.
        """
        is_lost = self.done.keys() > {"move"} or "move" not in self.done
        count_max = 2 + self.done["cut"] if is_lost else 1
        # Locks of the last moment before a kill are not on disk.
        ends_locks = kind == "sessions" or not {"kill shard", "kill everything"}.isdisjoint(self.done)
        calls: defaultdict[int, list[Event]] = defaultdict(list)
        for each in self.events(kind):
            calls[each.id].append(each)
        lost = set(range(self.count)) - calls.keys()
        if lost and not (kind == "deletes" and is_lost):
            yield f"lost {sorted(lost)}"
        if kind == "sessions":
            for session in range(SESSIONS):
                order = [id for id in calls if id % SESSIONS == session]
                if order != sorted(order):
                    yield f"session {session} out of order: {order}"
        for id, story in calls.items():
            got = [each for each in story if each.what == "got"]
            settled = [index for index, each in enumerate(story) if each.value == "none"]
            if settled and any(each.what == "got" for each in story[settled[0] :]):
                yield f"{id} after it was settled: {story}"
            if kind == "deletes" and len(got) > 1:
                yield f"{id} twice: {story}"
            locked = [b.ms - a.ms for a, b in pairwise(got)]
            if locked and min(locked) < LOCK_S * 1_000 - CLOCK_MS and not ends_locks:
                yield f"{id} again before its lock ended: {story}"
            if max(int(each.value) for each in got) > count_max:
                yield f"{id} has a delivery count above {count_max}: {story}"


def play(scene: Scene, prefix: str, count: int, faults: Iterable[str], chance: random.Random) -> None:
    round = Round(scene, prefix, count)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(round.program)
        try:
            for fault in faults:
                round.at_work(running)
                round.run(fault, chance)
            round.finish(running)
        finally:
            (round.folder / "stop").touch()


@pytest.mark.timeout(240)
def test_no_message_is_lost_or_comes_twice_over_a_move_a_cut_a_kill_and_an_end(scene: Scene) -> None:
    faults = ("move", "cut", "kill frontend", "end shard")
    play(scene, "round", 120, faults, random.Random(SEED))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak_of_receivers_of_azure(scene: Scene) -> None:
    chance = random.Random(SEED)
    end = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < end:
        number += 1
        # Each fault alone first: then the law knows what it allows.
        faults = (
            [FAULTS[number - 1]]
            if number <= len(FAULTS)
            else chance.choices(FAULTS, k=chance.randrange(2, 7))
        )
        play(scene, f"round{number}", 150, faults, chance)


FETCHED = 10


def fetching(scene: Scene, queue: str) -> Peer:
    """A client that fetches messages ahead and settles none."""
    name, key = scene.key

    def connected() -> Peer | None:
        with suppress(OSError):
            return Peer(scene.service.address)
        return None

    peer = wait.until(connected, "a frontend listens", RECOVERY_S)
    assert peer is not None
    peer.sasl("PLAIN", f"\0{name}\0{key}".encode())
    peer.open()
    peer.begin()
    peer.attach_receiver(queue, properties=VENDOR)
    peer.flow(FETCHED)
    for _ in range(FETCHED):
        peer.delivery()
    return peer


@pytest.mark.timeout(120)
def test_what_was_fetched_ahead_counts_only_for_the_oldest_message_of_a_lost_client(
    scene: Scene,
) -> None:
    service = scene.service
    cut, killed, ended, lost = queues = [f"ahead/{each}" for each in ("cut", "killed", "ended", "lost")]
    for queue in queues:
        # Longer than a shard needs to notice that a frontend is lost: an end before that would count.
        give(service.data, queue, role="queue", lock_duration=8, max_delivery_count=1)
    with Http(service.gateway, *scene.key) as http:
        for queue in queues:
            for number in range(FETCHED):
                assert http("POST", f"/{queue}", str(number)).status == 201
        fetching(scene, cut).socket.close()
        with fetching(scene, killed):
            service.kill("frontend")
        with fetching(scene, ended):
            pid = service.find("frontend")
            os.kill(pid, signal.SIGTERM)
            wait.until(lambda: wait.gone(pid), "the frontend ends", RECOVERY_S)

        def counts(queue: str) -> tuple[int, ...]:
            answers = [http("GET", f"/{name}/!figures") for name in (queue, f"{queue}/$dlq")]
            if any(each.status != 200 for each in answers):
                # The gateway has not greeted the shard yet.
                return ()
            found = [each.json() for each in answers]
            return (*(each["ready"] for each in found), found[0]["in_flight"])

        for queue, dead in ((cut, 1), (killed, 0), (ended, 0)):
            expected = (FETCHED - dead, dead, 0)
            wait.until_with(queue, lambda queue: counts(queue)[2:] == (0,), f"the locks of {queue} end")
            assert (queue, counts(queue)) == (queue, expected)
        with fetching(scene, lost) as peer:
            # The link opens again under its key, and settles what it has.
            for shard in range(2):
                service.kill("shard", shard)
            for number in range(FETCHED):
                peer.write(Disposition(role=True, first=number, settled=False, state=Accepted()))
            left = FETCHED
            while left:
                found = peer.expect(Disposition)
                assert (found.settled, found.state) == (True, Accepted())
                left -= (found.first if found.last is None else found.last) - found.first + 1
        assert wait.until(lambda: counts(lost), "the shard serves") == (0, 0, 0)


HANDLERS = 32


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_handlers_of_10_s_complete_after_a_connection_that_is_cut_for_20_s(scene: Scene) -> None:
    give(scene.service.data, "cut", role="queue", lock_duration=60)
    with Http(scene.service.gateway, *scene.key) as http:
        for number in range(HANDLERS):
            assert http("POST", "/cut", str(number)).status == 201
    started, go = scene.folder / "started", scene.folder / "go"

    def cut() -> None:
        wait.until(started.exists, "each handler has a message", RECOVERY_S)
        with scene.proxy.away():
            hold(10.0)
            go.touch()
            hold(10.0)

    with ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(cut)
        found = in_csharp("Cut", scene.connection, "cut", str(HANDLERS), str(started), str(go))
        cutting.result()
    whole = {"completed": HANDLERS, "failed": [], "delivery counts": [1], "handled": HANDLERS}
    assert found.scenarios == whole

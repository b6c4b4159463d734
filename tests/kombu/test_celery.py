"""Celery's own worker, in processes of its own, on a real broker: its canvas works, and no task is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import Signature

from tests.kombu import tasks
from tests.support import wait
from tests.support.amqp.returning_broker import ReturningBroker
from tests.support.broker import ROOT, Broker
from tests.support.http_client import Http

DEADLINE_S = 40.0
READY_S = 40.0
ONE = ("--frontends", "1", "--shards", "1")


class Worker:
    """`celery worker` with a pool of two forked processes."""

    def __init__(self, environ: dict[str, str], log: Path) -> None:
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tests.kombu.tasks", "worker", "-P", "prefork"]
                + ["-c", "2", "-l", "INFO"],
                cwd=ROOT,
                env=os.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until_ready(self) -> None:
        wait.until(lambda: " ready." in self.said() or self.ended, "the worker is ready", READY_S)
        assert not self.ended, self.said()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9 of the worker alone; its pool sees by itself that the worker is dead."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """kill -9 of all its processes: a warm shutdown takes the pool some seconds."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Scene:
    """An application on a broker, in a virtual host of its own, and workers."""

    def __init__(
        self, stack: ExitStack, folder: Path, where: str, results: str, policy: dict[str, Any]
    ) -> None:
        self.stack = stack
        self.folder = folder
        self.done = folder / "done"
        self.done.touch()
        self.environ = {
            "TASKS_BROKER": f"lightrail://{where}",
            "TASKS_RESULTS": results,
            "TASKS_DONE": str(self.done),
            "TASKS_QUEUE_POLICY": json.dumps(policy),
        }
        self.app = tasks.make(self.environ["TASKS_BROKER"], results, policy)
        stack.callback(self.app.close)
        self.workers: list[Worker] = []

    def worker(self) -> Worker:
        """The one that runs, or another where it has ended; it is ready."""
        if not self.workers or self.workers[-1].ended:
            worker = Worker(self.environ, self.folder / f"worker{len(self.workers) + 1}.log")
            self.stack.callback(worker.stop)
            self.workers.append(worker)
        self.workers[-1].until_ready()
        return self.workers[-1]

    def task(self, name: str, *args: Any) -> Signature:
        return self.app.signature(f"tests.kombu.tasks.{name}", args=args)

    def notes(self) -> list[str]:
        return self.done.read_text().split()

    def have_run(self, names: list[str]) -> bool:
        return set(names) <= set(self.notes())


@contextmanager
def playing(folder: Path, where: str, results: str = "rpc://", **policy: Any) -> Iterator[Scene]:
    """`policy`: fields of the policy of queues."""
    with ExitStack() as stack:
        yield Scene(stack, folder, where, results, policy)


@pytest.fixture(scope="module")
def scene(shared_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """With results in files. Its worker is that of the test before, unless that has ended it."""
    folder = tmp_path_factory.mktemp("scene")
    results = folder / "results"
    results.mkdir()
    with playing(folder, f"{shared_broker.amqp}/scene", f"file://{results}") as found:
        yield found


def test_the_canvas_with_results_by_rpc(shared_broker: Broker, tmp_path: Path) -> None:
    with playing(tmp_path, f"{shared_broker.amqp}/canvas") as scene:
        scene.worker()
        add, app = scene.task, scene.app
        assert add("add", 2, 3).apply_async().get(timeout=DEADLINE_S) == 5
        sums = group([add("add", number, 1) for number in range(5)], app=app)
        assert sums.apply_async().get(timeout=DEADLINE_S) == [1, 2, 3, 4, 5]
        steps = chain(add("add", 1, 1), add("add", 10), add("add", 100), app=app)
        assert steps.apply_async().get(timeout=DEADLINE_S) == 112
        assert add("third_time").apply_async().get(timeout=DEADLINE_S) == 2
        asked = time.time()
        assert add("when").apply_async(countdown=1).get(timeout=DEADLINE_S) >= asked + 1
        pongs = app.control.ping(timeout=5, limit=1)
        assert [list(answer.values()) for answer in pongs] == [[{"ok": "pong"}]]


def test_no_task_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    broker = ReturningBroker(tmp_path / "data", *ONE)
    try:
        with playing(tmp_path, broker.url) as scene:
            scene.worker()
            accepted = []
            for number in range(40):
                if number == 20:
                    wait.until(scene.notes, "the first task has run")
                    broker.kill()
                    broker.start()
                scene.task("note", f"n{number}", 0.02).apply_async(countdown=2 if number % 10 == 5 else None)
                accepted.append(f"n{number}")
            wait.until(lambda: scene.have_run(accepted), "every accepted task has run", DEADLINE_S)
    finally:
        broker.stop()


def test_a_chord_with_results_in_files(scene: Scene) -> None:
    scene.worker()
    header = [scene.task("add", number, number) for number in range(4)]
    found = chord(header, app=scene.app)(scene.task("total"))
    assert found.get(timeout=DEADLINE_S) == 12


def test_no_task_is_lost_when_a_worker_is_killed(scene: Scene) -> None:
    worker = scene.worker()
    accepted = [f"killed{number}" for number in range(20)]
    for name in accepted:
        scene.task("note", name, 0.1).apply_async()
    wait.until(lambda: set(accepted) & set(scene.notes()), "the first task has run")
    worker.kill()
    scene.worker()
    wait.until(lambda: scene.have_run(accepted), "every accepted task has run", DEADLINE_S)


def test_a_task_whose_process_dies_runs_again(scene: Scene) -> None:
    scene.worker()
    scene.task("dies_at_first", "again").apply_async()
    wait.until(lambda: "again" in scene.notes(), "the task has run again", DEADLINE_S)


def test_a_task_that_runs_at_a_warm_shutdown_is_acknowledged(scene: Scene) -> None:
    worker = scene.worker()
    before = worker.said().count("note[")
    scene.task("note", "last", 1.0).apply_async()
    wait.until(lambda: worker.said().count("note[") > before, "the worker has the task")
    worker.process.terminate()
    worker.process.wait(DEADLINE_S)
    assert scene.notes().count("last") == 1
    with scene.app.connection_for_read() as connection:
        assert connection.channel().basic_get("celery") is None


def is_settled(broker: Broker, host: str) -> bool:
    """Whether the workers' queue has no message, not even one in flight."""
    with Http(broker.http) as http:
        figures = http("GET", f"/{host}/queue/celery/!figures").json()
    return not figures["ready"] and not figures["in_flight"]


@pytest.mark.parametrize("acked", ["late", "early"])
def test_a_warm_shutdown_loses_repeats_and_counts_nothing(
    shared_broker: Broker, tmp_path: Path, acked: str
) -> None:
    """A task whose delivery counts as failed once is a dead letter."""
    names = [str(number) for number in range(40)]
    host = f"warm-{acked}"
    with playing(tmp_path, f"{shared_broker.amqp}/{host}", max_delivery_count=1) as scene:
        for name in names:
            scene.task(f"work_acked_{acked}", name).apply_async()
        for _ in range(2):
            begun = len(scene.notes())
            worker = scene.worker()
            wait.until_with(begun, lambda begun: len(scene.notes()) > begun + 1, "a task is worked on")
            worker.process.terminate()
            worker.process.wait(DEADLINE_S)
            assert len(scene.notes()) < 2 * len(names)
        scene.worker()
        ends = [f"end-{name}" for name in names]
        wait.until(lambda: scene.have_run(ends), "every task has run", DEADLINE_S)
        assert Counter(scene.notes()) == Counter([*ends, *(f"begin-{name}" for name in names)])
        # A task writes its note before it is acknowledged, and the scene kills its worker.
        wait.until(lambda: is_settled(shared_broker, host), "every task is acknowledged", DEADLINE_S)
    with Http(shared_broker.http) as http:
        assert http("GET", f"/{host}/queue/celery/$dlq/!figures").json()["ready"] == 0

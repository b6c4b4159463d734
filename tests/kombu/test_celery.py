"""Celery's own worker, in processes of its own, on a real broker: its canvas works, and no task is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from celery import chain, chord, group
from celery.canvas import Signature

from tests.kombu import tasks
from tests.support import wait
from tests.support.broker import ROOT, Broker

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
    """A broker, an application on it, and workers."""

    def __init__(self, stack: ExitStack, place: Path, results: str) -> None:
        self.stack = stack
        self.place = place
        self.broker = Broker(place / "data", *ONE)
        stack.callback(lambda: self.broker.stop())
        self.broker.until_ready()
        self.done = place / "done"
        self.done.touch()
        self.environ = {
            "TASKS_BROKER": f"lightrail://{self.broker.amqp}",
            "TASKS_RESULTS": results,
            "TASKS_DONE": str(self.done),
        }
        self.app = tasks.make(self.environ["TASKS_BROKER"], results)
        stack.callback(self.app.close)
        self.workers = 0

    def worker(self) -> Worker:
        self.workers += 1
        worker = Worker(self.environ, self.place / f"worker{self.workers}.log")
        self.stack.callback(worker.stop)
        return worker

    def task(self, name: str, *args: Any) -> Signature:
        return self.app.signature(f"tests.kombu.tasks.{name}", args=args)

    def restart_broker(self) -> None:
        """After a kill -9: on the same port and data."""
        where = self.broker.amqp
        self.broker.kill_everything()
        self.broker.stop()
        self.broker = Broker(self.place / "data", *ONE, "--amqp", where)
        self.broker.until_ready()

    def notes(self) -> set[str]:
        return set(self.done.read_text().split())


@contextmanager
def playing(place: Path, results: str = "rpc://") -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack, place, results)


def test_the_canvas_with_results_by_rpc(tmp_path: Path) -> None:
    with playing(tmp_path) as scene:
        scene.worker().until_ready()
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


def test_a_chord_with_results_in_files(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    with playing(tmp_path, f"file://{results}") as scene:
        scene.worker().until_ready()
        header = [scene.task("add", number, number) for number in range(4)]
        found = chord(header, app=scene.app)(scene.task("total"))
        assert found.get(timeout=DEADLINE_S) == 12


def test_no_task_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    with playing(tmp_path) as scene:
        scene.worker().until_ready()
        accepted = []
        for number in range(40):
            if number == 20:
                wait.until(scene.notes, "the first task has run")
                scene.restart_broker()
            scene.task("note", f"n{number}", 0.02).apply_async(countdown=2 if number % 10 == 5 else None)
            accepted.append(f"n{number}")
        wait.until(lambda: set(accepted) <= scene.notes(), "every accepted task has run", DEADLINE_S)


def test_no_task_is_lost_when_a_worker_is_killed(tmp_path: Path) -> None:
    with playing(tmp_path) as scene:
        first = scene.worker()
        first.until_ready()
        accepted = [f"n{number}" for number in range(20)]
        for name in accepted:
            scene.task("note", name, 0.1).apply_async()
        wait.until(scene.notes, "the first task has run")
        first.kill()
        scene.worker().until_ready()
        wait.until(lambda: set(accepted) <= scene.notes(), "every accepted task has run", DEADLINE_S)


def test_a_task_whose_process_dies_runs_again(tmp_path: Path) -> None:
    with playing(tmp_path) as scene:
        scene.worker().until_ready()
        scene.task("dies_at_first", "again").apply_async()
        wait.until(lambda: "again" in scene.notes(), "the task has run again", DEADLINE_S)


def test_a_task_that_runs_at_a_warm_shutdown_is_acknowledged(tmp_path: Path) -> None:
    with playing(tmp_path) as scene:
        worker = scene.worker()
        worker.until_ready()
        scene.task("note", "last", 1.0).apply_async()
        wait.until(lambda: "note[" in worker.said(), "the worker has the task")
        worker.process.terminate()
        worker.process.wait(DEADLINE_S)
        assert scene.done.read_text().split() == ["last"]
        with scene.app.connection_for_read() as connection:
            assert connection.channel().basic_get("celery") is None

"""The application that the workers of the tests run: its settings come from the environment."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery


def make(broker: str, results: str, queue_policy: dict[str, Any]) -> Celery:
    """An application; that of a test calls the tasks by name."""
    made = Celery("tests")
    made.conf.update(
        broker_url=broker,
        broker_transport="lightrail.kombu:Transport",
        broker_transport_options={"queue_policy": queue_policy},
        result_backend=results,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_publish_retry_policy={
            "max_retries": None,
            "interval_start": 0,
            "interval_step": 0.1,
            "interval_max": 0.3,
        },
        worker_prefetch_multiplier=2,
        task_reject_on_worker_lost=True,
        # How long the pool waits for a result that a dead process may have sent, 10 s where nothing is set.
        worker_lost_wait=0.5,
        worker_cancel_long_running_tasks_on_connection_loss=False,
    )
    return made


app = make(
    os.environ.get("TASKS_BROKER", "lightrail://localhost"),
    os.environ.get("TASKS_RESULTS", "rpc://"),
    json.loads(os.environ.get("TASKS_QUEUE_POLICY", "{}")),
)


def write_down(what: str) -> None:
    with open(os.environ["TASKS_DONE"], "a") as done:
        done.write(f"{what}\n")


@app.task
def add(one: int, two: int) -> int:
    return one + two


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def when() -> float:
    return time.time()


@app.task(bind=True, max_retries=3)
def third_time(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(acks_late=True)
def note(what: str, seconds: float = 0.0) -> None:
    time.sleep(seconds)
    write_down(what)


def work(what: str) -> None:
    write_down(f"begin-{what}")
    time.sleep(0.3)
    write_down(f"end-{what}")


@app.task(acks_late=True)
def work_acked_late(what: str) -> None:
    work(what)


@app.task
def work_acked_early(what: str) -> None:
    work(what)


@app.task(acks_late=True)
def dies_at_first(what: str) -> None:
    """Kills its own process the first time."""
    died = Path(os.environ["TASKS_DONE"] + f".{what}")
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    write_down(what)

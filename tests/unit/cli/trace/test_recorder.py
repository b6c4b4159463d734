"""The recorder in a process that was started for it: which calls it records, and what it refuses."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import IO

import pytest

from lightrail.cli.trace.recorder import RecordedCall, Recorder, RecorderError, environment

FILES = {
    "main.py": """
        import asyncio, sys, threading
        from made import before, called, resumed, threaded, untouched

        async def main():
            task = asyncio.create_task(resumed.twice())
            await asyncio.sleep(0)
            before.run()
            print("started", flush=True)
            for line in sys.stdin:
                called.run()
                thread = threading.Thread(target=threaded.run)
                thread.start()
                thread.join()
                from made import loaded
                resumed.event.set()
                await task
                print("done", flush=True)

        asyncio.run(main())
    """,
    "before.py": "def run(): ...",
    "called.py": "def run(): ...",
    "threaded.py": "def run(): ...",
    "untouched.py": "def run(): ...",
    "loaded.py": "class A: ...",
    "resumed.py": """
        import asyncio
        event = asyncio.Event()
        async def twice():
            await event.wait()
    """,
}


class Process:
    """A program that calls its functions once for each line of its input."""

    def __init__(self, recorder: Recorder, pid: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.recorder = recorder
        self.pid = pid
        self._stdin, self._stdout = stdin, stdout

    def once(self) -> None:
        print(file=self._stdin, flush=True)
        assert self._stdout.readline() == "done\n"

    def end(self) -> None:
        self._stdin.close()
        assert self._stdout.read() == ""


@contextmanager
def recorded(folder: Path) -> Iterator[Process]:
    made = folder / "made"
    made.mkdir()
    for name, text in FILES.items():
        (made / name).write_text(dedent(text))
    sockets = folder / "s"
    sockets.mkdir()
    environ = environment(sockets, made)
    environ["PYTHONPATH"] += f"{os.pathsep}{folder}"
    with subprocess.Popen(
        [sys.executable, "-c", "import made.main"],
        env=os.environ | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        recorder = Recorder(sockets, {process.pid: "program"})
        yield Process(recorder, process.pid, process.stdin, process.stdout)
        process.stdin.close()


def files(calls: list[RecordedCall]) -> list[str]:
    return [call.file for call in calls]


def test_calls_between_begin_and_end_are_recorded_on_any_thread(tmp_path: Path) -> None:
    with recorded(tmp_path) as process:
        process.once()
        process.recorder.begin()
        process.once()
        first = process.recorder.end()
        process.once()
        process.recorder.begin()
        process.once()
        second = process.recorder.end()
    assert files(first) == files(second) == ["called.py", "threaded.py"]
    assert [(call.process, call.function, call.line) for call in first] == [("program", "run", 1)] * 2
    assert first[0].time_ns < first[1].time_ns < second[0].time_ns


def test_a_coroutine_that_is_resumed_counts_and_bodies_of_modules_and_classes_do_not(tmp_path: Path) -> None:
    with recorded(tmp_path) as process:
        process.recorder.begin()
        process.once()
        assert set(files(process.recorder.end())) == {"called.py", "threaded.py", "resumed.py", "main.py"}


def test_a_look_leaves_the_record_as_it_is(tmp_path: Path) -> None:
    with recorded(tmp_path) as process:
        process.recorder.begin()
        process.once()
        looked = process.recorder.look()
        assert looked == process.recorder.look() == process.recorder.end()
        with pytest.raises(
            RecorderError, match=r"expected a record of program .*, found none that was begun"
        ):
            process.recorder.look()


def test_a_process_that_was_not_started_for_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecorderError, match=r"expected that other .* it was started without the recorder"):
        Recorder(tmp_path, {os.getpid(): "other"}).begin()


def test_a_process_that_has_ended_is_refused(tmp_path: Path) -> None:
    with recorded(tmp_path) as process:
        process.end()
        with pytest.raises(RecorderError, match="or has ended"):
            process.recorder.begin()

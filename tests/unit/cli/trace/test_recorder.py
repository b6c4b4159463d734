"""The recorder in a process that was started for it: which calls it records, and what it refuses."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import IO

import pytest

from lightrail.cli.trace import recorder
from lightrail.cli.trace.recorder import (
    MEANING,
    Passage,
    Phase,
    RecordedCall,
    Recorder,
    RecorderError,
    Trace,
    environment,
)
from tests.support.broker import ROOT

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
        looked = process.recorder.calls_so_far()
        assert looked == process.recorder.calls_so_far() == process.recorder.end()
        with pytest.raises(
            RecorderError, match=r"expected a record of program .*, found none that was begun"
        ):
            process.recorder.calls_so_far()


def test_a_process_that_was_not_started_for_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecorderError, match=r"expected that other .* it was started without the recorder"):
        Recorder(tmp_path, {os.getpid(): "other"}).begin()


def test_a_process_that_has_ended_is_refused(tmp_path: Path) -> None:
    with recorded(tmp_path) as process:
        process.end()
        with pytest.raises(RecorderError, match="or has ended"):
            process.recorder.begin()


SENT, GRANTED, ACCEPTED = 100, 200, 300
READS, SETTLES, APPENDS, COMMITS, COMMITTED = (
    "wire/sockets/unix.py UnixConnection._read",
    "shard/engine/settling.py Settling.settle",
    "shard/journal/journal.py Journal.append",
    "shard/journal/journal.py Journal.begin_commit",
    "shard/effects/answers.py Answers.commit_ended",
)


def call(time_ns: int, process: str, what: str) -> RecordedCall:
    file, function = what.split()
    return RecordedCall(time_ns, process, file, function, 7)


CALLS = [
    call(90, "frontend", "a.py before"),
    call(101, "shard", "a.py timer"),
    call(110, "frontend", "a.py sends"),
    call(111, "frontend", READS),
    call(120, "shard", READS),
    call(125, "shard", "a.py stores"),
    call(126, "frontend", "a.py tail"),
    call(140, "frontend", READS),
    call(141, "frontend", "a.py answers"),
    call(201, "shard", "a.py tail"),
    call(210, "frontend", "a.py grants"),
    call(220, "shard", READS),
    call(230, "shard", "a.py delivers"),
    call(240, "frontend", READS),
    call(310, "frontend", "a.py settles"),
    call(311, "shard", COMMITTED),
    call(320, "shard", READS),
    call(321, "shard", SETTLES),
    call(322, "shard", COMMITTED),
    call(330, "shard", APPENDS),
    call(331, "shard", COMMITS),
    call(332, "frontend", "a.py timer"),
    call(340, "shard", COMMITTED),
    call(341, "shard", "a.py after"),
]


def passage(*more: RecordedCall, calls: list[RecordedCall] = CALLS) -> Passage:
    return Passage(SENT, GRANTED, ACCEPTED, sorted([*calls, *more]))


def shown(found: dict[Phase, list[RecordedCall]]) -> dict[str, list[str]]:
    return {
        phase.value: [f"{each.process} {each.function.rpartition('.')[2]}" for each in calls]
        for phase, calls in found.items()
    }


def test_each_call_is_of_the_phase_of_what_its_process_has_read() -> None:
    assert shown(passage().phases()) == {
        "send": ["frontend sends", "frontend _read", "frontend tail"],
        "store": ["shard _read", "shard stores", "shard tail"],
        "outcome": ["frontend _read", "frontend answers"],
        "deliver": [
            "frontend grants",
            "shard _read",
            "shard delivers",
            "frontend _read",
            "shard commit_ended",
        ],
        "settle": [
            "frontend settles",
            "shard _read",
            "shard settle",
            "shard commit_ended",
            "shard append",
            "shard begin_commit",
            "frontend timer",
            "shard commit_ended",
        ],
    }


def test_a_message_is_settled_with_the_commit_that_began_behind_its_record() -> None:
    assert passage().settled_ns == 340
    assert passage(calls=[each for each in CALLS if each.time_ns < 340]).settled_ns is None
    assert passage(calls=[each for each in CALLS if each.time_ns != 330]).settled_ns is None


def test_what_not_every_message_passes_is_left_out() -> None:
    timer = call(150, "frontend", "b.py timer")
    once = call(127, "shard", "a.py imports")
    same_name_elsewhere = call(128, "shard", "c.py stores")
    trace = Trace.of([passage(once), passage(), passage(timer, same_name_elsewhere)])
    assert shown(trace.phases) == shown(passage().phases())
    assert Trace.of([passage(timer), passage(timer)]).files("frontend") == {
        "a.py",
        "b.py",
        "wire/sockets/unix.py",
    }


def test_a_file_is_named_at_each_stay_with_the_functions_that_are_new_in_the_phase() -> None:
    trace = Trace.of(
        [
            passage(
                call(112, "frontend", "b.py f"),
                call(113, "frontend", "a.py sends"),
                call(114, "frontend", "a.py g"),
                call(115, "frontend", "a.py g.<locals>.<listcomp>"),
            )
        ]
    )
    text = trace.as_text()
    assert text.startswith(
        f"send: {MEANING[Phase.SEND]}, 0.00 to 0.00 ms\n"
        "  in the frontend\n"
        "    a.py  sends:7\n"
        "    wire/sockets/unix.py  UnixConnection._read:7\n"
        "    b.py  f:7\n"
        "    a.py  g:7, tail:7\n"
        "\n"
        f"store: {MEANING[Phase.STORE]}, 0.00 to 0.00 ms\n"
        "  in the shard\n"
    )
    assert "  in the frontend\n    a.py  grants:7\n  in the shard\n" in text
    assert text.endswith("\n6 files: 3 in the frontend, 5 in the shard")
    assert max(map(len, text.splitlines())) <= recorder.WIDTH


def test_every_call_has_its_time_and_process() -> None:
    trace = Trace.of([passage(call(1_500_100, "frontend", "a.py late"), calls=CALLS[:14])])
    lines = trace.as_text(every_call=True).splitlines()
    assert lines[1] == "      0.000 frontend  a.py:7  sends"
    assert "      1.500 frontend  a.py:7  late" in lines


def test_json_has_the_same() -> None:
    trace = Trace.of([passage(call(113, "frontend", "a.py sends"))])
    value = trace.as_value()
    assert [each["phase"] for each in value["phases"]] == [phase.value for phase in Phase]
    send = value["phases"][0]
    assert send.keys() == {"phase", "meaning", "functions"}
    assert send["functions"][0] == {
        "at_ms": 0.0,
        "process": "frontend",
        "file": "a.py",
        "function": "sends",
        "line": 7,
    }
    assert [each["function"] for each in send["functions"]] == ["sends", "UnixConnection._read", "tail"]
    assert value["files"] == sorted(trace.files())
    calls = trace.as_value(every_call=True)["phases"][0]["calls"]
    assert [each["function"] for each in calls] == ["sends", "UnixConnection._read", "sends", "tail"]


@pytest.mark.parametrize(
    "function", [recorder.READS_WIRE, *recorder.SETTLED], ids=lambda function: function[1]
)
def test_the_functions_that_bound_phases_exist(function: recorder.Function) -> None:
    file, name = function
    of_class, _, method = name.partition(".")
    tree = ast.parse((ROOT / "lightrail" / file).read_text())
    (found,) = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == of_class]
    assert method in [each.name for each in found.body if isinstance(each, ast.FunctionDef)]

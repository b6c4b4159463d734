"""The recorder of calls in processes that `lightrail trace` or `scripts/structure.py` started for it.

The command starts each process with the variables of `environment`, so that Python loads
hook/sitecustomize.py at the start of the process. Processes without these variables have no recorder.

The trace of one message: recorded calls by phases, as text or JSON.

A message is sent, and its outcome is awaited; then a receiver grants credit for it, receives it and accepts
it. These steps of the client bound three windows of time, which the shard enters when it reads what the
frontend sent in them. In the first window the calls of the shard are the phase *store*; those of the frontend
are *send* until it reads the answer of the shard, and *outcome* from then on. The second window is *deliver*.
The third one is *settle*: it ends when the record of the settlement is on disk, of which no client is
notified.
"""

import json
import os
import socket
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

HOOK: Final = Path(__file__).parent / "hook"
PACKAGE: Final = Path(__file__).parents[2]
"""The folder of the package lightrail."""


class RecordedCall(NamedTuple):
    """One call of a Python function.

    Attributes:
        time_ns: of time.monotonic_ns, which all processes of a machine share.
        file: relative to the package.
        function: with the names of its class and of functions around it.
        line: at which the function begins, with its decorators.
    """

    time_ns: int
    process: str
    file: str
    function: str
    line: int


class RecorderError(Exception):
    """Calls can't be recorded; the message says what was expected and found."""


def environment(sockets: Path, package: Path = PACKAGE) -> dict[str, str]:
    """Variables of a process that is to be recorded.

    Args:
        sockets: an existing folder that only the caller's user may enter; each process makes a socket in it.
        package: calls of files in this folder are recorded.
    """
    behind = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{HOOK}{os.pathsep}{behind}" if behind else str(HOOK),
        "TRACE_SOCKETS": str(sockets),
        "TRACE_ROOT": f"{package}{os.sep}",
    }


@dataclass(eq=False, repr=False)
class Recorder:
    """Records calls in all of some processes.

    Args:
        names: of the processes, by their ids.
    """

    _sockets: Path
    _names: Mapping[int, str]

    def begin(self) -> None:
        """Begin a record, and forget the former one. Raises RecorderError."""
        for pid in self._names:
            self._ask(pid, b"begin")

    def calls_so_far(self) -> list[RecordedCall]:
        """All calls of the record so far, in the order of time. Raises RecorderError."""
        return self._calls(b"look")

    def end(self) -> list[RecordedCall]:
        """End the record; returns its calls, in the order of time. Raises RecorderError."""
        return self._calls(b"end")

    def _calls(self, request: bytes) -> list[RecordedCall]:
        found = []
        for pid, name in self._names.items():
            answer = self._ask(pid, request)
            if not answer:
                raise RecorderError(f"expected a record of {name} (pid {pid}), found none that was begun")
            record: dict[str, Any] = json.loads(answer)
            if record["dropped"]:
                raise RecorderError(f"{name} made {record['dropped']} calls more than a record can have")
            functions = record["functions"]
            found += [RecordedCall(time_ns, name, *functions[index]) for time_ns, index in record["calls"]]
        return sorted(found)

    def _ask(self, pid: int, request: bytes) -> bytes:
        path = self._sockets / str(pid)
        with socket.socket(socket.AF_UNIX) as peer:
            try:
                peer.connect(str(path))
                peer.sendall(request)
                return b"".join(iter(lambda: peer.recv(65_536), b""))
            except OSError as error:
                raise RecorderError(
                    f"expected that {self._names[pid]} (pid {pid}) answers at {path}, found: {error}; it was "
                    "started without the recorder, or has ended"
                ) from None


FRONTEND: Final = "frontend"
SHARD: Final = "shard"
WIDTH: Final = 110
"""Columns of the text."""
COMPREHENSIONS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Parts of the function that has them (Python below 3.12 calls them)."""
Function = tuple[str, str]
"""(file, name)."""
READS_WIRE: Final[Function] = ("wire/sockets/unix.py", "UnixConnection._read")
"""A process has bytes of another one to read."""
SETTLED: Final[Sequence[Function]] = (
    ("shard/engine/settling.py", "Settling.settle"),
    ("shard/journal/journal.py", "Journal.append"),
    ("shard/journal/journal.py", "Journal.begin_commit"),
    ("shard/effects/answers.py", "Answers.commit_ended"),
)
"""What a shard calls for a settlement, in this order; with the last one the record is on disk."""


class Phase(StrEnum):
    """Phases of a message, in the order of time."""

    SEND = "send"
    STORE = "store"
    OUTCOME = "outcome"
    DELIVER = "deliver"
    SETTLE = "settle"


MEANING: Final = {
    Phase.SEND: "the frontend reads a transfer of the client and sends the shard a batch",
    Phase.STORE: "the shard puts the batch into its journal and its queue, and syncs the record",
    Phase.OUTCOME: "the frontend reads the answer and writes a disposition to the client",
    Phase.DELIVER: "a client grants credit, and its message passes from the queue to it",
    Phase.SETTLE: "the client accepts the message, and the shard syncs the record of that",
}


@dataclass(frozen=True)
class Passage:
    """One message's calls, in the order of time, and what its client did, in ns of the same clock."""

    sent_ns: int
    granted_ns: int
    accepted_ns: int
    calls: Sequence[RecordedCall]

    @property
    def settled_ns(self) -> int | None:
        """When the record of the settlement was on disk; None: not yet."""
        calls = (call for call in self.calls if call.time_ns >= self.accepted_ns and call.process == SHARD)
        last = None
        for function in SETTLED:
            last = next((call.time_ns for call in calls if _function(call) == function), None)
        return last

    def phases(self) -> dict[Phase, list[RecordedCall]]:
        """The calls of each phase. Calls after `settled_ns` are of none."""
        found: dict[Phase, list[RecordedCall]] = {phase: [] for phase in Phase}
        settled_ns = self.settled_ns
        of_shard: Phase | None = None
        is_answered = False
        for call in self.calls:
            if call.time_ns < self.sent_ns or (settled_ns is not None and call.time_ns > settled_ns):
                continue
            window = (call.time_ns >= self.granted_ns) + (call.time_ns >= self.accepted_ns)
            reads = _function(call) == READS_WIRE
            if call.process == SHARD:
                if reads:
                    # Until then it has to end its work on what it read before.
                    of_shard = (Phase.STORE, Phase.DELIVER, Phase.SETTLE)[window]
                if of_shard is not None:
                    found[of_shard].append(call)
            else:
                # The frontend reads no answer to the message before the shard has read the message.
                is_answered |= reads and of_shard is not None
                first = Phase.OUTCOME if is_answered else Phase.SEND
                found[(first, Phase.DELIVER, Phase.SETTLE)[window]].append(call)
        return found


@dataclass(frozen=True)
class Trace:
    """What each of several equal messages passes, with the calls and times of the last one.

    Work of timers, and what happens once, is not in all of them, and so is left out.

    Attributes:
        phases: the calls of each phase, in the order of time.
        began_ns: time 0 of the output.
    """

    phases: dict[Phase, list[RecordedCall]]
    began_ns: int

    @classmethod
    def of(cls, passages: Sequence[Passage]) -> Self:
        """The common trace of at least one message."""
        each = [passage.phases() for passage in passages]
        phases = {}
        for phase in Phase:
            passed = set.intersection(*({_named(call) for call in found[phase]} for found in each))
            phases[phase] = [call for call in each[-1][phase] if _named(call) in passed]
        return cls(phases, passages[-1].sent_ns)

    def files(self, process: str | None = None) -> set[str]:
        """All files that the message passes, or those in one of the processes."""
        return {
            call.file
            for calls in self.phases.values()
            for call in calls
            if process is None or call.process == process
        }

    def entered(self, phase: Phase) -> list[RecordedCall]:
        """The first call of each function in a phase, in each process."""
        first: dict[tuple[str, Function], RecordedCall] = {}
        for call in self.phases[phase]:
            if not call.function.endswith(COMPREHENSIONS):
                first.setdefault(_named(call), call)
        return list(first.values())

    def as_text(self, *, every_call: bool = False) -> str:
        """A paragraph for each phase; a line for each stay in a file, or for each call."""
        lines = []
        for phase, calls in self.phases.items():
            times = f", {self._ms(calls[0]):.2f} to {self._ms(calls[-1]):.2f} ms" if calls else ""
            lines += [f"{phase}: {MEANING[phase]}{times}"]
            lines += self._calls(calls) if every_call else self._stays(self.entered(phase))
            lines.append("")
        counts = (f"{len(self.files(process))} in the {process}" for process in (FRONTEND, SHARD))
        lines.append(f"{len(self.files())} files: {', '.join(counts)}")
        return "\n".join(lines)

    def as_value(self, *, every_call: bool = False) -> dict[str, Any]:
        """The same for JSON: {"phases": [{"phase", "meaning", "functions": [CALL, ...]}], "files"}.

        With `every_call` a phase has "calls", too. A CALL has "at_ms", "process", "file", "function", "line".
        """
        phases = []
        for phase, calls in self.phases.items():
            value = {
                "phase": phase,
                "meaning": MEANING[phase],
                "functions": self._values(self.entered(phase)),
            }
            phases.append(value | ({"calls": self._values(calls)} if every_call else {}))
        return {"phases": phases, "files": sorted(self.files())}

    def _ms(self, call: RecordedCall) -> float:
        return (call.time_ns - self.began_ns) / 1_000_000

    def _values(self, calls: Iterable[RecordedCall]) -> list[dict[str, Any]]:
        values = []
        for call in calls:
            value = call._asdict()
            del value["time_ns"]
            values.append({"at_ms": round(self._ms(call), 3), **value})
        return values

    def _calls(self, calls: Iterable[RecordedCall]) -> Iterator[str]:
        for call in calls:
            yield f"  {self._ms(call):9.3f} {call.process:8}  {call.file}:{call.line}  {call.function}"

    def _stays(self, calls: Iterable[RecordedCall]) -> Iterator[str]:
        process = None
        for (in_process, file), stay in groupby(calls, lambda call: (call.process, call.file)):
            if in_process != process:
                process = in_process
                yield f"  in the {process}"
            functions = ", ".join(f"{call.function}:{call.line}" for call in stay)
            yield from textwrap.wrap(
                f"{file}  {functions}",
                WIDTH,
                initial_indent="    ",
                subsequent_indent="        ",
                break_long_words=False,
                break_on_hyphens=False,
            )


def _function(call: RecordedCall) -> Function:
    return call.file, call.function


def _named(call: RecordedCall) -> tuple[str, Function]:
    return call.process, _function(call)

"""One run from start to verdict: its processes, the measured window, draining, the checks."""

import multiprocessing
import secrets
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any, Final

from lightrail.bench import arrivals, kernel
from lightrail.bench import board as words
from lightrail.bench.arrivals import Arrivals
from lightrail.bench.board import Board
from lightrail.bench.histogram import Histogram
from lightrail.bench.kernel import Spent, between, read, tree
from lightrail.bench.message import RUN_BITS
from lightrail.bench.plan import (
    Options,
    ReceiverResult,
    RequesterResult,
    ResponderResult,
    RunProgress,
    SenderResult,
    Share,
)
from lightrail.bench.worker import work

POLL_S: Final = 0.01
START_AFTER_NS: Final = 50_000_000
LATE_DUPLICATES_S: Final = 0.1
"""How long the receivers go on after all messages have arrived, to find duplicates."""
ENDING_TIME_S: Final = 15.0
CONNECTING_TIME_S: Final = 120.0


class RunError(Exception):
    """The run could not be made; the text says why."""


@dataclass(slots=True)
class Window:
    """The measured part of a run."""

    elapsed_s: float = 0.0
    sent: int = 0
    received: int = 0
    server: Spent | None = None
    senders_cpu_s: float = 0.0
    receivers_cpu_s: float = 0.0
    switches: int = 0
    """Voluntary context switches of the server's threads."""
    system_calls: int | None = None
    slow_sent: int = 0
    """Messages of the slow senders, which are not in ``sent``; the slow receivers' are likewise apart."""
    slow_received: int = 0


@dataclass(slots=True)
class RunResult:
    """The result of a run."""

    window: Window
    sent: int = 0
    accepted: int = 0
    not_accepted: dict[str, int] = field(default_factory=dict)
    received: int = 0
    replies_not_accepted: dict[str, int] = field(default_factory=dict)
    foreign: int = 0
    lost: int = 0
    lost_examples: list[str] = field(default_factory=list)
    arrivals: Arrivals = field(default_factory=Arrivals)
    latency: Histogram = field(default_factory=Histogram)
    slow_latency: Histogram = field(default_factory=Histogram)
    """Latency until a slow receiver began with a message."""
    accepted_after: Histogram = field(default_factory=Histogram)
    interrupted: bool = False

    @property
    def faults(self) -> int:
        """Messages lost, duplicated, out of order or misdirected."""
        found = self.arrivals
        return self.lost + found.duplicates + found.disordered + found.misdirected


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Pipe
    kind: str
    slow: bool
    result: Any = None


class LoadRun:
    """The processes of a run and its clock."""

    def __init__(self, options: Options, progress: RunProgress) -> None:
        self.options = options
        self.progress = progress
        self.run = secrets.randbits(RUN_BITS)
        parts: list[tuple[str, tuple[int, ...]]] = []
        if not options.send_only:
            parts += [("receiver", part) for part in self._parts(options.receivers)]
        if not options.drain_only:
            parts += [("sender", part) for part in self._parts(options.senders)]
        fast = len(parts)
        if options.slow:
            parts += [(kind, tuple(range(options.slow))) for kind in ("receiver", "sender")]
        try:
            self._calls = kernel.SystemCalls(options.pids) if options.system_calls else None
        except kernel.NotCountedError as error:
            raise RunError(f"--system-calls: {error}") from None
        self.board = Board(len(parts), len(parts) - fast)
        self.workers: list[_Worker] = []
        self._ready = 0
        context = multiprocessing.get_context("spawn")
        for number, (kind, links) in enumerate(parts):
            slow = number >= fast
            share = Share(options, number, self.run, links, self._connections(kind, links), slow)
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(kind, share, self.board, theirs), daemon=True, name=f"bench-{kind}"
            )
            process.start()
            theirs.close()
            self.workers.append(_Worker(process, ours, kind, slow))

    def _parts(self, links: int) -> list[tuple[int, ...]]:
        slow = self.options.slow
        number = min(self.options.processes, links - slow)
        return [tuple(range(slow + i, links, number)) for i in range(number)]

    def _connections(self, kind: str, links: tuple[int, ...]) -> int:
        options = self.options
        if not options.connections:
            return len(links)
        all_links = options.senders if kind == "sender" else options.receivers
        return min(len(links), max(1, options.connections * len(links) // all_links))

    def execute(self) -> RunResult:
        """Execute the run; raises RunError. All processes have ended afterwards."""
        try:
            return self._execute()
        finally:
            self.progress.finish()
            if self._calls is not None:
                self._calls.close()
            for worker in self.workers:
                if worker.process.is_alive():
                    worker.process.terminate()
                worker.process.join()
                worker.pipe.close()

    def _execute(self) -> RunResult:
        self._await_ready()
        shared = self.board.words
        start = time.monotonic_ns() + START_AFTER_NS
        shared[words.START] = start
        window = Window()
        for worker in self.workers:
            worker.pipe.send(True)
        interrupted = self._measure(start, window)
        outcome = self._finish(window)
        outcome.interrupted = interrupted
        return outcome

    # --- the measured part -----------------------------------------------------------------------------

    def _measure(self, start: int, window: Window) -> bool:
        """Measure the window; whether it was interrupted."""
        options, board = self.options, self.board
        count = options.count
        field_counted = words.SETTLED if options.send_only else words.RECEIVED
        warm_up_ns = int(options.warm_up_s * 1e9)
        warm_up_count = count // 10 if count is not None else 1 << 62
        try:
            while time.monotonic_ns() < start + warm_up_ns and board.fast(field_counted) < warm_up_count:
                self._poll(start)
        except KeyboardInterrupt:
            return True
        now = time.monotonic_ns()
        board.words[words.MEASURE_FROM] = now
        sent, counted = board.fast(words.SENT), board.fast(field_counted)
        sent_by_all, counted_of_all = board.sum(words.SENT), board.sum(field_counted)
        before, server_before = self._cpu(), tree(options.pids)
        switches = kernel.switches(server_before)
        calls = self._calls.count() if self._calls is not None else 0
        began = time.monotonic_ns()
        deadline = began + int(options.duration_s * 1e9)
        quiet_since, last_counted = began, counted
        interrupted = False
        while not interrupted:
            try:
                self._poll(start)
            except KeyboardInterrupt:
                interrupted = True
            now = time.monotonic_ns()
            current = board.fast(field_counted)
            if current != last_counted:
                quiet_since, last_counted = now, current
            if self._is_over(now, deadline, current, quiet_since):
                break
        if self.options.drain_only or count is not None:
            now = max(board.latest(words.LAST_NS), began + 1)
        after, server_after = self._cpu(), tree(options.pids)
        window.switches = kernel.more(switches, kernel.switches(server_after))
        if self._calls is not None:
            window.system_calls = self._calls.count() - calls
        window.elapsed_s = (now - began) / 1e9
        window.sent = board.fast(words.SENT) - sent
        window.received = board.fast(field_counted) - counted
        window.slow_sent = board.sum(words.SENT) - sent_by_all - window.sent
        window.slow_received = board.sum(field_counted) - counted_of_all - window.received
        window.server = between(server_before, server_after) if options.pids else None
        window.senders_cpu_s = after["sender"] - before["sender"]
        window.receivers_cpu_s = after["receiver"] - before["receiver"]
        return interrupted

    def _is_over(self, now: int, deadline: int, counted: int, quiet_since: int) -> bool:
        options = self.options
        if options.count is None and not options.drain_only:
            return now >= deadline
        if options.count is not None and counted >= options.count:
            return True
        return now - quiet_since > options.drain_time_s * 1e9 and not self._sender_waits()

    def _sender_waits(self) -> bool:
        """Whether a slow rate explains that nothing arrives."""
        rate = self.options.rate
        return rate is not None and self.options.drain_time_s * rate < self.options.senders

    def _cpu(self) -> dict[str, float]:
        spent = {"sender": 0.0, "receiver": 0.0}
        for worker in self.workers:
            found = read(worker.process.pid)
            spent[worker.kind] += found.own_s if found else 0.0
        return spent

    def _poll(self, start: int) -> None:
        """Wait a little; raises RunError when a process failed."""
        board = self.board
        elapsed = (time.monotonic_ns() - start) / 1e9
        self.progress.update(elapsed, board.sum(words.SENT), board.sum(words.RECEIVED))
        self._collect(POLL_S)

    # --- the processes ---------------------------------------------------------------------------------

    def _collect(self, time_s: float) -> None:
        pipes = {worker.pipe: worker for worker in self.workers if worker.result is None}
        if not pipes:
            time.sleep(time_s)
        for pipe in wait(list(pipes), time_s) if pipes else ():
            worker = pipes[pipe]  # type: ignore[index]
            try:
                what, content = worker.pipe.recv()
            except (EOFError, OSError):
                worker.process.join(1)
                raise RunError(
                    f"a {worker.kind} process ended with status {worker.process.exitcode}"
                ) from None
            if what == "failed":
                raise RunError(content)
            if what == "done":
                worker.result = content
            else:
                self._ready += 1

    def _await_ready(self) -> None:
        deadline = time.monotonic() + CONNECTING_TIME_S
        while self._ready < len(self.workers):
            if time.monotonic() > deadline:
                raise RunError(f"expected all connections within {CONNECTING_TIME_S:g} s, found fewer")
            self._collect(0.1)

    def _finish(self, window: Window) -> RunResult:
        """Stop the senders, wait for messages under way, then stop the receivers."""
        board, options = self.board, self.options
        shared = board.words
        shared[words.SENDERS_STOP] = 1
        senders = [worker for worker in self.workers if worker.kind == "sender"]
        self._quiet_until(lambda: all(w.result is not None for w in senders), words.SETTLED)
        shared[words.SENDERS_STOP] = 2
        self._until_done(senders)
        accepted = board.sum(words.SETTLED)
        if not options.send_only and not options.drain_only and not options.requests:
            self._quiet_until(lambda: board.sum(words.RECEIVED) >= accepted, words.RECEIVED)
        deadline = time.monotonic() + LATE_DUPLICATES_S
        while time.monotonic() < deadline and not options.send_only:
            self._collect(POLL_S)
        shared[words.RECEIVERS_STOP] = 1
        self._until_done(self.workers)
        return self._outcome(window)

    def _quiet_until(self, condition: Any, field: int) -> None:
        """Wait until the condition holds or the counter has not changed for the drain time."""
        last, since = -1, time.monotonic()
        while not condition():
            self._collect(POLL_S)
            current = self.board.sum(field)
            if current != last:
                last, since = current, time.monotonic()
            elif time.monotonic() - since > self.options.drain_time_s:
                return

    def _until_done(self, workers: list[_Worker]) -> None:
        deadline = time.monotonic() + ENDING_TIME_S
        while any(worker.result is None for worker in workers):
            if time.monotonic() > deadline:
                raise RunError(f"the processes did not end within {ENDING_TIME_S:g} s")
            self._collect(POLL_S)

    # --- the verdict -----------------------------------------------------------------------------------

    def _outcome(self, window: Window) -> RunResult:
        outcome = RunResult(window)
        for worker in self.workers:
            if isinstance(worker.result, ResponderResult):
                outcome.foreign += worker.result.foreign
                for name, count in worker.result.not_accepted.items():
                    before = outcome.replies_not_accepted.get(name, 0)
                    outcome.replies_not_accepted[name] = before + count
            elif isinstance(worker.result, ReceiverResult):
                self._add_received(outcome, worker.result, worker.slow)
            elif isinstance(worker.result, RequesterResult):
                self._add_received(outcome, worker.result.replies, worker.slow)
        for worker in self.workers:
            if isinstance(worker.result, SenderResult):
                if not worker.slow:
                    outcome.accepted_after.merge(worker.result.accepted_after)
                self._judge(outcome, worker.result)
        if self.options.drain_only:
            self._judge_drained(outcome)
        return outcome

    @staticmethod
    def _add_received(outcome: RunResult, result: ReceiverResult, slow: bool) -> None:
        outcome.arrivals.merge(result.arrivals)
        (outcome.slow_latency if slow else outcome.latency).merge(result.latency)
        outcome.received += result.received
        outcome.foreign += result.foreign

    def _judge(self, outcome: RunResult, result: SenderResult) -> None:
        for origin, sender in result.senders.items():
            outcome.sent += sender.sent
            excused = [item for ranges in sender.outcomes.values() for item in ranges]
            for name, ranges in sender.outcomes.items():
                outcome.not_accepted[name] = outcome.not_accepted.get(name, 0) + arrivals.total(ranges)
            outcome.accepted += sender.sent - arrivals.total(excused)
            if not self.options.send_only:
                missing = outcome.arrivals.missing(origin, sender.sent, excused)
                self._count_lost(outcome, origin, missing)

    def _judge_drained(self, outcome: RunResult) -> None:
        for origin in outcome.arrivals.seen:
            self._count_lost(outcome, origin, outcome.arrivals.gaps(origin))
        if self.options.count is not None:
            outcome.lost = max(outcome.lost, self.options.count - outcome.received)

    @staticmethod
    def _count_lost(outcome: RunResult, origin: int, missing: arrivals.Ranges) -> None:
        outcome.lost += arrivals.total(missing)
        for first, last in missing[: arrivals.EXAMPLES_MAX - len(outcome.lost_examples)]:
            outcome.lost_examples.append(f"lost: {first} to {last} of {origin:#x}")

"""Routing slips: done in order, or undone backwards, whatever fails where. Claim checks."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.bus import (
    Activity,
    Bus,
    ClaimCheck,
    ConfigurationError,
    FolderClaims,
    Json,
    Outcome,
    Retry,
    RoutingSlip,
    SlipCompleted,
    SlipContext,
    SlipFaulted,
    message,
)
from lightrail.bus.testing import TestBus
from tests.bus.conftest import play

NAMES = ("a", "b", "c", "d")


@dataclass
class Work:
    """What an activity is to do: fail so many times first, and for good or not."""

    index: int
    failures: int = 0


@dataclass
class Log:
    index: int


class Services:
    """Activities that note what they do; those of odd names can't be undone."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.bus = Bus("amqp://nobody", name="services")
        self._failed: dict[int, int] = {}
        for name in NAMES:
            self._add(name)

    def _add(self, name: str) -> None:
        activity = Activity(f"test.{name}", Work)

        @activity.execute(retry=Retry(immediate=1, delayed=[5]))
        async def execute(work: Work, context: SlipContext) -> Log:
            if self._failed.get(work.index, 0) < work.failures:
                self._failed[work.index] = self._failed.get(work.index, 0) + 1
                raise RuntimeError(f"{name} failed")
            self.trace.append(f"do {name}{work.index}")
            context.variables["last"] = work.index
            return Log(work.index)

        if name in "ac":

            @activity.compensate
            async def compensate(log: Log, context: SlipContext) -> None:
                self.trace.append(f"undo {name}{log.index}")

        self.bus.include(activity)


ATTEMPTS = 4
"""Calls of an activity before its slip is undone: two deliveries of two attempts."""


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, ATTEMPTS + 1)), min_size=1, max_size=6))
def test_a_slip_is_done_in_order_or_undone_backwards(stops: list[tuple[str, int]]) -> None:
    async def test() -> None:
        services = Services()
        slip = RoutingSlip({"customer": 7})
        expected: list[str] = []
        failed = None
        for index, (name, failures) in enumerate(stops):
            slip.add(f"test.{name}", Work(index, failures))
            if failed is None:
                if failures >= ATTEMPTS:
                    failed = name
                else:
                    expected.append(f"do {name}{index}")
        if failed is not None:
            expected += [each.replace("do", "undo") for each in reversed(expected) if each[3] in "ac"]
        async with TestBus(services.bus) as test:
            await slip.start(services.bus)
            for _ in stops:
                await test.advance(5)
            if failed is None:
                ended = await test.published(SlipCompleted)
                assert ended.variables == {"customer": 7, "last": len(stops) - 1}
            else:
                fault = await test.published(SlipFaulted)
                assert (fault.activity, fault.text) == (f"test.{failed}", f"{failed} failed")
                assert fault.exception == "builtins.RuntimeError"
            assert services.trace == expected
            ends = [each for each in test.sendings if isinstance(each.value, SlipCompleted | SlipFaulted)]
            assert len(ends) == 1

    play(test())


def test_a_slip_without_a_stop_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a slip with an activity"):
        RoutingSlip().start(Bus("amqp://nobody", name="x"))


@message("scan.made")
@dataclass
class Scan:
    pages: list[str]


def test_a_large_body_is_kept_elsewhere_and_read_from_there(tmp_path: Path) -> None:
    async def test() -> None:
        claims = FolderClaims(tmp_path / "claims")
        bus = Bus("amqp://nobody", name="scans", format=ClaimCheck(Json(), claims, size=1_000))

        @bus.handler
        async def handle(scan: Scan) -> None: ...

        async with TestBus(bus) as test:
            await test.publish(Scan(["x" * 5_000]))
            await test.publish(Scan(["small"]))
            assert await test.consumed(Scan, where=lambda scan: len(scan.pages[0]) == 5_000)
            assert await test.consumed(Scan, where=lambda scan: scan.pages == ["small"])
            large, small = (each.envelope for each in test.sendings)
            assert (large.body, len(small.body) > 0) == (b"", True)
            [file] = tmp_path.glob("claims/??/*")  # noqa: ASYNC240
            assert file.name == large.headers["lightrail-claim"]
            assert os.stat(tmp_path / "claims").st_mode & 0o777 == 0o700
            # The same body again is one file; a body that is another one is none.
            assert claims.put(file.read_bytes()) == file.name
            file.write_bytes(b"changed")
            with pytest.raises(KeyError):
                claims.get(file.name)
            assert claims.expire(3_600) == 0
            assert claims.expire(-1) == 1
            await test.publish(Scan(["y" * 5_000]))
            for path in tmp_path.glob("claims/??/*"):  # noqa: ASYNC240
                path.unlink()
            assert (await test.failed(Scan)).outcome is Outcome.NOT_READABLE

    play(test())


@pytest.mark.parametrize("claim", ["", "..", "../" * 20 + "etc/passwd", "a" * 63 + "/", "A" * 64])
def test_a_claim_names_no_file_elsewhere(tmp_path: Path, claim: str) -> None:
    with pytest.raises(KeyError):
        FolderClaims(tmp_path).get(claim)

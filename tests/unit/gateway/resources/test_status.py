"""Status: what the gateway makes of the figures of all processes."""

from lightrail.gateway.processes.health import samples
from lightrail.gateway.processes.members import Member
from lightrail.gateway.resources.status import is_compiled, unoptimised
from lightrail.telemetry.running import Running


def member(role: str, id: int) -> Member:
    return Member(role, id, True, 0, "127.0.0.1:1")


def test_processes_whose_python_is_not_optimised_are_named_with_the_gateway_itself() -> None:
    found = {
        member("shard", 0): samples(Running("shard", lambda: 0, optimised=False).text()),
        member("shard", 1): samples(Running("shard", lambda: 1, optimised=True).text()),
        member("frontend", 0): samples(Running("frontend", lambda: 0, optimised=False).text()),
    }
    assert unoptimised(Running("gateway", lambda: 2, optimised=True), found) == ["frontend-0", "shard-0"]
    own = Running("gateway", lambda: 2, optimised=False)
    assert unoptimised(own, found) == ["frontend-0", "gateway-2", "shard-0"]


def test_a_process_of_an_earlier_version_has_no_such_sample_and_is_left_out() -> None:
    assert unoptimised(Running("gateway", lambda: 0, optimised=True), {member("shard", 0): {}}) == []


def test_a_process_that_passes_no_messages_or_does_not_say_so_is_neither_compiled_nor_interpreted() -> None:
    assert is_compiled({"lightrail_modules_compiled": 1.0}) is True
    assert is_compiled(samples(Running("shard", lambda: 0).text())) is False
    assert is_compiled(samples(Running("gateway", lambda: 0).text())) is None
    assert is_compiled({}) is None

"""Who has ended, by the locks of living processes; their registrations are deleted, and no others."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from lightrail.cluster.coordinator import Write
from lightrail.cluster.living import FOLDER, Living, Registered
from lightrail.cluster.map import Map, Member
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model.endpoint import endpoint
from lightrail.model.settings import Settings

ONE = "frontends/1"
PROGRAM = """
import sys
from lightrail.cluster.living import Living
Living(sys.argv[1]).begin("frontends/1", 7)
print("begun", flush=True)
sys.stdin.read()
"""


def dead(data: Path) -> None:
    """A process of boot 7 lives under frontends/1 until it is killed; it is not dead before."""
    command = [sys.executable, "-c", PROGRAM, str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        assert not Living(str(data)).has_ended(ONE, 7)
        process.kill()


def run(story: Callable[[MemoryCoordinator, Map], Coroutine[Any, Any, None]]) -> None:
    async def all_of_it() -> None:
        coordinator = MemoryCoordinator()
        await story(coordinator, Map(coordinator))

    asyncio.run(all_of_it())


def test_a_killed_process_has_ended_and_another_boot_of_its_number_has_not(tmp_path: Path) -> None:
    dead(tmp_path)
    living = Living(str(tmp_path))
    assert living.has_ended(ONE, 7)
    assert not living.has_ended(ONE, 8), "nothing is known about a process without a file"
    assert not living.has_ended("frontends/2", 7)


def test_a_process_that_ends_in_order_leaves_no_file(tmp_path: Path) -> None:
    living = Living(str(tmp_path))
    living.begin(ONE, 7)
    living.begin(ONE, 7)
    assert len([*(tmp_path / FOLDER).iterdir()]) == 1
    living.end()
    assert [*(tmp_path / FOLDER).iterdir()] == []
    living.end()


def test_a_successor_deletes_the_file_of_its_predecessor(tmp_path: Path) -> None:
    dead(tmp_path)
    other, successor = Living(str(tmp_path)), Living(str(tmp_path))
    other.begin("frontends/11", 3)
    successor.begin(ONE, 8)
    assert sorted(each.name for each in (tmp_path / FOLDER).iterdir()) == [
        "frontends-1-00000008",
        "frontends-11-00000003",
    ]
    other.end()
    successor.end()


def test_registrations_of_processes_that_have_ended_are_deleted(tmp_path: Path) -> None:
    async def story(coordinator: MemoryCoordinator, map: Map) -> None:
        dead(tmp_path)
        me = Living(str(tmp_path))
        me.begin("gateways/0", 5)
        for key, member in ((ONE, Member(1, 7)), ("frontends/2", Member(2, 9)), ("gateways/0", Member(0, 5))):
            await coordinator.write([Write(key, member.encode())])
        map.refresh()
        assert await me.forget_ended(coordinator, map) == [ONE]
        map.refresh()
        assert ({*map.frontends}, {*map.gateways}) == ({2}, {0})
        assert await me.forget_ended(coordinator, map) == []
        assert [each.name for each in (tmp_path / FOLDER).iterdir()] == ["gateways-0-00000005"]
        me.end()

    run(story)


def test_a_registered_frontend_is_one_that_has_not_ended(tmp_path: Path) -> None:
    async def story(coordinator: MemoryCoordinator, _: Map) -> None:
        dead(tmp_path)
        for id, boot in ((1, 7), (2, 9)):
            await coordinator.write([Write(f"frontends/{id}", Member(id, boot).encode())])
        registered = Registered(coordinator, Settings(data=str(tmp_path)))
        assert await registered.frontend(1) is None
        found = await registered.frontend(2)
        assert found is not None
        assert found.boot == 9
        assert await registered.frontend(3) is None
        with_leases = Registered(coordinator, Settings(data=str(tmp_path), etcd=(endpoint("127.0.0.1:1"),)))
        assert await with_leases.frontend(1) is not None, "its lease decides"

    run(story)


def test_the_registration_of_a_successor_stays(tmp_path: Path) -> None:
    """The map of the process that looks is not the latest."""

    async def story(coordinator: MemoryCoordinator, map: Map) -> None:
        dead(tmp_path)
        await coordinator.write([Write(ONE, Member(1, 7).encode())])
        map.refresh()
        await coordinator.write([Write(ONE, Member(1, 8).encode())])
        assert await Living(str(tmp_path)).forget_ended(coordinator, map) == [ONE]
        map.refresh()
        assert map.frontends[1].boot == 8

    run(story)


def test_a_broker_that_starts_as_a_whole_clears_all_marks(tmp_path: Path) -> None:
    dead(tmp_path)
    living = Living(str(tmp_path))
    living.clear()
    assert not living.has_ended(ONE, 7)
    living.clear()

"""What a simulated process of a member has in the place of its Process and its DataDirectory."""

import asyncio
import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from lightrail.cluster.generations import Mark
from lightrail.shard.journal import identity
from lightrail.shard.startup.data_directory import MARK_FILE
from tests.support.sim.disk import SimFiles

SEGMENT_BYTES = 20_000


class SimProcess:
    """What a replica uses of its Process."""

    def __init__(self, id: int, boot: int) -> None:
        self.id = id
        self.boot = boot
        self.settings: Any = SimpleNamespace(
            wire=SimpleNamespace(host="sim"),
            segment_bytes=SEGMENT_BYTES,
            etcd=["sim"],
            cluster="sim",
            store="journal",
            data="",
        )
        self.running: Any = SimpleNamespace(follows="", show=lambda *_: None)
        self.ready: object = None
        self.waiting: str | None = None
        self.check: Any = None
        self.notice: Any = None
        self.failure = ""
        self.stopping = asyncio.Event()

    def report_ready(self, **details: object) -> None:
        self.ready = details

    def wait_for(self, what: str) -> None:
        self.waiting = what

    def fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.stopping.set()

    async def until_stop(self) -> None:
        await self.stopping.wait()


class SimDirectory:
    """What a replica uses of its DataDirectory."""

    directory = ""
    lock_id = ""

    def __init__(self, shard: int, files: SimFiles, drawn: str) -> None:
        self.shard = shard
        self.inode = files.directory_inode
        self._files = files
        self._drawn = drawn

    @property
    def mark(self) -> Mark | None:
        data = self._files.load(MARK_FILE)
        if data is None:
            return None
        fields = json.loads(data)
        return Mark(fields["number"], fields["token"], tuple(fields["previous"]))

    def write_mark(self, mark: Mark) -> None:
        self._files.replace(MARK_FILE, json.dumps(asdict(mark)).encode())

    @property
    def journal(self) -> tuple[str | None, int]:
        found = identity.load_identity(self._files)
        return (None, 0) if found is None else (found.disk, found.salt)

    def member(self) -> str:
        found = identity.load_identity(self._files)
        if found is not None:
            return found.member
        data = self._files.load("member.json")
        if data is None:
            self._files.replace("member.json", json.dumps({"member": self._drawn}).encode())
            return self._drawn
        return str(json.loads(data)["member"])

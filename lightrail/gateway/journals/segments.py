"""Journals of all shards and their segments, read from shards or from an archive on this machine.

The id of a journal is that of its disk. Only committed and synced bytes are read, so they never change.

Archived segments that this gateway reads as files, if the archive's folder is on its machine.

Archived segments are sealed and never change, so the shard is not needed and may be down. All functions of
this module read files and are called in a thread.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lightrail.cluster.map import Map
from lightrail.gateway.errors import AGAIN, ProblemError
from lightrail.journal.archive import (
    IDENTITY,
    ArchiveError,
    decode_identity,
    index_name,
    is_folder,
    segment_name,
)
from lightrail.journal.index import BadIndexError, decode_index
from lightrail.model import conditions
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import Answer


@dataclass(eq=False, repr=False)
class ArchivedSegment:
    """An open file; a segment that is removed meanwhile can still be read to its end."""

    _descriptor: int
    end: int
    text: bytes
    """Index of the segment, encoded as JSON."""

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes from `start` to before `end`. Raises OSError."""
        data = os.pread(self._descriptor, end - start, start)
        if len(data) != end - start:
            raise OSError(f"expected {end - start} bytes of an archived segment, found {len(data)}")
        return memoryview(data)

    def close(self) -> None:
        """Closes the file; no read may follow."""
        os.close(self._descriptor)


@dataclass(eq=False, repr=False)
class Archived:
    """The folder of an archive; it need not exist on this machine."""

    _directory: str
    _folders: dict[str, str] = field(default_factory=dict)
    """Folders of this installation, by journal."""

    def open(self, cluster: str, disk: str, number: int) -> ArchivedSegment | None:
        """A segment of this installation, or None if it is missing or incomplete."""
        folder = self._folders.get(disk) or self._find(cluster, disk)
        if folder is None:
            return None
        try:
            with open(os.path.join(folder, index_name(number)), "rb") as file:
                text = file.read()
            end = decode_index(text.decode()).end
            descriptor = os.open(os.path.join(folder, segment_name(number)), os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, UnicodeDecodeError, BadIndexError):
            return None
        if os.fstat(descriptor).st_size < end:
            os.close(descriptor)
            return None
        return ArchivedSegment(descriptor, end, text)

    def _find(self, cluster: str, disk: str) -> str | None:
        try:
            names = os.listdir(self._directory)
        except OSError:
            return None
        for name in names:
            if is_folder(name) and name.endswith(f"-{disk}"):
                folder = os.path.join(self._directory, name)
                try:
                    with open(os.path.join(folder, IDENTITY), encoding="utf-8") as file:
                        found = decode_identity(file.read())
                except (OSError, UnicodeDecodeError, ArchiveError):
                    continue
                # Archives of several installations may share a folder; others' segments are skipped.
                if found.cluster == cluster and found.disk == disk:
                    self._folders[disk] = folder
                    return folder
        return None


JOURNAL_READS_AHEAD: Final[int] = 8
"""The same of one gateway at one shard; further requests wait in the gateway."""
JOURNAL_ASK_MS: Final[int] = 10_000
"""How long a gateway waits for a shard's list of journals; then the shard counts as unreachable."""
JOURNAL_AGAIN_MS: Final[int] = 100
"""Pause before another request to a shard whose JOURNAL_READS_MAX is used up."""
JOURNAL_AGAIN_MAX: Final[int] = 20
"""Number of these attempts for one piece."""
JOURNAL_STREAMS_MAX: Final[int] = 16
"""Journals that one gateway sends to clients at a time; each occupies two pieces of memory."""
JOURNAL_STREAM_WAIT_MS: Final[int] = 10_000
"""How long further requests wait."""
PIECE: Final = "journal"
"""The operation whose answers are large."""

Row = dict[str, Any]


class Segment(NamedTuple):
    """One segment, as its shard or the archive describes it."""

    shard: int
    end: int
    sealed: bool
    text: bytes
    """Index of the segment, encoded as JSON."""
    file: ArchivedSegment | None = None
    """The archived file on this machine."""

    def close(self) -> None:
        """Closes the file; read no more pieces."""
        if self.file is not None:
            self.file.close()


@dataclass(eq=False, repr=False)
class Journals:
    """The journals of all shards, and of an archive on this machine."""

    _shards: ShardConnections
    _map: Map
    _archived: Archived
    _known: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Shard and cluster of each known journal, by its disk."""
    _turns: dict[int, asyncio.Semaphore] = field(default_factory=dict)
    _room: asyncio.Semaphore | None = None
    streams: int = 0
    """Clients that read bytes now."""

    # --- lists -----------------------------------------------------------------------------------------

    async def rows(self, cluster: str, disk: str | None = None, lsn: int = 0) -> list[Row]:
        """Journals with their segments; a journal whose shard is disconnected has `away`.

        Args:
            cluster: of this installation.
            disk: only the journal of this disk.
            lsn: only segments that end after this lsn.
        """
        self._map.refresh()
        shards = sorted({*self._shards.peers, *self._map.shard_records})
        found: dict[str, Row] = {}
        away: set[int] = set()
        for shard, rows in zip(
            shards, await asyncio.gather(*(self._rows_of(shard, disk, lsn) for shard in shards)), strict=True
        ):
            if rows is None:
                away.add(shard)
            for row in rows or ():
                found.setdefault(row["journal"], row)
        for name, row in found.items():
            self._known[name] = row["shard"], row["cluster"]
        for id, each in self._map.shard_records.items():
            if each.disk:
                self._known.setdefault(each.disk, (id, cluster))
        for name, (shard, of) in self._known.items():
            if shard in away and name not in found and disk in (None, name):
                found[name] = {"journal": name, "shard": shard, "cluster": of, "away": True, "segments": []}
        return sorted(found.values(), key=lambda row: (row["shard"], row["journal"]))

    async def _rows_of(self, shard: int, disk: str | None, lsn: int) -> list[Row] | None:
        """The journals of one shard; None while it is disconnected."""
        rows: dict[str, Row] = {}
        after: list[Any] | None = None
        try:
            while True:
                page = await self._ask(shard, "journals", {"after": after, "disk": disk, "from": lsn})
                columns = page.fields["columns"]
                for row in page.fields["journals"]:
                    segments = [dict(zip(columns, each, strict=True)) for each in row["segments"]]
                    rows.setdefault(row["journal"], row | {"segments": []})["segments"] += segments
                after = page.fields["next"]
                if after is None:
                    return list(rows.values())
        except ShardDownError:
            return None
        except ShardRefusedError as error:
            if error.condition == conditions.NOT_IMPLEMENTED:
                # The shard has a store without a journal.
                return []
            raise

    # --- segments --------------------------------------------------------------------------------------

    async def segment(self, cluster: str, disk: str, number: int) -> Segment:
        """One segment, from the archive or its shard; the caller closes it. Raises ProblemError."""
        file = await asyncio.to_thread(self._archived.open, cluster, disk, number)
        if file is not None:
            return Segment(-1, file.end, True, file.text, file)
        self._map.refresh()
        named = {id for id, each in self._map.shard_records.items() if each.disk == disk}
        if disk in self._known:
            named.add(self._known[disk][0])
        shards = sorted({*self._shards.peers, *self._map.shard_records}, key=lambda id: (id not in named, id))
        away: dict[int, ShardDownError] = {}
        for shard in shards:
            try:
                answer = await self._ask(shard, "segment", {"disk": disk, "segment": number})
            except ShardDownError as error:
                away[shard] = error
            except ShardRefusedError as error:
                if error.condition not in (conditions.NOT_FOUND, conditions.NOT_IMPLEMENTED):
                    raise
            else:
                return Segment(shard, answer.fields["end"], answer.fields["sealed"], bytes(answer.blob))
        if away and (not named or named & away.keys()):
            why = "; ".join(str(each) for each in away.values())
            where = f"journal {disk} may be at a shard that does not answer now"
            raise ProblemError(503, f"{where}: {why}", headers=AGAIN)
        raise ProblemError(
            404,
            f"journal {disk} has no segment {number}: it was removed, or never existed; /!journals lists "
            "the segments",
        )

    async def piece(self, segment: Segment, disk: str, number: int, start: int, end: int) -> memoryview:
        """Bytes of a segment, at most limits.JOURNAL_READ_BYTES. Raises ShardDownError, ShardRefusedError,
        OSError."""
        if segment.file is not None:
            return await asyncio.to_thread(segment.file.read, start, end)
        fields = {"disk": disk, "segment": number, "from": start, "to": end}
        return (await self._ask(segment.shard, PIECE, fields)).blob

    async def _ask(self, shard: int, op: str, fields: Mapping[str, Any]) -> Answer:
        """Sends a request to a shard, a few at a time; repeats it while the shard is busy."""
        turn = self._turns.setdefault(shard, asyncio.Semaphore(JOURNAL_READS_AHEAD))
        async with turn:
            why = ""
            for _ in range(JOURNAL_AGAIN_MAX):
                peer = self._shards.peers.get(shard)
                if peer is None or peer.state is not ConnectionState.SERVING:
                    raise ShardDownError(f"shard {shard} is not connected: try again")
                try:
                    if op == PIECE:
                        return await self._shards.bulk.request(shard, op, dict(fields))
                    return await peer.request(op, dict(fields), wait_ms=JOURNAL_ASK_MS)
                except ShardRefusedError as error:
                    if error.condition != conditions.RESOURCE_LIMIT_EXCEEDED:
                        raise
                    why = error.description
                await asyncio.sleep(JOURNAL_AGAIN_MS / 1000)
        raise ShardDownError(f"shard {shard} does not answer readers: {why}")

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[None]:
        """Surrounds the answer to one client. Raises ProblemError if too many clients are reading."""
        if self._room is None:
            self._room = asyncio.Semaphore(JOURNAL_STREAMS_MAX)
        try:
            await asyncio.wait_for(self._room.acquire(), JOURNAL_STREAM_WAIT_MS / 1000)
        except TimeoutError:
            raise ProblemError(
                503,
                f"{JOURNAL_STREAMS_MAX} clients read journals from this gateway already: try again, "
                "or ask another gateway",
                headers=AGAIN,
            ) from None
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
            self._room.release()

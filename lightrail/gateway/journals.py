"""Journals over HTTP: what the shards hold, the index of a segment, and ranges of its bytes.

A journal is called by its disk. Only what is committed and synced is shown, so what was read once never
changes. A range goes through in pieces, one ahead of what the client takes: a client that is slow holds two
pieces in memory, and asks the shard for no more.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from aiohttp import web

from lightrail.cluster.map import Map
from lightrail.cluster.readers import LSN_MAX, is_disk
from lightrail.gateway.archived import Archived, ArchivedSegment
from lightrail.gateway.asked import Asked, whole_number
from lightrail.gateway.errors import AGAIN, Problem
from lightrail.gateway.shards import Shards
from lightrail.model import conditions, limits
from lightrail.wire.bodies import Answer
from lightrail.wire.requests import ShardDownError, ShardRefusedError
from lightrail.wire.shards import State

log = logging.getLogger("lightrail.gateway.journals")

OCTETS: Final = "application/octet-stream"
SEGMENT_MAX: Final = 10**12 - 1
OFFSET_MAX: Final = (1 << 63) - 1
INDEX: Final = "index"
PIECE: Final = "journal"
"""The operation whose answers are large."""
FOR_EVER: Final = "private, max-age=31536000, immutable"
"""How long what is sealed may be kept."""

Row = dict[str, Any]


class Segment(NamedTuple):
    """One segment as its shard says."""

    shard: int
    end: int
    sealed: bool
    text: bytes
    """Of its index."""
    file: ArchivedSegment | None = None
    """Where this gateway has it."""

    def close(self) -> None:
        """No piece is read any more."""
        if self.file is not None:
            self.file.close()


class Journals:
    """The journals of all shards, as this gateway reaches them."""

    def __init__(self, shards: Shards, map: Map, archived: Archived) -> None:
        self._shards = shards
        self._map = map
        self._archived = archived
        self._known: dict[str, tuple[int, str]] = {}
        """Shard and cluster of each journal that was seen, by its disk."""
        self._turns: dict[int, asyncio.Semaphore] = {}
        self._room: asyncio.Semaphore | None = None
        self.streams = 0
        """Clients that bytes go to now."""

    # --- lists -----------------------------------------------------------------------------------------

    async def rows(self, cluster: str, disk: str | None = None, lsn: int = 0) -> list[Row]:
        """Journals with their segments; those of a shard that is away are marked so.

        Args:
            cluster: of this installation.
            disk: only this one.
            lsn: only segments that end behind it.
        """
        self._map.refresh()
        shards = sorted({*self._shards.peers, *self._map.shard_records})
        found: dict[str, Row] = {}
        away: set[int] = set()
        for shard, rows in zip(
            shards,
            await asyncio.gather(*(self._rows_of(shard, disk, lsn) for shard in shards)),
            strict=True,
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
        """What one shard holds; None while it is away."""
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
                # Its store is no journal.
                return []
            raise

    # --- segments --------------------------------------------------------------------------------------

    async def segment(self, cluster: str, disk: str, number: int) -> Segment:
        """One segment, wherever it is; close it. Raises Problem."""
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
            where = f"journal {disk} may be at a shard that can't be asked now"
            raise Problem(503, f"{where}: {why}", headers=AGAIN)
        raise Problem(
            404,
            f"journal {disk} has no segment {number}: it was removed, or never was; see /!journals for those "
            "that are there",
        )

    async def piece(self, segment: Segment, disk: str, number: int, start: int, end: int) -> memoryview:
        """Up to JOURNAL_READ_BYTES of a segment. Raises ShardDownError, ShardRefusedError, OSError."""
        if segment.file is not None:
            return await asyncio.to_thread(segment.file.read, start, end)
        fields = {"disk": disk, "segment": number, "from": start, "to": end}
        return (await self._ask(segment.shard, PIECE, fields)).blob

    async def _ask(self, shard: int, op: str, fields: Mapping[str, Any]) -> Answer:
        """Asks when it is our turn; again where others keep the shard busy."""
        turn = self._turns.setdefault(shard, asyncio.Semaphore(limits.JOURNAL_READS_AHEAD))
        async with turn:
            for _ in range(limits.JOURNAL_AGAIN_MAX):
                peer = self._shards.peers.get(shard)
                if peer is None or peer.state is not State.SERVING:
                    raise ShardDownError(f"shard {shard} is away now: try again")
                try:
                    if op == PIECE:
                        return await self._shards.bulk.request(shard, op, dict(fields))
                    return await peer.request(op, dict(fields), wait_ms=limits.JOURNAL_ASK_MS)
                except ShardRefusedError as error:
                    if error.condition != conditions.RESOURCE_LIMIT_EXCEEDED:
                        raise
                await asyncio.sleep(limits.JOURNAL_AGAIN_MS / 1000)
        raise ShardDownError(f"shard {shard} is busy with the journals of other readers: try again")

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[None]:
        """While bytes go to one client. Raises Problem where too many do, for long."""
        if self._room is None:
            self._room = asyncio.Semaphore(limits.JOURNAL_STREAMS_MAX)
        try:
            await asyncio.wait_for(self._room.acquire(), limits.JOURNAL_STREAM_WAIT_MS / 1000)
        except TimeoutError:
            raise Problem(
                503,
                f"{limits.JOURNAL_STREAMS_MAX} clients read journals from this gateway already: try again, "
                "or ask another gateway",
                headers=AGAIN,
            ) from None
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
            self._room.release()


# --- requests ------------------------------------------------------------------------------------------


async def list_all(asked: Asked) -> web.Response:
    """GET /!journals?journal=&from=: journals of all shards, and the segments of each."""
    asked.manager()
    disk = asked.request.query.get("journal")
    if disk is not None:
        _check(disk)
    lsn = asked.whole("from", 0, 0, LSN_MAX)
    cluster = await asked.gateway.coordinator.cluster_id()
    return web.json_response({"journals": await asked.gateway.journals.rows(cluster, disk, lsn)})


async def index(asked: Asked) -> web.Response:
    """GET /!journals/DISK/SEGMENT/index: where its records are, roughly."""
    asked.manager()
    disk, number = _place(asked)
    if asked.rest[2] != INDEX:
        raise Problem(404, f"{asked.rest[2][:80]!a} is no part of a segment; expected {INDEX}")
    cluster = await asked.gateway.coordinator.cluster_id()
    found = await asked.gateway.journals.segment(cluster, disk, number)
    found.close()
    headers = _headers(f"{disk}-{number}-{found.end}", found.sealed)
    if (known := _known(asked, headers)) is not None:
        return known
    return web.Response(body=found.text, content_type="application/json", headers=headers)


async def read(asked: Asked) -> web.StreamResponse:
    """GET /!journals/DISK/SEGMENT?from=A&to=B: its bytes A to before B, as they are on disk."""
    asked.manager()
    disk, number = _place(asked)
    start = asked.whole("from", 0, 0, OFFSET_MAX)
    journals = asked.gateway.journals
    cluster = await asked.gateway.coordinator.cluster_id()
    async with journals.stream():
        found = await journals.segment(cluster, disk, number)
        try:
            return await _range(asked, found, disk, number, start)
        finally:
            # A piece that is still being read for nobody is thrown away, whatever it is read from by then.
            found.close()


async def _range(asked: Asked, found: Segment, disk: str, number: int, start: int) -> web.StreamResponse:
    end = asked.whole("to", found.end, 0, OFFSET_MAX)
    if end > found.end or start > found.end:
        raise Problem(
            416,
            f"bytes {start} to {end} of segment {number} were asked for; {found.end} are committed now: "
            f"ask for no more than these{'' if found.sealed else ', or later again'}",
            headers={"Content-Range": f"bytes */{found.end}"},
            committed=found.end,
            sealed=found.sealed,
        )
    if start > end:
        raise Problem(400, f"from is {start} and to is {end}; expected from to be no more than to")
    # What is committed never changes, but without `to` there may be more the next time.
    headers = _headers(f"{disk}-{number}-{start}-{end}", found.sealed or "to" in asked.request.query)
    if (known := _known(asked, headers)) is not None:
        return known
    return await _send(asked, found, disk, number, start, end, headers)


async def _send(
    asked: Asked, found: Segment, disk: str, number: int, start: int, end: int, headers: Mapping[str, str]
) -> web.StreamResponse:
    """One piece goes to the client while the next one comes from the shard."""
    journals, size = asked.gateway.journals, limits.JOURNAL_READ_BYTES
    response = web.StreamResponse(headers=headers)
    response.content_type = OCTETS
    response.content_length = end - start
    if start == end or asked.request.method == "HEAD":
        await response.prepare(asked.request)
        return response

    def fetch(at: int) -> "asyncio.Task[memoryview]":
        return asyncio.create_task(journals.piece(found, disk, number, at, min(at + size, end)))

    coming = fetch(start)
    try:
        # Whatever is wrong with the first one can still be told.
        await asyncio.wait((coming,))
        piece = _checked(coming.result(), min(size, end - start))
        await response.prepare(asked.request)
        at = start + size
        while at < end:
            coming = fetch(at)
            await _write(response, piece)
            piece = _checked(await coming, min(size, end - at))
            at += size
        await _write(response, piece)
    except Exception as error:
        if not response.prepared or isinstance(error, ConnectionResetError):
            raise
        # The answer has begun: cut off, it can't be mistaken for a whole one.
        log.warning("segment %d of journal %s was not sent to its end: %s", number, disk, error)
        if asked.request.transport is not None:
            asked.request.transport.abort()
        raise ConnectionResetError(str(error)) from error
    finally:
        coming.cancel()
    return response


async def _write(response: web.StreamResponse, piece: memoryview) -> None:
    try:
        async with asyncio.timeout(limits.JOURNAL_WRITE_MS / 1000):
            await response.write(piece)
    except TimeoutError:
        raise ConnectionError(
            f"the client has not taken a piece within {limits.JOURNAL_WRITE_MS} ms"
        ) from None


def _checked(piece: memoryview, expected: int) -> memoryview:
    if len(piece) != expected:
        raise ConnectionError(f"expected {expected} bytes of the shard, {len(piece)} came")
    return piece


def _place(asked: Asked) -> tuple[str, int]:
    """Journal and segment in the path."""
    disk, number = asked.rest[:2]
    _check(disk)
    return disk, whole_number("the segment", number, 0, SEGMENT_MAX)


def _check(disk: str) -> None:
    if not is_disk(disk):
        raise Problem(
            400,
            f"the journal is {disk[:80]!a}; expected its id, hexadecimal digits, as /!journals lists them",
            field="journal",
        )


def _headers(tag: str, sealed: bool) -> dict[str, str]:
    return {"ETag": f'"{tag}"', "Cache-Control": FOR_EVER if sealed else "no-cache"}


def _known(asked: Asked, headers: Mapping[str, str]) -> web.Response | None:
    """304 where the client has it already."""
    if headers["ETag"] in asked.request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return None

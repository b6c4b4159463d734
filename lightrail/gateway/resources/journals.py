"""Journals over HTTP: lists of segments, the index of a segment, and ranges of a segment's bytes.

A range is forwarded in pieces, one ahead of what the client reads: a slow client costs the memory of two
pieces, and no further reads at the shard.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from lightrail.cluster.readers import LSN_MAX, is_disk
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.journals.segments import Segment
from lightrail.gateway.request import Request, whole_number
from lightrail.model import limits

JOURNAL_WRITE_MS: Final[int] = 60_000
"""Time without reading after which a client of a journal is disconnected, since its pieces occupy memory."""

log = logging.getLogger("lightrail.gateway.resources.journals")

OCTETS: Final = "application/octet-stream"
SEGMENT_MAX: Final = 10**12 - 1
OFFSET_MAX: Final = (1 << 63) - 1
INDEX: Final = "index"
FOR_EVER: Final = "private, max-age=31536000, immutable"
"""How long clients may cache sealed bytes."""


async def list_all(request: Request) -> web.Response:
    """GET /!journals?journal=&from=: journals of all shards, and the segments of each."""
    request.manager()
    disk = request.http.query.get("journal")
    if disk is not None:
        _check(disk)
    lsn = request.whole("from", 0, 0, LSN_MAX)
    cluster = await request.services.coordinator.cluster_id()
    return web.json_response({"journals": await request.services.journals.rows(cluster, disk, lsn)})


async def index(request: Request) -> web.Response:
    """GET /!journals/DISK/SEGMENT/index: the sparse index of a segment's records."""
    request.manager()
    disk, number = _segment_id(request)
    if request.rest[2] != INDEX:
        raise ProblemError(404, f"{request.rest[2][:80]!a} is no part of a segment; expected {INDEX}")
    cluster = await request.services.coordinator.cluster_id()
    found = await request.services.journals.segment(cluster, disk, number)
    found.close()
    headers = _headers(f"{disk}-{number}-{found.end}", found.sealed)
    if (known := _not_modified(request, headers)) is not None:
        return known
    return web.Response(body=found.text, content_type="application/json", headers=headers)


async def read(request: Request) -> web.StreamResponse:
    """GET /!journals/DISK/SEGMENT?from=A&to=B: bytes from A to before B of a segment, as they are on disk."""
    request.manager()
    disk, number = _segment_id(request)
    start = request.whole("from", 0, 0, OFFSET_MAX)
    journals = request.services.journals
    cluster = await request.services.coordinator.cluster_id()
    async with journals.stream():
        found = await journals.segment(cluster, disk, number)
        try:
            return await _range(request, found, disk, number, start)
        finally:
            # A read that is still under way fails then, and no code awaits its error.
            found.close()


async def _range(request: Request, found: Segment, disk: str, number: int, start: int) -> web.StreamResponse:
    end = request.whole("to", found.end, 0, OFFSET_MAX)
    if end > found.end or start > found.end:
        raise ProblemError(
            416,
            f"bytes {start} to {end} of segment {number} were asked for; {found.end} are committed now: "
            f"ask for no more than these{'' if found.sealed else ', or later again'}",
            headers={"Content-Range": f"bytes */{found.end}"},
            committed=found.end,
            sealed=found.sealed,
        )
    if start > end:
        raise ProblemError(400, f"from is {start} and to is {end}; expected from to be no more than to")
    # Committed bytes never change, but without `to` a later answer may be longer.
    headers = _headers(f"{disk}-{number}-{start}-{end}", found.sealed or "to" in request.http.query)
    if (known := _not_modified(request, headers)) is not None:
        return known
    return await _send(request, found, disk, number, start, end, headers)


async def _send(
    request: Request, found: Segment, disk: str, number: int, start: int, end: int, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Writes one piece to the client while the next one is read from the shard."""
    journals, size = request.services.journals, limits.JOURNAL_READ_BYTES
    response = web.StreamResponse(headers=headers)
    response.content_type = OCTETS
    response.content_length = end - start
    if start == end or request.http.method == "HEAD":
        await response.prepare(request.http)
        return response

    def fetch(at: int) -> "asyncio.Task[memoryview]":
        return asyncio.create_task(journals.piece(found, disk, number, at, min(at + size, end)))

    next_piece = fetch(start)
    try:
        # A problem with the first piece can still be answered.
        await asyncio.wait((next_piece,))
        piece = _checked(next_piece.result(), min(size, end - start))
        await response.prepare(request.http)
        at = start + size
        while at < end:
            next_piece = fetch(at)
            await _write(response, piece)
            piece = _checked(await next_piece, min(size, end - at))
            at += size
        await _write(response, piece)
    except Exception as error:
        if not response.prepared or isinstance(error, ConnectionResetError):
            raise
        # The answer has begun: closing its connection marks it as incomplete.
        log.warning("segment %d of journal %s was not sent to its end: %s", number, disk, error)
        if request.http.transport is not None:
            request.http.transport.abort()
        raise ConnectionResetError(str(error)) from error
    finally:
        next_piece.cancel()
    return response


async def _write(response: web.StreamResponse, piece: memoryview) -> None:
    try:
        async with asyncio.timeout(JOURNAL_WRITE_MS / 1000):
            await response.write(piece)
    except TimeoutError:
        raise ConnectionError(f"the client has not read a piece within {JOURNAL_WRITE_MS} ms") from None


def _checked(piece: memoryview, expected: int) -> memoryview:
    if len(piece) != expected:
        raise ConnectionError(f"expected {expected} bytes of the shard, found {len(piece)}")
    return piece


def _segment_id(request: Request) -> tuple[str, int]:
    """Journal and segment in the path."""
    disk, number = request.rest[:2]
    _check(disk)
    return disk, whole_number("the segment", number, 0, SEGMENT_MAX)


def _check(disk: str) -> None:
    if not is_disk(disk):
        raise ProblemError(
            400,
            f"the journal is {disk[:80]!a}; expected its id, hexadecimal digits, as /!journals lists them",
            field="journal",
        )


def _headers(tag: str, sealed: bool) -> dict[str, str]:
    return {"ETag": f'"{tag}"', "Cache-Control": FOR_EVER if sealed else "no-cache"}


def _not_modified(request: Request, headers: Mapping[str, str]) -> web.Response | None:
    """304 if the client has the same bytes in its cache."""
    if headers["ETag"] in request.http.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return None

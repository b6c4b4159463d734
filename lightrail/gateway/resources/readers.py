"""Readers of journals over HTTP: their positions, from which shards keep the journal."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from lightrail.cluster.coordinator import ConflictError, Write
from lightrail.cluster.map import Map
from lightrail.cluster.readers import (
    LSN_MAX,
    READERS,
    InvalidReaderError,
    Reader,
    ReaderGoesBackError,
    check_name,
    is_disk,
)
from lightrail.gateway.errors import AGAIN, ProblemError
from lightrail.gateway.journals.segments import Row
from lightrail.gateway.request import Request
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.model.names import InvalidNameError, check_spelling

READERS_MAX: Final[int] = 1_000
"""Readers that an installation may have."""
AGAIN_MAX: Final = 5
"""Attempts to write a change while others change the same reader."""
BEHIND: Final = ("lsns", "messages", "bytes")


async def list_all(request: Request) -> web.Response:
    """GET /!readers: all readers, each with the unread part of the journals."""
    request.manager()
    map = _refreshed(request)
    rows = await _journals(request) if map.readers else []
    return web.json_response(
        {"readers": [_shown(name, reader, rows) for name, reader in sorted(map.readers.items())]}
    )


async def show(request: Request) -> web.Response:
    """GET /!readers/NAME: one reader, with its position in each journal."""
    request.manager()
    name = _name(request)
    found = _refreshed(request).readers.get(name)
    if found is None:
        raise _unknown(name)
    return web.json_response(_shown(name, found, await _journals(request)), headers=_tag(found))


async def put(request: Request) -> web.Response:
    """PUT /!readers/NAME with {"positions": {DISK: LSN}, "hold_hours", "hold_bytes"}: 201 for a new one.

    Positions in other journals stay; null removes a position. With ?reset=true positions may decrease.
    """
    request.manager()
    name = _name(request)
    value = await request.json_object("positions", "hold_hours", "hold_bytes")
    positions = _positions(value.get("positions", {}))
    hold_hours = _number(value, "hold_hours", limits.READER_HOLD_HOURS_MAX)
    hold_bytes = _number(value, "hold_bytes", limits.READER_HOLD_BYTES_MAX)
    back, expected = request.flag("reset"), request.revision()
    for _ in range(AGAIN_MAX):
        map = _refreshed(request)
        before = map.readers.get(name)
        if expected is not None and (before is None or before.revision != expected):
            raise ProblemError(
                412, f"reader {name} was changed by somebody else: read it again", field="If-Match"
            )
        if before is None and len(map.readers) >= READERS_MAX:
            raise ProblemError(
                409, f"there are {READERS_MAX} readers already: remove one that is not used any more"
            )
        reader = before or Reader()
        if hold_hours is not None:
            reader = replace(reader, hold_hours=hold_hours)
        if hold_bytes is not None:
            reader = replace(reader, hold_bytes=int(hold_bytes))
        reader = _moved(reader, map, positions, back=back, new=before is None)
        if before is not None and reader == before:
            return web.json_response(_plain(name, before), headers=_tag(before))
        try:
            revision = await request.services.coordinator.write(
                [Write(READERS + name, reader.encode(), before.revision if before else 0)]
            )
        except ConflictError:
            continue
        reader = replace(reader, revision=revision)
        return web.json_response(
            _plain(name, reader), status=201 if before is None else 200, headers=_tag(reader)
        )
    raise ProblemError(
        503, f"reader {name} is being changed by others all the time: try again", headers=AGAIN
    )


async def remove(request: Request) -> web.Response:
    """DELETE /!readers/NAME: shards no longer keep segments for this reader."""
    request.manager()
    name = _name(request)
    if name not in _refreshed(request).readers:
        raise _unknown(name)
    await request.services.coordinator.write([Write(READERS + name, None)])
    return web.Response(status=204)


def _moved(reader: Reader, map: Map, positions: Mapping[str, int | None], *, back: bool, new: bool) -> Reader:
    """The reader with these positions. Raises ProblemError."""
    forgotten = {disk for disk, lsn in positions.items() if lsn is None and disk in reader.positions}
    there = {each.disk: id for id, each in map.shard_records.items()}
    for disk in sorted(forgotten & there.keys()):
        if not back:
            raise ProblemError(
                409,
                f"journal {disk} is that of shard {there[disk]}: without a position the reader would begin "
                "at its earliest record again; add ?reset=true if that is meant",
                field="positions",
            )
    if forgotten:
        reader = replace(reader.without(forgotten), moved_ms=wall_ms())
    wanted = {disk: lsn for disk, lsn in positions.items() if lsn is not None}
    try:
        return reader.moved(wanted, wall_ms(), back=back) if wanted or new else reader
    except ReaderGoesBackError as error:
        raise ProblemError(
            409,
            f"{error}; add ?reset=true if that is meant",
            field="positions",
            journal=error.disk,
            position=error.before,
            found=error.after,
        ) from None
    except InvalidReaderError as error:
        raise ProblemError(422, str(error), field="positions") from None


# --- the request ---------------------------------------------------------------------------------------


def _name(request: Request) -> str:
    try:
        check_name(request.rest[0])
        if request.rest[0] not in _refreshed(request).readers:
            check_spelling(request.rest[0])
    except (InvalidReaderError, InvalidNameError) as error:
        raise ProblemError(400, str(error), field="name") from None
    return request.rest[0]


def _positions(value: Any) -> dict[str, int | None]:
    if not isinstance(value, dict) or len(value) > limits.READER_POSITIONS_MAX:
        raise ProblemError(
            422,
            f"positions is {str(value)[:80]!a}; expected an object of at most {limits.READER_POSITIONS_MAX} "
            "journals",
            field="positions",
        )
    for disk, lsn in value.items():
        if not is_disk(disk):
            raise ProblemError(
                422,
                f"{disk[:80]!a} is no journal; expected its id, hexadecimal digits, as /!journals lists them",
                field="positions",
            )
        if lsn is not None and (type(lsn) is not int or not 0 <= lsn <= LSN_MAX):
            raise ProblemError(
                422,
                f"the position in {disk} is {str(lsn)[:40]!a}; expected the next lsn, or null",
                field="positions",
            )
    return value


def _number(value: Mapping[str, Any], key: str, most: float) -> float | None:
    """Hours or bytes, or None where the member is missing."""
    found = value.get(key)
    if found is None:
        return None
    whole = key == "hold_bytes"
    good = type(found) is int or (type(found) is float and not whole)
    if not good or not 0 <= found <= most:
        allowed = f"{'a whole number' if whole else 'a number'} from 0 to {most:.0f}"
        raise ProblemError(
            422,
            f"{key} is {str(found)[:40]!a}; expected {allowed}",
            field=key,
            found=str(found)[:40],
            allowed=allowed,
        )
    return float(found) if not whole else found


# --- the answer ----------------------------------------------------------------------------------------


def _plain(name: str, reader: Reader) -> dict[str, Any]:
    return {
        "name": name,
        "positions": reader.positions,
        "hold_hours": reader.hold_hours,
        "hold_bytes": reader.hold_bytes,
        "moved_ms": reader.moved_ms or None,
    }


def _shown(name: str, reader: Reader, journals: list[Row]) -> dict[str, Any]:
    """A reader with the unread part of each journal; unknown for journals whose shard is down."""
    rows = []
    total = dict.fromkeys(BEHIND, 0)
    for journal in journals:
        position = reader.positions.get(journal["journal"])
        row = {"journal": journal["journal"], "shard": journal["shard"], "position": position}
        if journal.get("away"):
            rows.append(row | {"away": True})
            continue
        behind = _behind(position or 0, journal["segments"])
        rows.append(row | behind)
        for key in BEHIND:
            total[key] += behind[key]
    gone = sorted(reader.positions.keys() - {journal["journal"] for journal in journals})
    return _plain(name, reader) | {"behind": total, "journals": rows, "gone": gone}


def _behind(position: int, segments: list[Row]) -> dict[str, Any]:
    """The unread part of segments. The segment with the position counts by the share of its unread records.

    `missed`: records that were removed before they were read.
    """
    lsns = messages = size = 0
    oldest_ms = None
    for each in segments:
        records = each["next_lsn"] - each["first_lsn"]
        left = each["next_lsn"] - max(position, each["first_lsn"])
        if left <= 0 or records <= 0:
            continue
        lsns += left
        messages += each["messages"] * left // records
        size += each["end"] * left // records
        if oldest_ms is None:
            oldest_ms = each["last_ms"]
    first = segments[0]["first_lsn"] if segments else position
    return {
        "lsns": lsns,
        "messages": messages,
        "bytes": size,
        "missed": max(0, first - position) if position else 0,
        "oldest_ms": oldest_ms,
    }


async def _journals(request: Request) -> list[Row]:
    cluster = await request.services.coordinator.cluster_id()
    return await request.services.journals.rows(cluster)


def _refreshed(request: Request) -> Map:
    request.services.map.refresh()
    return request.services.map


def _unknown(name: str) -> ProblemError:
    return ProblemError(
        404, f"there is no reader {name[:80]!a}; PUT it, or see /!readers for those that are there"
    )


def _tag(reader: Reader) -> dict[str, str]:
    return {"ETag": f'"{reader.revision}"'}

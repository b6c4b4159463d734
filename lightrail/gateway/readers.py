"""Readers over HTTP: who reads journals and how far, so that shards keep what was not read yet."""

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
from lightrail.gateway.asked import Asked
from lightrail.gateway.errors import AGAIN, Problem
from lightrail.gateway.journals import Row
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.model.names import InvalidName, check_spelling

AGAIN_MAX: Final = 5
"""How often a change is made anew that somebody else's came before."""
BEHIND: Final = ("lsns", "messages", "bytes")


async def list_all(asked: Asked) -> web.Response:
    """GET /!readers: all of them, with how far each is behind."""
    asked.manager()
    map = _refreshed(asked)
    rows = await _journals(asked) if map.readers else []
    return web.json_response(
        {"readers": [_shown(name, reader, rows) for name, reader in sorted(map.readers.items())]}
    )


async def show(asked: Asked) -> web.Response:
    """GET /!readers/NAME: one of them, with how far it is in each journal."""
    asked.manager()
    name = _name(asked)
    found = _refreshed(asked).readers.get(name)
    if found is None:
        raise _unknown(name)
    return web.json_response(_shown(name, found, await _journals(asked)), headers=_tag(found))


async def put(asked: Asked) -> web.Response:
    """PUT /!readers/NAME with {"positions": {DISK: LSN}, "hold_hours", "hold_bytes"}: 201 for a new one.

    Positions of other journals stay, and null forgets one. With ?reset=true positions may go back.
    """
    asked.manager()
    name = _name(asked)
    value = await asked.json_object("positions", "hold_hours", "hold_bytes")
    positions = _positions(value.get("positions", {}))
    hold_hours = _number(value, "hold_hours", limits.READER_HOLD_HOURS_MAX)
    hold_bytes = _number(value, "hold_bytes", limits.READER_HOLD_BYTES_MAX)
    back, expected = asked.flag("reset"), asked.revision()
    for _ in range(AGAIN_MAX):
        map = _refreshed(asked)
        before = map.readers.get(name)
        if expected is not None and (before is None or before.revision != expected):
            raise Problem(412, f"reader {name} was changed by somebody else: read it again", field="If-Match")
        if before is None and len(map.readers) >= limits.READERS_MAX:
            raise Problem(409, f"there are {limits.READERS_MAX} readers already: remove one that has gone")
        reader = before or Reader()
        if hold_hours is not None:
            reader = replace(reader, hold_hours=hold_hours)
        if hold_bytes is not None:
            reader = replace(reader, hold_bytes=int(hold_bytes))
        reader = _moved(reader, map, positions, back=back, new=before is None)
        if before is not None and reader == before:
            return web.json_response(_plain(name, before), headers=_tag(before))
        try:
            revision = await asked.gateway.coordinator.write(
                [Write(READERS + name, reader.encode(), before.revision if before else 0)]
            )
        except ConflictError:
            continue
        reader = replace(reader, revision=revision)
        return web.json_response(
            _plain(name, reader), status=201 if before is None else 200, headers=_tag(reader)
        )
    raise Problem(503, f"reader {name} is being changed by others all the time: try again", headers=AGAIN)


async def remove(asked: Asked) -> web.Response:
    """DELETE /!readers/NAME: nothing is held back for it any more."""
    asked.manager()
    name = _name(asked)
    if name not in _refreshed(asked).readers:
        raise _unknown(name)
    await asked.gateway.coordinator.write([Write(READERS + name, None)])
    return web.Response(status=204)


def _moved(reader: Reader, map: Map, positions: Mapping[str, int | None], *, back: bool, new: bool) -> Reader:
    """With these positions. Raises Problem."""
    forgotten = {disk for disk, lsn in positions.items() if lsn is None and disk in reader.positions}
    there = {each.disk: id for id, each in map.shard_records.items()}
    for disk in sorted(forgotten & there.keys()):
        if not back:
            raise Problem(
                409,
                f"journal {disk} is that of shard {there[disk]}: without a position the reader would begin "
                "at its earliest record again; say ?reset=true if that is meant",
                field="positions",
            )
    if forgotten:
        reader = replace(reader.without(forgotten), moved_ms=_now_ms())
    said = {disk: lsn for disk, lsn in positions.items() if lsn is not None}
    try:
        return reader.moved(said, _now_ms(), back=back) if said or new else reader
    except ReaderGoesBackError as error:
        raise Problem(
            409,
            f"{error}; say ?reset=true if that is meant",
            field="positions",
            journal=error.disk,
            position=error.before,
            found=error.after,
        ) from None
    except InvalidReaderError as error:
        raise Problem(422, str(error), field="positions") from None


# --- what is asked -------------------------------------------------------------------------------------


def _name(asked: Asked) -> str:
    try:
        check_name(asked.rest[0])
        if asked.rest[0] not in _refreshed(asked).readers:
            check_spelling(asked.rest[0])
    except (InvalidReaderError, InvalidName) as error:
        raise Problem(400, str(error), field="name") from None
    return asked.rest[0]


def _positions(value: Any) -> dict[str, int | None]:
    if not isinstance(value, dict) or len(value) > limits.READER_POSITIONS_MAX:
        raise Problem(
            422,
            f"positions is {str(value)[:80]!a}; expected an object of at most {limits.READER_POSITIONS_MAX} "
            "journals",
            field="positions",
        )
    for disk, lsn in value.items():
        if not is_disk(disk):
            raise Problem(
                422,
                f"{disk[:80]!a} is no journal; expected its id, hexadecimal digits, as /!journals lists them",
                field="positions",
            )
        if lsn is not None and (type(lsn) is not int or not 0 <= lsn <= LSN_MAX):
            raise Problem(
                422,
                f"the position in {disk} is {str(lsn)[:40]!a}; expected the next lsn, or null",
                field="positions",
            )
    return value


def _number(value: Mapping[str, Any], key: str, most: float) -> float | None:
    """Hours or bytes, or None where nothing is said."""
    found = value.get(key)
    if found is None:
        return None
    whole = key == "hold_bytes"
    good = type(found) is int or (type(found) is float and not whole)
    if not good or not 0 <= found <= most:
        allowed = f"{'a whole number' if whole else 'a number'} from 0 to {most:.0f}"
        raise Problem(
            422,
            f"{key} is {str(found)[:40]!a}; expected {allowed}",
            field=key,
            found=str(found)[:40],
            allowed=allowed,
        )
    return float(found) if not whole else found


# --- what is shown -------------------------------------------------------------------------------------


def _plain(name: str, reader: Reader) -> dict[str, Any]:
    return {
        "name": name,
        "positions": reader.positions,
        "hold_hours": reader.hold_hours,
        "hold_bytes": reader.hold_bytes,
        "moved_ms": reader.moved_ms or None,
    }


def _shown(name: str, reader: Reader, journals: list[Row]) -> dict[str, Any]:
    """With how far it is behind in each journal; of journals that are away, nothing is known."""
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
    """What is there from a position on; of the segment that it lies in, by the share of its records.

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


async def _journals(asked: Asked) -> list[Row]:
    cluster = await asked.gateway.coordinator.cluster_id()
    return await asked.gateway.journals.rows(cluster)


def _refreshed(asked: Asked) -> Map:
    asked.gateway.map.refresh()
    return asked.gateway.map


def _unknown(name: str) -> Problem:
    return Problem(
        404, f"there is no reader {name[:80]!a}; PUT it, or see /!readers for those that are there"
    )


def _tag(reader: Reader) -> dict[str, str]:
    return {"ETag": f'"{reader.revision}"'}


def _now_ms() -> int:
    return wall_ms()

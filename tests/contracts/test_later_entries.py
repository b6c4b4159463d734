"""Entries with fields of a later version are read as without: processes are upgraded one by one.

Fields of policies are no such case: a policy that this version can't keep is refused.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster.coordinator import Coordinator, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.etcd.client import Identity
from lightrail.cluster.generations import Generation
from lightrail.cluster.history import History
from lightrail.cluster.map import Map, Member, Move, Placed, ShardRecord
from lightrail.cluster.membership import member_of, shard_records
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.readers import Reader
from lightrail.cluster.replica_sets import ReplicaSet, SetMember
from lightrail.cluster.users import UserRecord
from lightrail.frontend.sole_connections import _parts
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import (
    AuthorizationRule,
    Name,
    Permission,
    Right,
    SealedKey,
    Subscription,
)
from lightrail.namespace.topic_uses import TopicUse, TopicUses
from lightrail.service_bus.configuration.applying import VERSION, _read
from tests.support.broker import ROOT

Json = dict[str, Any]


async def _of_map(space: Coordinator) -> object:
    map = Map(space)
    map.refresh()
    members = map.shard_records, map.shards, map.frontends, map.gateways, map.followers, map.replica_sets
    return [dict(each) for each in (map.placements(), map.moves, map.readers, *members) if each]


def _through(*reads: Callable[[Coordinator], Any]) -> Callable[[Entry], object]:
    """Reads an entry out of a coordinator that has no other one."""

    async def read(entry: Entry) -> object:
        space = MemoryCoordinator()
        await space.write([Write(entry.key, entry.value)])
        return [await each(space) for each in reads]

    return lambda entry: asyncio.run(read(entry))


async def _of_uses(space: Coordinator) -> object:
    uses = TopicUses(space, Directory(space))
    uses.refresh()
    return [uses.of(topic) for topic in uses.topics()]


class Kind(NamedTuple):
    """A kind of entry."""

    key: str
    value: Json
    read: Callable[[Entry], object]
    inner: tuple[tuple[Any, ...], ...] = ()
    """Paths of the objects in the value that may get fields, besides the value itself."""


def _json(text: str) -> Json:
    found: Json = json.loads(text)
    return found


KEY: Final = SealedKey(bytes(16), b"sealed")
NAME: Final = Name(
    "a/b",
    Policy.parse({"role": "queue", "max_idle": 300}),
    created_at_ms=1,
    changed_at_ms=2,
    owner="frontend-0/1/2",
    automatic=True,
    authorization_rules=(AuthorizationRule("r", frozenset((Right.SEND,)), KEY, KEY, 1, 2),),
)
MEMBER: Final = Member(2, 7, "tcp://a", "m", "h", "d", "host", "zone", "1", 5)
KINDS: Final = (
    Kind("names/a/b", _json(NAME.to_value()), Name.read, (("authorization_rules", 0),)),
    Kind(
        "subscriptions/a//s",
        {
            "target": "q",
            "filter": {"subject": "x"},
            "action": {},
            "expires_at": "2030-01-01T00:00:00Z",
            "owner": "frontend-0/1/2/3/4",
            "secret": "s",
            "no_local": "c",
            "rules": {},
            "drop_failed": True,
        },
        Subscription.read,
    ),
    Kind(
        "permissions/u//a", _json(Permission("u", "a", frozenset((Right.SEND,))).to_value()), Permission.read
    ),
    Kind(
        "users/u",
        _json(UserRecord.make("u", "secret", iterations=1).encode())
        | {"tokens_of": "YQ==", "access_keys": ["YWJj"]},
        lambda entry: UserRecord.decode("u", entry.value or ""),
        (("sha256",), ("sha512",)),
    ),
    Kind("placement/q", _json(Placed.encode(2, 3, 1)), _through(_of_map)),
    Kind("moves/q", _json(Move("q", 0, 1, 3, "frozen", 9, 8, 7).encode()), _through(_of_map)),
    Kind("readers/r", _json(Reader({"d": 1}, moved_ms=3).encode()), _through(_of_map)),
    Kind("shardsets/2", _json(ShardRecord(2, "d").encode()), _through(_of_map, shard_records)),
    Kind(
        "generations/2",
        _json(Generation("d", 1, "t", 7, "l", 5, 1, 9, True, True).encode()),
        Generation.decode,
    ),
    Kind(
        "replicas/2",
        _json(ReplicaSet(2, 4, "a", frozenset("a"), {"a": SetMember("h"), "b": SetMember()}, 3, 1).encode()),
        ReplicaSet.decode,
        (("members", "a"),),
    ),
    Kind("followers/2/a", _json(Member(2, 7, "tcp://h:1", lock="l").encode()), _through(_of_map)),
    Kind("history", _json(History("1", "0", True).encode()), History.decode),
    Kind(
        "containers/0",
        {"connection": "frontend-0.1.2", "user": "u"},
        lambda entry: (_parts(entry), json.loads(entry.value or "")["user"]),
    ),
    Kind("uses/t", _json(TopicUse(5, 4).encode()), _through(_of_uses)),
    Kind(
        "configs/service-bus",
        {"version": VERSION, "entities": {"q": {"kind": "QueueDescription"}}, "removed": {}},
        lambda entry: [*map(list, _read(entry.value))],
        (("entities", "q"),),
    ),
    Kind(
        "identity",
        {"cluster": "5" * 32, "secret": "YQ=="},
        lambda entry: Identity.decode(entry, "/lightrail/a/"),
    ),
    *(
        Kind(f"{role}/2", _json(MEMBER.encode()), lambda entry: (_through(_of_map)(entry), member_of(entry)))
        for role in ("shards", "frontends", "gateways")
    ),
)
NAMES: Final = st.sampled_from(("id", "queue", "revision", "name", "key", "created", "members", "replicas"))
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
FIELDS: Final = st.dictionaries(NAMES | st.text(max_size=8), VALUES, min_size=1, max_size=3)


def objects(kind: Kind, value: Json) -> Iterator[Json]:
    yield value
    for path in kind.inner:
        found: Any = value
        for step in path:
            found = found[step]
        yield found


@pytest.mark.parametrize("kind", KINDS, ids=[each.key for each in KINDS])
@given(fields=FIELDS)
def test_an_entry_with_fields_that_this_version_does_not_know_reads_the_same(
    kind: Kind, fields: Json
) -> None:
    later = deepcopy(kind.value)
    for each in objects(kind, later):
        for name, value in fields.items():
            each.setdefault(name, value)

    def read(value: Json) -> object:
        return kind.read(Entry(kind.key, json.dumps(value), 1, 1))

    expected = read(kind.value)
    assert expected not in (None, [], [[]])
    assert read(later) == expected


def test_each_kind_of_entry_is_read_here() -> None:
    page = (ROOT / "docs/formats/coordinator.md").read_text()
    rows = re.findall(r"^\| (`[a-z].*?) \|", page, re.MULTILINE)
    prefixes = {each.partition("/")[0] for row in rows for each in re.findall(r"`([^`]+)`", row)}
    assert len(prefixes) > 10
    assert prefixes | {"identity"} == {each.key.partition("/")[0] for each in KINDS}

"""Declared: the text of a Queue record in the journal, which has the policy and the owner of a queue."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from lightrail.namespace.records import Name

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Declared(NamedTuple):
    """The fields of a Queue record beside the policy."""

    created: int | None = None
    """The revision that created the name; None if the record has none."""
    epoch: int = 1
    """The epoch in which this shard owns the queue, or will own it if it is a copy."""
    copy: bool = False
    """Whether the queue is being copied to this shard, and is not served."""
    frozen: bool = False
    """Whether the queue is frozen for its move to another shard, and does not change in this epoch."""
    captured: bool = False
    """Whether all events of its messages are recorded from this record on."""
    history: str = ""
    """The coordinator's history in which `created` is a revision."""
    fields: Mapping[str, Any] = NOTHING
    """All fields of the text, with the policy."""


def fields_of(record: "Name", epoch: int = 1, *, copy: bool = False, frozen: bool = False) -> dict[str, Any]:
    """The fields of the policy text of a Queue record in the journal."""
    text: dict[str, Any] = {"created": record.created, "policy": record.policy.to_json()}
    if epoch != 1:
        text["epoch"] = epoch
    if copy:
        text["copy"] = True
    if frozen:
        text["frozen"] = True
    if record.policy["capture"]:
        text["capture"] = True
    if record.history:
        text["history"] = record.history
    return text


def encode_declared(record: "Name", epoch: int = 1, *, copy: bool = False, frozen: bool = False) -> str:
    """The policy text of a Queue record in the journal."""
    return json.dumps(fields_of(record, epoch, copy=copy, frozen=frozen), separators=(",", ":"))


def declared_of(text: str) -> Declared:
    """Decodes the text of this version or an older one."""
    try:
        found = json.loads(text)
        created, epoch, history = found.get("created"), found.get("epoch", 1), found.get("history", "")
    except (ValueError, AttributeError):
        return Declared()
    return Declared(
        created if isinstance(created, int) else None,
        epoch if isinstance(epoch, int) else 1,
        found.get("copy") is True,
        found.get("frozen") is True,
        found.get("capture") is True,
        history if isinstance(history, str) else "",
        found,
    )

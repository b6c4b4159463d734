"""Bodies of the less frequent frames: openings, outcomes and refusals, as small JSON texts."""

import json
import struct
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from lightrail.wire.frames import WireError

_LENGTH: Final = struct.Struct("<I")

Body = TypeVar("Body", bound="_Body")


@dataclass(slots=True)
class _Body:
    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls: type[Body], data: bytes | memoryview) -> Body:
        """Reads a body; ignores fields of later versions. Raises WireError."""
        try:
            fields: dict[str, Any] = json.loads(bytes(data))
            return cls(**{name: value for name, value in fields.items() if name in cls.__dataclass_fields__})
        except (ValueError, TypeError, AttributeError) as error:
            raise WireError(
                f"expected the JSON body of {cls.__name__}, got {bytes(data[:80])!r}: {error}"
            ) from error


@dataclass(slots=True)
class Hello(_Body):
    """The greeting of a frontend: `boot` is drawn when the process starts, `attempt` counts its greetings."""

    version: int
    frontend: str
    boot: int
    attempt: int


@dataclass(slots=True)
class Welcome(_Body):
    """The shard's answer to a Hello."""

    version: int
    shard: int
    boot: int
    attempt: int


@dataclass(slots=True)
class ProducerOpen(_Body):
    """A sending link wants to enqueue to `queue`, or to sets of queues (TARGETS, ROUTE) when it is empty.

    `sequences` requests STORED as the answer to each batch; `relay`: `queue` is a connection point.
    """

    queue: str
    sequences: bool = False
    relay: bool = False
    label: str = ""
    identity: int = 0
    """Key of the last batch number at the shard, with IDENTITY set; 0: frontend and link are the key."""
    client_link: str = ""
    """32 hexadecimal digits of the client's link, the same for each attach of it (2.6.1); "" for none."""
    steals: bool = False
    """The client attaches the link: another link of the same `client_link` at the queue ends."""
    suspended_ms: int | None = None
    """How long unsettled messages are kept after the end of the link, which the client may resume; None: not
    at all."""
    durability: int = 0
    """How much of that the client wants in the store (model/links.py)."""
    attach: int = 0
    """If it may be resumed and does not steal: the number of the attach, from UNSETTLED; 0: unknown."""
    user: str = ""
    """The user towards whose share of the shard the link counts, if it may be resumed; "" for none."""
    sent_below: int = 0
    """Batches with lower numbers may have reached a shard that was lost, which delivered them."""
    routed: bool = False
    """Whether a router chose the queue: then its status refuses nothing."""

    def encode(self) -> bytes:
        optional = {
            "identity": 0,
            "suspended_ms": None,
            "durability": 0,
            "attach": 0,
            "user": "",
            "sent_below": 0,
            "routed": False,
        }
        return _opening(self, *(name for name, unused in optional.items() if getattr(self, name) == unused))


@dataclass(slots=True)
class Targets(_Body):
    """The queues of this shard in a numbered set of one producer."""

    queues: list[str]


@dataclass(slots=True)
class ConsumerOpen(_Body):
    """A receiving link wants messages of `queue`.

    `first` is the next delivery number: 0 for a new link, more after the shard was lost.
    """

    queue: str
    first: int = 0
    browse: bool = False
    presettled: bool = False
    exclusive: bool = False
    priority: int = 0
    default_outcome: int = 3
    default_failed: bool = True
    default_undeliverable: bool = False
    """With default_failed, the fields of a default outcome that is modified."""
    relay: bool = False
    """Whether `queue` is a connection point, and this consumer its listener."""
    lock_ms: int = 0
    """How long deliveries are locked, instead of the lifetime of the link; 0: as in the queue's policy."""
    lock_key: str = ""
    """Hexadecimal digits: the ids of locks are KEY-NUMBER, and locks outlive the consumer."""
    lock_ends: str = ""
    """What ends these locks: a LockEnding of model/links.py."""
    filter: dict[str, Any] | None = None
    """Selects messages: a specification of lightrail/filters/filter.py, or None."""
    label: str = ""
    """Label of the consumer: the client's container and link."""
    resume: bool = False
    """The queue has moved: the consumer keeps its unsettled deliveries if the shard has them already."""
    client_link: str = ""
    """See ProducerOpen."""
    steals: bool = False
    """See ProducerOpen."""
    suspended_ms: int | None = None
    """For how long unsettled deliveries are kept for the link after its end, which the client may resume;
    None: not at all."""
    recovers: bool = False
    """Whether the client sent its unsettled map, so that it continues the deliveries of its former attach."""
    terminus: int = 0
    """Prefix of the delivery-tags of a link that may be resumed; 0 until the shard has answered."""
    durability: int = 0
    """See ProducerOpen."""
    session: str | None = None
    """Group-id of the session whose messages it gets; SESSION is the answer when the session is accepted."""
    any_session: bool = False
    """Its session is the next available one; set `session` once it is known."""
    user: str = ""
    """The user towards whose share of the shard the consumer counts; "" for a link of the broker itself."""
    removes_first: bool = False
    """Of a link that receives and deletes: a delivery leaves when the removal of its message is on disk."""
    removed_bytes_max: int = 0
    """Of such a link that is not presettled, as its client bounds the size of messages: the shard accepts
    deliveries up to this size, as they are stored. The frontend settles all of them, as for former shards."""

    @property
    def is_session(self) -> bool:
        """Whether it receives the messages of one session."""
        return self.any_session or self.session is not None

    def encode(self) -> bytes:
        optional = ("default_undeliverable", "durability", "user", "lock_ends", "removes_first")
        unused = tuple(name for name in (*optional, "removed_bytes_max") if not getattr(self, name))
        if not self.is_session:
            unused += ("session", "any_session")
        if self.suspended_ms is None:
            return _opening(self, *unused, "suspended_ms", "recovers", "terminus")
        return _opening(self, *unused)


def _opening(body: ProducerOpen | ConsumerOpen, *names: str) -> bytes:
    """An opening as JSON without these fields, and without those of a client's link if there is none."""
    return _without(body, *names, *(() if body.client_link else ("client_link", "steals")))


def _without(body: _Body, *names: str) -> bytes:
    """A body as JSON without these fields."""
    fields = asdict(body)
    for name in names:
        del fields[name]
    return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(slots=True)
class SettleDetail(_Body):
    """Fields of rejected and modified; annotations, of both, are an encoded AMQP map in hex.

    `deferred`, of modified, is left out if it is false: former versions do not know it.
    """

    condition: str = ""
    description: str = ""
    delivery_failed: bool = False
    undeliverable_here: bool = False
    annotations: str = ""
    deferred: bool = False

    def encode(self) -> bytes:
        return _without(self, *(() if self.deferred else ("deferred",)))

    @classmethod
    def default_of(cls, options: ConsumerOpen) -> "SettleDetail":
        """The fields of a consumer's default outcome (messaging 3.5.3)."""
        return cls(delivery_failed=options.default_failed, undeliverable_here=options.default_undeliverable)


@dataclass(slots=True)
class Refusal(_Body):
    """Why a batch, a producer or a consumer was refused: an AMQP error condition and a sentence."""

    condition: str
    description: str = field(default="")
    accepted: int = 0
    """Number of the batch's first messages that are stored all the same."""


class Answer(NamedTuple):
    """The answer of a shard to a request."""

    fields: dict[str, Any]
    blob: memoryview


def encode_request(fields: dict[str, Any], blob: bytes | memoryview = b"") -> bytes:
    """The body of REQUEST and RESPONSE: length of the JSON u32, the JSON, the blob."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join((_LENGTH.pack(len(text)), text, blob))


def decode_request(data: bytes | memoryview) -> tuple[dict[str, Any], memoryview]:
    """(fields, blob) of such a body. Raises WireError."""
    view = memoryview(data)
    try:
        (length,) = _LENGTH.unpack_from(view)
        fields = json.loads(bytes(view[4 : 4 + length]))
        if 4 + length > len(view) or not isinstance(fields, dict):
            raise ValueError("expected a JSON object of the stated length")
    except (ValueError, struct.error) as error:
        raise WireError(f"expected the body of a request, got {bytes(view[:80])!r}: {error}") from error
    return fields, view[4 + length :]

"""What the rare frames carry: openings, outcomes and refusals as small JSON bodies."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from lightrail.wire.frames import WireError

Body = TypeVar("Body", bound="_Body")


@dataclass(slots=True)
class _Body:
    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls: type[Body], data: bytes | memoryview) -> Body:
        try:
            fields: dict[str, Any] = json.loads(bytes(data))
            return cls(**fields)
        except (ValueError, TypeError) as error:
            raise WireError(
                f"expected the JSON body of {cls.__name__}, got {bytes(data[:80])!r}: {error}"
            ) from error


@dataclass(slots=True)
class Hello(_Body):
    """A frontend names itself: `boot` is drawn when the process starts, `attempt` counts its greetings."""

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
    """A sending link wants to enqueue to `queue`."""

    queue: str


@dataclass(slots=True)
class ConsumerOpen(_Body):
    """A receiving link wants messages of `queue`.

    `first` is the delivery number it goes on with: 0 for a new link, more after the shard came back.
    """

    queue: str
    first: int = 0
    browse: bool = False
    presettled: bool = False
    exclusive: bool = False
    priority: int = 0
    default_outcome: int = 3
    default_failed: bool = True


@dataclass(slots=True)
class SettleDetail(_Body):
    """What rejected and modified say beyond their code; annotations are an encoded AMQP map, in hex."""

    condition: str = ""
    description: str = ""
    delivery_failed: bool = False
    undeliverable_here: bool = False
    annotations: str = ""


@dataclass(slots=True)
class Refusal(_Body):
    """Why a batch, a producer or a consumer was refused: an AMQP error condition and a sentence."""

    condition: str
    description: str = field(default="")

"""Messages: their types, the names of their routers and queues, and outgoing ones with their addresses.

A type is a class with a name that is part of the contract between applications. The name is an argument of
the decorator `message` or `command`, and never derived from a module or a class, so that code can move
without a change on the wire.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from lightrail.bus.errors import ConfigurationError
from lightrail.transport import Envelope

_ATTRIBUTE: Final = "__lightrail_message__"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*\Z")

Class = TypeVar("Class", bound=type)


class Kind(Enum):
    """The purpose of a message."""

    EVENT = "event"
    """A fact, which is published to all subscriptions."""
    COMMAND = "command"
    """An order or a request, which is sent to the one queue of its handler."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageType:
    """The contract of a message.

    Attributes:
        name: words of small letters, digits, - and _, with dots between them, as shop.order-placed.
        version: 1 or more.
        kind: event or command.
        cls: class of the messages.
        supersedes: the type that this one replaces; its handlers get the messages, too, read as that type.
        key: attribute or function of a message that has its group; messages of one group are handled in
            order by handlers that are `ordered`.
        bases: types of base classes and superseded types, nearest first.
    """

    name: str
    version: int
    kind: Kind
    cls: Any
    supersedes: "MessageType | None"
    key: str | Callable[[Any], Any] | None
    bases: tuple["MessageType", ...]

    @property
    def wire_name(self) -> str:
        """Name and version, as they are in addresses and headers; version 1 is left out."""
        return self.name if self.version == 1 else f"{self.name}.v{self.version}"

    @property
    def wire_names(self) -> str:
        """Of the type and its bases, with blanks between them."""
        return " ".join((self.wire_name, *(base.wire_name for base in self.bases)))

    def group_of(self, value: Any) -> str | None:
        """Group of a message, by its key."""
        if self.key is None:
            return None
        if callable(self.key):
            found = self.key(value)
        else:
            found = value[self.key] if isinstance(value, dict) else getattr(value, self.key)
        return None if found is None else str(found)


def message(
    name: str,
    *,
    version: int = 1,
    supersedes: type | None = None,
    key: str | Callable[[Any], Any] | None = None,
    kind: Kind = Kind.EVENT,
) -> Callable[[Class], Class]:
    """Declares a class as an event.

        @message("shop.order-placed", version=2, supersedes=OrderPlaced1, key="order_id")
        @dataclass
        class OrderPlaced: ...

    Args:
        name, version, supersedes, key, kind: see MessageType.

    Raises ConfigurationError for an invalid name, and for a key that the class does not have.
    """
    if not _NAME.match(name):
        raise ConfigurationError(
            f"expected a name of small letters, digits, - and _, with dots between its words, as "
            f"shop.order-placed, found {name!r}"
        )
    if version < 1:
        raise ConfigurationError(f"{name}: expected version 1 or more, found {version}")

    def declare(cls: Class) -> Class:
        older = None if supersedes is None else message_type(supersedes)
        bases: dict[MessageType, None] = {}
        if older is not None:
            bases |= dict.fromkeys((older, *older.bases))
        for base in getattr(cls, "__mro__", ())[1:]:
            found = vars(base).get(_ATTRIBUTE)
            if found is not None:
                bases |= dict.fromkeys((found, *found.bases))
        known = getattr(cls, "__annotations__", {})
        if isinstance(key, str) and key not in known and not hasattr(cls, key):
            inherited = {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
            if key not in inherited:
                raise ConfigurationError(f"{name}: expected a key that {cls.__name__} has, found {key!r}")
        for base in bases:
            if base.kind is not kind:
                raise ConfigurationError(
                    f"{name}: expected bases of the same kind, found the {base.kind.value} {base.name}"
                )
        declared = MessageType(name, version, kind, cls, older, key, tuple(bases))
        if hasattr(cls, "__total__"):
            # An attribute of a TypedDict's class would not be found at its instances, which are plain dicts.
            _TYPED_DICTS[cls] = declared
        else:
            setattr(cls, _ATTRIBUTE, declared)
        _KNOWN[declared.wire_name] = declared
        return cls

    return declare


def known_type(wire_name: str) -> MessageType | None:
    """The type that this process declared last under a wire name; None if there is none."""
    return _KNOWN.get(wire_name)


def command(
    name: str,
    *,
    version: int = 1,
    supersedes: type | None = None,
    key: str | Callable[[Any], Any] | None = None,
) -> Callable[[Class], Class]:
    """Declares a class as a command or request, as `message` does for events."""
    return message(name, version=version, supersedes=supersedes, key=key, kind=Kind.COMMAND)


def message_type(cls: Any) -> MessageType:
    """The type of a class. Raises ConfigurationError for a class that was not declared."""
    found = vars(cls).get(_ATTRIBUTE) if isinstance(cls, type) else None
    if found is None:
        found = _TYPED_DICTS.get(cls)
    if found is None:
        name = getattr(cls, "__qualname__", repr(cls))
        raise ConfigurationError(
            f'expected a class with a name on the wire, found {name}: declare it with @message("…") for '
            f'events or @command("…") for commands and requests'
        )
    return found


_TYPED_DICTS: Final[dict[Any, MessageType]] = {}
"""By class: instances of a TypedDict are plain dicts, so `publish` gets the class as well."""
_KNOWN: Final[dict[str, MessageType]] = {}
"""By wire name: the type as which messages of derived types are read, where this process has the class."""


@dataclass(frozen=True, slots=True)
class Sending:
    """An envelope and its address."""

    address: str
    envelope: Envelope
    type: MessageType | None
    value: Any


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduled message, as the argument of `Bus.cancel`.

    Attributes:
        id: of the message.
        queue: in which it waits.
        at: when it is sent, in seconds since the Unix epoch.
    """

    id: str
    queue: str
    at: float


@dataclass(frozen=True, slots=True)
class Scheduling:
    """A message to send now, which the broker or the bus delivers later."""

    sending: Sending
    scheduled: Scheduled


@dataclass(eq=False, repr=False)
class Conventions:
    """Names at the broker. Replace methods in a class of your own to use other ones.

    Args:
        prefix: before all names, as "shop/"; buses that share messages have the same.
    """

    prefix: str = ""

    def event(self, type: MessageType) -> str:
        """Router that an event is published to."""
        return f"{self.prefix}events/{type.wire_name}"

    def command(self, type: MessageType) -> str:
        """Queue that a command or request is sent to."""
        return f"{self.prefix}commands/{type.wire_name}"

    def command_router(self, type: MessageType) -> str | None:
        """Router at which the queue of a command subscribes, if services publish it; None by default."""
        return None

    def subscription(self, id: str, type: MessageType) -> str:
        """Queue of a subscription to an event; handlers with the same id share its messages."""
        return f"{self.prefix}subscriptions/{id}/{type.wire_name}"

    def fault(self, type: MessageType) -> str:
        """Router of the faults of a message type."""
        return f"{self.prefix}faults/{type.wire_name}"

    def schedule(self, bus: str) -> str:
        """Queue of the events of a bus that are published later."""
        return f"{self.prefix}schedules/{bus}"

"""Names: paths of segments, made of AMQP addresses and HTTP paths.

A name is UTF-8 text such as ``myapp/orders/q1``: segments between slashes, none of them empty, ``.`` or
``..``, without control characters, at most QUEUE_NAME_BYTES_MAX bytes (a closing ``/$dlq`` is not counted).
Percent-encoding is decoded once. Segments that begin with ``!`` or ``$`` are reserved; clients may use
``NAME/$dlq``, the dead-letter queue of NAME; ``ROUTER/$subscriptions/KEY``, the queue of a subscription that
a receiver made by attaching to a router; ``ROUTER/$scheduled``, the queue of a router's scheduled messages;
``NAME/$transfer``, whose dead letters are messages that NAME could not forward; and ``$temporary/KEY``, a
queue or router that the broker named (a dynamic node). Names are compared byte by byte: case matters, and
nothing is normalised. New names are written in Unicode's composed form (NFC), so that
two names that look alike are not two queues (ADR 27).
"""

import unicodedata
from collections.abc import Iterator
from string import ascii_uppercase
from typing import Final
from urllib.parse import unquote_to_bytes

QUEUE_NAME_BYTES_MAX: Final[int] = 512
DEAD_LETTER_SEGMENT: Final = "$dlq"
DEAD_LETTER_ALIAS: Final = "$deadletterqueue"
"""How clients of Azure Service Bus write it in addresses, with letters of either case."""
SUBSCRIPTIONS_SEGMENT: Final = "$subscriptions"
SCHEDULED_SEGMENT: Final = "$scheduled"
TRANSFER_SEGMENT: Final = "$transfer"
"""Clients of Azure Service Bus write it with letters of either case before DEAD_LETTER_ALIAS."""
TEMPORARY_SEGMENT: Final = "$temporary"
SENDERS_KEY: Final = "senders"
SYSTEM_MARKS: Final = ("!", "$")
_SMALL_LETTERS: Final = str.maketrans({letter: letter.lower() for letter in ascii_uppercase})
_SCHEMES: Final = ("amqp", "amqps")
_NODE_SCHEMES: Final = ("queue", "topic")
"""Of ActiveMQ's addresses, which have no host: the role that the client expects."""


class InvalidNameError(ValueError):
    """An address that names no queue; the message says what was found and what is allowed."""


class SystemNameError(InvalidNameError):
    """An address with a segment of the system's that leads to nothing, such as /$Transfer."""


def queue_name(address: str) -> str:
    """The queue that an address names, once decoded and checked.

    ``q``, ``/q``, ``amqp://host:5672/q``, ``amqps://host/q``, ``queue://q`` and ``topic://q`` are the same. A
    closing ``/$DeadLetterQueue``
    is read as ``/$dlq``, and ``/$Transfer`` before it as ``/$transfer``. Raises InvalidNameError.
    """
    path = address
    scheme, separator, rest = address.partition("://")
    if separator and scheme.lower() in _NODE_SCHEMES:
        path = rest
    elif separator and scheme.lower() in _SCHEMES:
        _, slash, path = rest.partition("/")
        if not slash or not path:
            raise InvalidNameError(f"the address {_shown(address)} has no path; expected amqp://HOST/NAME")
    path = path.removeprefix("/")
    name = _decoded(path)
    if "$" in name:
        head, slash, last = name.rpartition("/")
        if slash and last.lower() == DEAD_LETTER_ALIAS:
            above, slash, transfer = head.rpartition("/")
            if slash and transfer.lower() == TRANSFER_SEGMENT:
                head = transfer_name(above)
            name = f"{head}/{DEAD_LETTER_SEGMENT}"
    check(name)
    return name


def node_scheme(address: object) -> str | None:
    """``queue`` or ``topic``, where an address names the role that the client expects, as ``topic://q``."""
    if not isinstance(address, str):
        return None
    scheme, separator, _ = address.partition("://")
    return scheme.lower() if separator and scheme.lower() in _NODE_SCHEMES else None


def check(name: str) -> None:
    """Raise InvalidNameError unless ``name``, already decoded, may be the name of a queue."""
    if not name:
        raise InvalidNameError("the name is empty; expected a path such as myapp/orders")
    size = len(owner(name).encode(errors="replace"))
    if size > QUEUE_NAME_BYTES_MAX:
        raise InvalidNameError(
            f"the name {_shown(name)} has {size} bytes; at most {QUEUE_NAME_BYTES_MAX} are allowed"
        )
    bad = next((c for c in name if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")), None)
    if bad is not None:
        raise InvalidNameError(f"the name {_shown(name)} holds the control character U+{ord(bad):04X}")
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        raise InvalidNameError(
            f"the name {_shown(name)} has an empty segment, '.' or '..' between its slashes"
        )
    plain = segments[:-1] if len(segments) > 1 and segments[-1] == DEAD_LETTER_SEGMENT else segments
    subscription: list[str] = []
    if len(plain) > 2 and plain[-2] == SUBSCRIPTIONS_SEGMENT:
        plain, subscription = plain[:-2], plain[-1:]
    elif len(plain) > 1 and plain[-1] in (SCHEDULED_SEGMENT, TRANSFER_SEGMENT):
        plain = plain[:-1]
    if len(plain) == 2 and plain[0] == TEMPORARY_SEGMENT:
        plain = plain[1:]
    plain += subscription
    system = next((segment for segment in plain if segment.startswith(SYSTEM_MARKS)), None)
    if system is not None:
        raise SystemNameError(
            f"the segment {_shown(system)} of the name {_shown(name)} is the system's: '!' and '$' begin no "
            f"other segment than a closing {DEAD_LETTER_SEGMENT}, ROUTER/{SUBSCRIPTIONS_SEGMENT}/KEY, "
            f"ROUTER/{SCHEDULED_SEGMENT}, NAME/{TRANSFER_SEGMENT} and {TEMPORARY_SEGMENT}/KEY"
        )


def check_spelling(name: str) -> None:
    """Raise InvalidNameError unless ``name`` is in composed form; only for new names and prefixes."""
    composed = unicodedata.normalize("NFC", name)
    if composed != name:
        raise InvalidNameError(
            f"the name {_shown(name)} is not in Unicode's composed form (NFC), in which new names are "
            f"written, so that names that look alike are the same: expected {_shown(composed)}"
        )


def dead_letter_name(name: str) -> str:
    """The dead-letter queue of a queue; that of a dead-letter queue is itself."""
    return name if is_dead_letter(name) else f"{name}/{DEAD_LETTER_SEGMENT}"


def is_dead_letter(name: str) -> bool:
    """True for ``NAME/$dlq``."""
    return name.endswith("/" + DEAD_LETTER_SEGMENT)


def subscription_name(router: str, key: str) -> str:
    """The queue of a subscription that a receiver made by attaching to a router."""
    return f"{router}/{SUBSCRIPTIONS_SEGMENT}/{key}"


def senders_name(router: str) -> str:
    """The queue that counts the senders of a dynamic router, without a message (links/dynamic.py)."""
    return subscription_name(router, SENDERS_KEY)


def router_of(queue: str) -> str:
    """The router that the queue of a subscription is at."""
    return queue.rpartition(f"/{SUBSCRIPTIONS_SEGMENT}/")[0]


def scheduled_name(router: str) -> str:
    """The queue in which the scheduled messages of a router wait."""
    return f"{router}/{SCHEDULED_SEGMENT}"


def scheduled_router(queue: str) -> str | None:
    """The router whose scheduled messages a queue has; None for any other queue."""
    router = queue.removesuffix(f"/{SCHEDULED_SEGMENT}")
    return None if router == queue else router


def transfer_name(queue: str) -> str:
    """The queue whose dead letters are the messages that a queue could not forward."""
    return f"{queue}/{TRANSFER_SEGMENT}"


def transferring(queue: str) -> str:
    """The queue that could not forward what a queue has as dead letters; any other queue itself."""
    return queue.removesuffix(f"/{TRANSFER_SEGMENT}")


def temporary_name(key: str) -> str:
    """The name of a new dynamic node (messaging 3.5.3)."""
    return f"{TEMPORARY_SEGMENT}/{key}"


def is_temporary(name: str) -> bool:
    """True for ``$temporary/KEY``, the dead letters of it, and the queues of subscriptions to it."""
    return name.startswith(TEMPORARY_SEGMENT + "/")


def is_dynamic_node(name: str) -> bool:
    """True for ``$temporary/KEY`` itself."""
    return is_temporary(name) and name.count("/") == 1


def is_system(name: str) -> bool:
    """True for queues that the broker creates and deletes: of dead letters, subscriptions, dynamic nodes."""
    return name.startswith(TEMPORARY_SEGMENT + "/") or "/$" in name


def folded(name: str) -> str:
    """A name in small letters of ASCII. Names that differ in these alone are one name to clients of Azure
    Service Bus; other letters keep their case, as no two systems agree about it."""
    return name.translate(_SMALL_LETTERS)


def above(name: str) -> Iterator[str]:
    """The names above, nearest first: a/b and a for a/b/c."""
    while (slash := name.rfind("/")) > 0:
        name = name[:slash]
        yield name


def owner(name: str) -> str:
    """The queue whose placement decides that of ``name``: NAME for ``NAME/$dlq``, else the name itself."""
    return name.removesuffix("/" + DEAD_LETTER_SEGMENT)


def _decoded(path: str) -> str:
    if "%" not in path:
        return path
    for index, character in enumerate(path):
        if character == "%" and not _is_hex(path[index + 1 : index + 3]):
            raise InvalidNameError(
                f"the address {_shown(path)} holds a '%' without two hexadecimal digits; a '%' itself is %25"
            )
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise InvalidNameError(f"the address {_shown(path)} does not decode to UTF-8") from None


def _is_hex(digits: str) -> bool:
    return len(digits) == 2 and all(c in "0123456789abcdefABCDEF" for c in digits)


def _shown(text: str) -> str:
    """Untrusted text, shortened and without control characters."""
    return ascii(text if len(text) <= 80 else text[:80] + "...")

"""Setting values: parsers of the text of one setting, the texts of a file, and which settings go together.

The ValueError of a parser says what is allowed.

Sizes and times as people write them: ``64MB``, ``1GiB``, ``60s``, ``500ms``.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterable
from decimal import Decimal
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from lightrail.model.settings import Settings

SIZES: Final = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 2**10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 2**20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 2**30,
    "t": 10**12,
    "tb": 10**12,
    "tib": 2**40,
}
"""Bytes per unit: decimal as in the SI, binary with an i (as in RabbitMQ)."""
DURATIONS_MS: Final = {"ms": 1, "": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000}
"""Milliseconds per unit; a bare number is seconds."""
_NUMBER: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([a-z]*)", re.ASCII | re.IGNORECASE)


def size(low: int, high: int) -> Callable[[str], int]:
    """A parser of sizes, in bytes, from ``low`` to ``high``; its ValueError says what is allowed."""
    return _parser(SIZES, low, high, "a size from {} to {}, such as 64MB or 1GiB", format_size)


def duration_ms(low: int, high: int) -> Callable[[str], int]:
    """A parser of durations, in milliseconds, from ``low`` to ``high``; it raises ValueError likewise."""
    return _parser(DURATIONS_MS, low, high, "a time from {} to {}, such as 500ms or 60s", format_duration)


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling: 1073741824 is ``1GiB``, 64000000 is ``64MB``."""
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB"):
        if size_bytes and size_bytes % SIZES[unit.lower()] == 0:
            return f"{size_bytes // SIZES[unit.lower()]}{unit}"
    return f"{size_bytes}B"


def format_duration(duration: int) -> str:
    """The shortest exact spelling of milliseconds: 60000 is ``1m``."""
    for unit in ("h", "m", "s"):
        if duration and duration % DURATIONS_MS[unit] == 0:
            return f"{duration // DURATIONS_MS[unit]}{unit}"
    return f"{duration}ms"


def _parser(
    table: dict[str, int], low: int, high: int, allowed: str, spell: Callable[[int], str]
) -> Callable[[str], int]:
    message = allowed.format(spell(low), spell(high))

    def parse(text: str) -> int:
        match = _NUMBER.fullmatch(text.strip())
        factor = table.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValueError(message)
        value = int(Decimal(match[1]) * factor)
        if not low <= value <= high:
            raise ValueError(message)
        return value

    return parse


Value = TypeVar("Value")

SASL_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""Mechanisms that check a password, the strongest first; ANONYMOUS has a setting of its own."""
ANONYMOUS: Final = "ANONYMOUS"
"""Mechanism of a client that does not say who it is."""
LABEL: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")
"""Name of a cluster or a zone: part of a key, and of a metric's label."""
ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,?#@]+")


class SettingsError(Exception):
    """A setting that can't be used; the message names the setting, the value and what is allowed."""


def whole(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from ``low`` to ``high``."""

    def parse(text: str) -> int:
        number = text.strip().replace("_", "")
        if not number.isascii() or not number.isdigit() or not low <= int(number) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(number)

    return parse


def choice(*allowed: str) -> Callable[[str], str]:
    """A parser of one of these words, in any case of letters."""

    def parse(text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ValueError("one of " + ", ".join(allowed))
        return text.strip().lower()

    return parse


def flag(text: str) -> bool:
    """True or false, in the spellings of TOML, YAML and shells."""
    match text.strip().lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError("true or false")


def path(text: str) -> str:
    """The path of a file or directory, with ~ expanded."""
    if not text or "\0" in text:
        raise ValueError("the path of a file or directory")
    return os.path.expanduser(text)


def label(text: str) -> str:
    """The name of a cluster or a zone."""
    if not LABEL.fullmatch(text):
        raise ValueError("1 to 63 letters, digits, dots, hyphens and underscores")
    return text


def user(text: str) -> str:
    """The name of a user of etcd."""
    if not text or len(text) > 256 or not text.isprintable():
        raise ValueError("a name of at most 256 printable characters")
    return text


def mechanisms(text: str) -> tuple[str, ...]:
    """SASL mechanisms, the strongest first, in whatever order they are written."""
    wanted = [name.strip().upper() for name in text.split(",") if name.strip()]
    if not wanted or any(name not in SASL_MECHANISMS for name in wanted):
        raise ValueError("names separated by commas out of " + ", ".join(SASL_MECHANISMS))
    return tuple(name for name in SASL_MECHANISMS if name in wanted)


def origins(text: str) -> tuple[str, ...]:
    """Origins of pages, as browsers name them (RFC 6454), or *."""
    found = tuple(each.strip().lower() for each in text.split(",") if each.strip())
    if any(each != "*" and not ORIGIN.fullmatch(each) for each in found):
        raise ValueError("origins such as https://app.example.com, without a path, separated by commas, or *")
    return found


def networks(text: str) -> tuple[str, ...]:
    """Addresses and networks of IPv4 and IPv6."""
    try:
        return tuple(str(ip_network(each.strip().strip("[]"))) for each in text.split(",") if each.strip())
    except ValueError:
        raise ValueError(
            "addresses or networks separated by commas, such as 10.0.0.7,10.1.0.0/16,fd00::/8"
        ) from None


def optional(parse: Callable[[str], Value]) -> Callable[[str], Value | None]:
    """As ``parse``; an empty text is None."""
    return lambda text: parse(text) if text else None


def read_file(path: str, known: Iterable[str]) -> dict[str, str]:
    """The text of each setting in a TOML file, as a flag could have it.

    Raises SettingsError, as for an unknown key.
    """
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"the configuration file {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the configuration file {path} is not TOML: {error}") from None
    allowed = list(known)
    for key in table:
        if key not in allowed:
            raise SettingsError(
                f"{path} sets {key!r}, which is no setting; settings are " + ", ".join(allowed)
            )
    return {key: _text(key, value, path) for key, value in table.items()}


def _text(key: str, value: object, path: str) -> str:
    """A TOML value as a flag would spell it, so that each setting is parsed in one place."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(item, str) for item in value):
            return ",".join(value)
    raise SettingsError(f"{key} in {path} is {value!r}; expected a string, a number, or true or false")


# --- settings that contradict each other ------------------------------------------------------------------


def check(settings: "Settings") -> None:
    """Raise SettingsError for settings that contradict each other."""
    for name in ("amqps", "https"):
        found = getattr(settings, name)
        if found is not None and not (settings.tls_certificate and settings.tls_key):
            raise SettingsError(
                f"{name} is {found}, but TLS needs tls_certificate and tls_key as well: "
                f"set both to the paths of PEM files, or leave {name} out"
            )
    for name in ("tls_certificate", "tls_key", "tls_client_ca"):
        path = getattr(settings, name)
        if path and settings.amqps is None and settings.https is None:
            raise SettingsError(f"{name} is {path!r}, but neither amqps nor https is set: set amqps or https")
        if path and not os.access(path, os.R_OK):
            raise SettingsError(f"{name} is {path!r}: expected a PEM file that can be read")

    _check_etcd(settings)
    if settings.min_in_sync > settings.replicas:
        raise SettingsError(
            f"min_in_sync is {settings.min_in_sync}, but replicas is {settings.replicas}: no shard can have "
            "more members in sync than it has members"
        )
    if not settings.wire.loopback and not settings.wire_key and not settings.insecure_wire:
        raise SettingsError(
            f"wire is {settings.wire}, which can be reached from other machines: set wire_key to a key made "
            "by `lightrail wire-key FILE`, or set insecure_wire where nobody else is in that network"
        )
    made_by = {"wire_key": "made by `lightrail wire-key`", "service_bus_config": "such as Config.json"}
    for name, what in made_by.items():
        if (value := getattr(settings, name)) and not os.access(value, os.R_OK):
            raise SettingsError(f"{name} is {value!r}: expected a file {what}, readable")


def _check_etcd(settings: "Settings") -> None:
    for one, other in (("etcd_certificate", "etcd_key"), ("etcd_user", "etcd_password_file")):
        for there, absent in ((one, other), (other, one)):
            if getattr(settings, there) and not getattr(settings, absent):
                raise SettingsError(f"{there} is set, but {absent} is not: set both, or none of them")
    for name in ("etcd_ca", "etcd_certificate", "etcd_key", "etcd_user", "etcd_password_file"):
        value = getattr(settings, name)
        if value and not settings.etcd:
            raise SettingsError(f"{name} is {value!r}, but etcd is not set: set it to etcd's members")
        if value and name != "etcd_user" and not os.access(value, os.R_OK):
            raise SettingsError(f"{name} is {value!r}: expected a file that can be read")
    if settings.etcd_certificate and not settings.etcd_ca:
        raise SettingsError(
            "etcd_certificate is set, but etcd_ca is not: set it to the certificates that etcd's own is "
            "signed by"
        )

"""Settings of one installation, read from defaults, a TOML file, the environment and flags.

Later sources win: defaults < configuration file < ``LIGHTRAIL_...`` variables < flags. The name of a field is
its TOML key; with ``-`` for ``_`` it is the flag, in capitals behind ``LIGHTRAIL_`` the variable. Unknown
keys in the file are refused by name; unknown variables are ignored, because Kubernetes sets
``LIGHTRAIL_PORT`` for a service of that name.

No field is a secret: keys and passwords are named by the path of their file.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self, TypeVar

from lightrail.model import limits, setting_values
from lightrail.model.endpoint import (
    Endpoint,
    endpoint,
    endpoint_or_host,
    endpoints,
    host_name,
    parse_patterns,
)
from lightrail.model.setting_values import (
    SASL_MECHANISMS,
    SettingsError,
    check,
    choice,
    flag,
    label,
    mechanisms,
    networks,
    optional,
    origins,
    path,
    read_file,
    user,
    whole,
)

MEMORY_MARK_BYTES: Final[int] = 1024 * 1024 * 1024
"""Bytes of messages that a shard keeps in memory before it spills to disk."""
PROCESSES_MAX: Final = 256
"""Most frontends, and most shards, of one machine."""
VARIABLE_PREFIX: Final = "LIGHTRAIL_"
COORDINATOR_SETTINGS: Final = (
    "etcd",
    "cluster",
    "etcd_ca",
    "etcd_certificate",
    "etcd_key",
    "etcd_user",
    "etcd_password_file",
)
"""Settings that locate the coordinator, besides `data`."""
Value = TypeVar("Value")


def _setting(default: Value, parse: Callable[[str], Value], metavar: str, help: str) -> Value:
    made: Value = field(default=default, metadata={"parse": parse, "metavar": metavar, "help": help})
    return made


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings with their defaults; the help text has the unit."""

    data: str = _setting("./data", path, "DIR", "directory that holds journals, names and users")
    amqp: Endpoint = _setting(
        Endpoint("127.0.0.1", 5672), endpoint, "HOST:PORT", "where AMQP is served, in the clear"
    )
    amqps: Endpoint | None = _setting(
        None, optional(endpoint), "HOST:PORT", "where AMQP over TLS is served (off by default)"
    )
    tls_certificate: str | None = _setting(
        None, optional(path), "FILE", "certificate chain for amqps and https, PEM"
    )
    tls_key: str | None = _setting(None, optional(path), "FILE", "private key of the certificate, PEM")
    tls_client_ca: str | None = _setting(
        None, optional(path), "FILE", "ask clients for a certificate signed by one of these, PEM"
    )
    http: Endpoint = _setting(
        Endpoint("127.0.0.1", 8080), endpoint, "HOST:PORT", "where the gateway serves HTTP"
    )
    https: Endpoint | None = _setting(
        None, optional(endpoint), "HOST:PORT", "where the gateway serves HTTP over TLS (off by default)"
    )
    metrics: Endpoint = _setting(
        Endpoint("127.0.0.1", 0),
        endpoint_or_host,
        "HOST[:PORT]",
        "where each process serves its own /metrics, /healthz and /readyz; without a port, or with 0, the "
        "system chooses it",
    )
    frontends: int = _setting(0, whole(0, PROCESSES_MAX), "N", "frontend processes; 0 is one per two cores")
    shards: int = _setting(
        0,
        whole(0, PROCESSES_MAX),
        "M",
        "shard processes; 0 is the number the data directory was made with, or one per two cores",
    )
    store: str = _setting(
        "journal",
        choice("journal", "memory", "sqlite"),
        "KIND",
        "where shards keep messages: journal, sqlite, or memory (nothing survives a restart)",
    )
    memory_mark: int = _setting(
        MEMORY_MARK_BYTES,
        setting_values.size(1_000_000, 1 << 50),
        "SIZE",
        "bytes of messages that a shard keeps in memory before it spills to disk, such as 64MB or 1GiB",
    )
    segment_bytes: int = _setting(
        limits.SEGMENT_BYTES,
        setting_values.size(1 << 20, 1 << 32),
        "SIZE",
        "size of one journal segment file",
    )
    replicas: int = _setting(
        1,
        whole(1, 7),
        "N",
        "with etcd: members of each shard, each with all of its messages on a disk of its own. A process of "
        "`lightrail shard` is one of them; `lightrail serve` runs all of them on this machine, for trying "
        "them out",
    )
    min_in_sync: int = _setting(
        0,
        whole(0, 7),
        "N",
        "members of a shard that must have a message on disk before it is accepted; 0: more than a half of "
        "replicas",
    )
    replica_host: str | None = _setting(
        None,
        optional(label),
        "NAME",
        "name of this machine among the members of a shard, no two of which lie on one; the default is the "
        "host name",
    )
    archive: str | None = _setting(
        None,
        optional(path),
        "DIR",
        "directory of the archive: sealed journal segments of captured queues, for readers; the default is "
        "archive below data, where they are hard links",
    )
    archive_hours: int = _setting(
        168,
        whole(0, 1_000_000),
        "N",
        "hours that the archive keeps segments that no reader holds back; 0 keeps none of them",
    )
    archive_bytes: int = _setting(
        0,
        setting_values.size(0, 1 << 60),
        "SIZE",
        "bytes that a shard keeps in the archive beyond those that readers hold back; 0 is without a bound",
    )
    archive_seal: int = _setting(
        300_000,
        setting_values.duration_ms(1_000, 86_400_000),
        "TIME",
        "age at which a journal segment with anything for the archive is sealed, full or not",
    )
    idle_timeout: int = _setting(
        limits.IDLE_TIME_OUT_MS,
        setting_values.duration_ms(1_000, 86_400_000),
        "TIME",
        "silence after which a connection is closed, such as 60s",
    )
    shard_wait: int = _setting(
        60_000,
        setting_values.duration_ms(0, 86_400_000),
        "TIME",
        "how long senders wait for an unreachable shard before their messages are released; 0s is for ever",
    )
    max_message_bytes: int = _setting(
        limits.MAX_MESSAGE_BYTES,
        setting_values.size(1_024, 1 << 30),
        "SIZE",
        "largest message that a link accepts",
    )
    max_delivery_count: int = _setting(
        limits.DELIVERY_COUNT_MAX_DEFAULT,
        whole(0, 1_000_000),
        "N",
        "failed deliveries after which a message goes to NAME/$dlq; 0 is never",
    )
    auto_create: bool = _setting(
        True, flag, "BOOL", "create a queue at the first use of a name; policies override this"
    )
    service_bus_auto_create: bool = _setting(
        False,
        flag,
        "BOOL",
        "let the first use of a name by clients of Azure Service Bus create a queue, too, as auto_create and "
        "policies say; without it these clients are answered that there is no such entity",
    )
    sasl_mechanisms: tuple[str, ...] = _setting(
        SASL_MECHANISMS, mechanisms, "NAMES", "SASL mechanisms that check a password, separated by commas"
    )
    plain_without_tls: bool = _setting(
        False, flag, "BOOL", "offer PLAIN, a password in the clear, beyond loopback also without TLS"
    )
    allow_anonymous: bool = _setting(
        False, flag, "BOOL", "allow connections without a user even when users are defined"
    )
    token_wait: int = _setting(
        10_000,
        setting_values.duration_ms(0, 600_000),
        "TIME",
        "how long a client that connects without a user may be without a token at $cbs, before which it has "
        "no right, as those of Azure Service Bus do; 0s refuses such clients",
    )
    insecure_no_users: bool = _setting(
        False, flag, "BOOL", "serve beyond loopback although no user is defined: everybody has all rights"
    )
    service_bus_config: str | None = _setting(
        None,
        optional(path),
        "FILE",
        "Config.json of the emulator of Azure Service Bus: its entities are made before the start ends",
    )
    websocket_origins: tuple[str, ...] = _setting(
        (),
        origins,
        "ORIGINS",
        "origins of pages in browsers that may connect by WebSocket, such as https://app.example.com, "
        "separated by commas; * is every page, empty is none. Clients that are no browsers need none",
    )
    proxy_protocol_from: tuple[str, ...] = _setting(
        (),
        networks,
        "NETWORKS",
        "addresses and networks of load balancers, separated by commas: their connections to the ports of "
        "AMQP begin with the header of the PROXY protocol, version 1 or 2, which has the client's address; "
        "empty is none",
    )
    push_allow: tuple[str, ...] = _setting(
        (),
        parse_patterns,
        "HOSTS",
        "hosts that subscriptions may push to, separated by commas: names, *.DOMAIN, addresses, networks, or "
        "* for all public ones; empty is none",
    )
    etcd: tuple[Endpoint, ...] = _setting(
        (),
        endpoints,
        "HOST:PORT,...",
        "members of the etcd that has names, placement and users; without it they are in a file below data",
    )
    cluster: str = _setting(
        "lightrail", label, "NAME", "name of the installation in etcd: its keys begin with /lightrail/NAME/"
    )
    etcd_ca: str | None = _setting(
        None, optional(path), "FILE", "use TLS to etcd, whose certificate is signed by one of these, PEM"
    )
    etcd_certificate: str | None = _setting(None, optional(path), "FILE", "client certificate for etcd, PEM")
    etcd_key: str | None = _setting(None, optional(path), "FILE", "private key of that certificate, PEM")
    etcd_user: str | None = _setting(None, optional(user), "NAME", "user of etcd, where it requires one")
    etcd_password_file: str | None = _setting(
        None, optional(path), "FILE", "file whose first line is the password of that user"
    )
    wire: Endpoint = _setting(
        Endpoint("127.0.0.1", 0),
        endpoint,
        "HOST:PORT",
        "with etcd: where a shard accepts frontends, and a frontend the requests of gateways; port 0 lets "
        "the system choose",
    )
    advertise: str | None = _setting(
        None,
        optional(host_name),
        "HOST",
        "with etcd: name or address by which other machines reach this one; the default is the host of wire, "
        "or the host name where that is 0.0.0.0 or ::",
    )
    wire_key: str | None = _setting(
        None,
        optional(path),
        "FILE",
        "with etcd: key of the installation, made by `lightrail wire-key FILE`; encrypts the wire and lets "
        "nobody in without it",
    )
    insecure_wire: bool = _setting(
        False,
        flag,
        "BOOL",
        "serve the wire beyond loopback without a key: everybody who reaches it has full access",
    )
    wire_sockets: str = _setting(
        "loop",
        choice("loop", "zeromq"),
        "KIND",
        "what processes of one machine are connected by without etcd: loop (LightRail's own, on Linux) or "
        "zeromq, which other systems always have; between machines it is always zeromq",
    )
    zone: str | None = _setting(
        None, optional(label), "NAME", "zone of this machine: queues are spread over zones where possible"
    )
    log_format: str = _setting("plain", choice("plain", "json"), "KIND", "plain or json lines on stderr")
    log_level: str = _setting(
        "info", choice("debug", "info", "warning", "error"), "LEVEL", "debug, info, warning or error"
    )

    @classmethod
    def load(
        cls,
        *,
        flags: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        config: str | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> Self:
        """Merge the sources and check the result. ``config`` is the path of a TOML file, or None; the
        ``defaults`` of a command replace those of the settings. Raises SettingsError.
        """
        given = {name: _parse(name, text, "the default") for name, text in (defaults or {}).items()}
        if config:
            for key, text in read_file(config, names()).items():
                given[key] = _parse(key, text, f"{key} in {config}")
        for name in names():
            variable = VARIABLE_PREFIX + name.upper()
            if environ is not None and variable in environ:
                given[name] = _parse(name, environ[variable], f"the variable {variable}")
        for name, text in (flags or {}).items():
            given[name] = _parse(name, text, "--" + name.replace("_", "-"))
        settings = cls(**given)
        check(settings)
        return settings

    @property
    def archive_directory(self) -> str:
        """Directory of the archive."""
        return self.archive or os.path.join(self.data, "archive")

    def resolved(self, remembered_shards: int = 0) -> Self:
        """The same with numbers of processes filled in and absolute directories."""
        cores_half = max(1, len(os.sched_getaffinity(0)) // 2)
        return replace(
            self,
            data=os.path.abspath(self.data),
            archive=os.path.abspath(self.archive) if self.archive else None,
            frontends=self.frontends or min(cores_half, PROCESSES_MAX),
            shards=self.shards or remembered_shards or min(cores_half, PROCESSES_MAX),
        )

    def to_json(self) -> str:
        """One line that from_json reads, by which the supervisor passes settings to its children."""
        return json.dumps({item.name: getattr(self, item.name) for item in fields(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        given: dict[str, Any] = json.loads(text)
        for name in ("amqp", "amqps", "http", "https", "metrics", "wire"):
            given[name] = Endpoint(*given[name]) if given[name] else None
        given["etcd"] = tuple(Endpoint(*each) for each in given["etcd"])
        for name in ("sasl_mechanisms", "push_allow", "websocket_origins", "proxy_protocol_from"):
            given[name] = tuple(given[name])
        return cls(**given)


def names() -> Iterable[str]:
    """Names of all settings in the order of their declaration."""
    return [item.name for item in fields(Settings)]


def descriptions() -> Iterable[tuple[str, str, str, Any]]:
    """(name, metavar, help, default) of every setting, for the flags of the command line."""
    return [
        (item.name, item.metadata["metavar"], item.metadata["help"], item.default)
        for item in fields(Settings)
    ]


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    item.name: item.metadata["parse"] for item in fields(Settings)
}


def _parse(name: str, text: str, where: str) -> Any:
    try:
        return _PARSERS[name](text)
    except ValueError as allowed:
        raise SettingsError(f"{where} is {text!r}; expected {allowed}") from None

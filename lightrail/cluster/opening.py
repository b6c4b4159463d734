"""Opening the coordinator that the settings name: etcd, or a file in the data directory."""

import asyncio
import hmac
import os
from typing import Final

from lightrail.cluster.coordinator import Coordinator, CoordinatorRefusedError
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.cluster.users import PASSWORD_BYTES_MAX
from lightrail.model.settings import Settings

ETCD_OPEN_MS: Final[int] = 10_000
"""How long a command waits for etcd and for reading its key space."""
OUTSIDE: Final = ("amqp", "amqps", "http", "https")
"""Settings of listeners that other machines may reach."""


async def open_coordinator(settings: Settings, wait_s: float = ETCD_OPEN_MS / 1000) -> Coordinator:
    """Makes one attempt of at most `wait_s` seconds.

    Raises:
        CoordinatorRefusedError: a further attempt is useless.
        CoordinatorError: the coordinator can't be reached now.
    """
    if not settings.etcd:
        return await SqliteCoordinator.open(os.path.join(settings.data, FILE_NAME))
    # Loaded late: gRPC and protobuf take a third of a second, which a process without etcd must not wait.
    from lightrail.cluster.etcd.channels import EtcdSettings
    from lightrail.cluster.etcd.coordinator import EtcdCoordinator

    etcd = EtcdSettings(
        endpoints=tuple(str(each) for each in settings.etcd),
        cluster=settings.cluster,
        ca=settings.etcd_ca or "",
        certificate=settings.etcd_certificate or "",
        key=settings.etcd_key or "",
        user=settings.etcd_user or "",
        password=_password(settings.etcd_password_file),
    )
    return await EtcdCoordinator.open(etcd, asyncio.get_running_loop(), wait_s=wait_s)


def _password(path: str | None) -> str:
    """The first line of a file. Raises CoordinatorRefusedError."""
    if path is None:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline(PASSWORD_BYTES_MAX + 2).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CoordinatorRefusedError(f"the password file of etcd, {path}, can't be read: {error}") from None


def where(settings: Settings) -> str:
    """The coordinator's name in messages."""
    if not settings.etcd:
        return os.path.join(settings.data, FILE_NAME)
    return f"etcd at {','.join(map(str, settings.etcd))}, cluster {settings.cluster}"


async def listing_key(coordinator: Coordinator) -> str:
    """The header Authorization of gateways' requests to other processes for names of queues."""
    secret = await coordinator.secret()
    return "Bearer " + hmac.digest(secret, b"lightrail /metrics/detailed", "sha256").hex()


async def may_list(coordinator: Coordinator, shown: str) -> bool:
    """Whether a request with this header may see names of queues: gateways, and all callers while no user is
    defined.
    """
    if not await coordinator.has_users():
        return True
    return hmac.compare_digest(shown.encode(errors="replace"), (await listing_key(coordinator)).encode())


def open_to_strangers(settings: Settings, has_users: bool) -> str | None:
    """Why a broker without users must not be served where the settings say, or None."""
    outside = [
        f"{name} {endpoint}"
        for name in OUTSIDE
        if (endpoint := getattr(settings, name)) is not None and not endpoint.loopback
    ]
    if has_users or not outside or settings.insecure_no_users:
        return None
    flag = f"--etcd {','.join(map(str, settings.etcd))}" if settings.etcd else f"--data {settings.data}"
    if settings.etcd and settings.cluster != Settings().cluster:
        flag += f" --cluster {settings.cluster}"
    return (
        f"{', '.join(outside)} can be reached from outside of this machine, but no user is defined: "
        f"add one with `lightrail-admin {flag} user add NAME`, or set --insecure-no-users"
    )

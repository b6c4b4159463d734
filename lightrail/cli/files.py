"""Commands of ``lightrail-admin`` without a gateway: users, rights, disks of shards, repair of a journal."""

import argparse
import asyncio
import getpass
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lightrail.cli import local_etcd
from lightrail.cluster.coordinator import Coordinator, CoordinatorError, UnknownUserError
from lightrail.cluster.generations import accept_disk
from lightrail.cluster.map import SHARDS, Member
from lightrail.cluster.membership import MemberRefusedError, until_free
from lightrail.cluster.opening import open_coordinator
from lightrail.cluster.sqlite import FILE_NAME
from lightrail.cluster.users import PASSWORD_BYTES_MAX, InvalidUserError, UserRecord, user_name
from lightrail.model import limits
from lightrail.model.names import InvalidNameError, check
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import COORDINATOR_SETTINGS, VARIABLE_PREFIX, Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right
from lightrail.namespace.rights import Caller
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import ServiceError
from lightrail.service_bus.access_keys import AccessKeyError, keys_of, user_for_keys, with_key, without_key
from lightrail.shard.journal.repair import repair
from lightrail.shard.journal.store import StoreError
from lightrail.telemetry.directories import DirectoryRefusedError, etcd_address, make_data_directory

NOBODY: Final = -1
"""Replaces the boot of a process in commands that run without one."""
OPERATOR: Final = Caller("operator", everything=True)
"""The caller has all rights, because it can write the data directory or etcd."""


class FileCommandError(Exception):
    """The command can't be executed; the message has the reason."""


REFUSALS: Final = (
    CoordinatorError,
    StoreError,
    InvalidUserError,
    AccessKeyError,
    DirectoryRefusedError,
    InvalidNameError,
    MemberRefusedError,
    FileCommandError,
)


def run(parsed: argparse.Namespace) -> int:
    """Executes a parsed command; the exit status: 0 done, 1 refused."""
    try:
        if parsed.thing == "journal":
            print(repair(parsed.directory))
            return 0
        return asyncio.run(_open(parsed))
    except SettingsError as error:
        print(f"lightrail-admin: {error}", file=sys.stderr)
        return 2
    except REFUSALS as error:
        print(f"lightrail-admin: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, EOFError):
        print("lightrail-admin: nothing was changed", file=sys.stderr)
        return 1


async def _open(parsed: argparse.Namespace) -> int:
    if getattr(parsed, "name", None) is not None:
        parsed.name = user_name(parsed.name)
    if getattr(parsed, "prefix", None) is not None:
        parsed.prefix = _prefix(parsed.prefix)
    if getattr(parsed, "rights", None) is not None:
        parsed.rights = _rights(parsed.rights)
    settings = _settings(parsed)
    path = os.path.join(settings.data, FILE_NAME)
    if settings.etcd:
        pass
    elif (parsed.thing, parsed.action) in (("user", "add"), ("key", "make")):
        make_data_directory(settings.data)
    elif not os.path.exists(path):  # noqa: ASYNC240 - nothing else runs on this loop
        none = "no shard has run" if parsed.thing == "shard" else "no user is defined"
        raise FileCommandError(f"{path} does not exist: no broker has used --data {parsed.data}, and {none}")
    coordinator = await open_coordinator(settings)
    try:
        if parsed.thing == "permission":
            return await _permission(coordinator, parsed)
        if parsed.thing == "shard":
            return await _accept_disks(coordinator, parsed.ids, leases=bool(settings.etcd))
        if parsed.thing == "key":
            return await _key(coordinator, parsed)
        return await _user(coordinator, parsed)
    finally:
        await coordinator.close()


def _settings(parsed: argparse.Namespace) -> Settings:
    """Settings of the coordinator, from flags, or from variables without flags; with the etcd that
    ``lightrail serve --replicas`` has started for this data directory.

    Raises SettingsError, FileCommandError.
    """
    names = ("data", *COORDINATOR_SETTINGS)
    given = {name: getattr(parsed, name, None) for name in names}
    variables = (VARIABLE_PREFIX + name.upper() for name in names)
    settings = Settings.load(
        flags={name: text for name, text in given.items() if text is not None},
        environ={name: os.environ[name] for name in variables if name in os.environ},
    )
    if settings.etcd or not os.path.isdir(local_etcd.directory(settings.data)):
        return settings
    found = etcd_address(settings.data)
    if found is None:
        raise FileCommandError(
            f"expected a running `lightrail serve --replicas`, whose etcd has the users of {settings.data}, "
            "found none: start it first"
        )
    return replace(settings, etcd=(found,))


async def _accept_disks(coordinator: Coordinator, ids: Sequence[int], *, leases: bool) -> int:
    """`leases`: whether registrations end with their processes, so that a remaining one is of a running
    process."""
    for id in ids:
        if leases:
            await until_free(
                coordinator,
                f"{SHARDS}{id}",
                Member(id, boot=NOBODY),
                lease_ms=limits.ETCD_LEASE_MS,
                clock=time.monotonic,
                waiting=lambda what: print(f"lightrail-admin: {what}", file=sys.stderr),
            )
        accepted = await accept_disk(coordinator, id)
        print(
            f"shard {id}: the next start with disk {accepted.disk} serves the messages of its directory; "
            f"messages that only generation {accepted.number} has are given up"
        )
    return 0


async def _user(coordinator: Coordinator, parsed: argparse.Namespace) -> int:
    match parsed.action:
        case "add":
            await coordinator.add_user(UserRecord.make(parsed.name, _password(parsed), parsed.rounds))
            if parsed.no_rights:
                print(f"user {parsed.name} is defined and may do nothing yet; see `permission set`")
            else:
                await _service(coordinator).permit(OPERATOR, parsed.name, parsed.prefix, parsed.rights)
                print(f"user {parsed.name} is defined and may {_may(parsed.rights, parsed.prefix)}")
        case "password":
            record = UserRecord.make(parsed.name, _password(parsed), parsed.rounds)
            former = await coordinator.user(parsed.name)
            keys = () if former is None else former.access_keys
            await coordinator.replace_user(replace(record, access_keys=keys))
            print(f"user {parsed.name} has a new password")
        case "remove":
            await coordinator.remove_user(parsed.name)
            await _clear(_service(coordinator), parsed.name, None)
            print(f"user {parsed.name} is removed")
            if not await coordinator.has_users():
                print(
                    "no user is left: the broker accepts every client on loopback, and no other clients",
                    file=sys.stderr,
                )
        case "list":
            users = await coordinator.users()
            lines = [json.dumps({"users": users})] if parsed.json else users
            sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


async def _key(coordinator: Coordinator, parsed: argparse.Namespace) -> int:
    match parsed.action:
        case "make":
            is_new = await _make_key(coordinator, parsed.name)
            if is_new:
                rights, prefix = parsed.rights or frozenset(Right), parsed.prefix or ""
                await _service(coordinator).permit(OPERATOR, parsed.name, prefix, rights)
                print(f"user {parsed.name} is defined and may {_may(rights, prefix)}", file=sys.stderr)
            elif parsed.rights is not None or parsed.prefix is not None:
                what = "the user exists already, and keeps its rights; see `permission set`"
                print(what, file=sys.stderr)
            await _show_keys(coordinator, parsed, newest=True)
        case "show":
            await _show_keys(coordinator, parsed)
        case "list":
            await _show_all_keys(coordinator, parsed)
        case "delete":
            await _delete_key(coordinator, parsed.name, parsed.id)
        case "rules":
            _show_rules(_service(coordinator), parsed)
        case "delete-rule":
            await _delete_rule(_service(coordinator), parsed.name, parsed.rule)
    return 0


async def _permission(coordinator: Coordinator, parsed: argparse.Namespace) -> int:
    service = _service(coordinator)
    match parsed.action:
        case "set":
            await service.permit(OPERATOR, parsed.name, parsed.prefix, parsed.rights)
            print(f"user {parsed.name} may {_may(parsed.rights, parsed.prefix)}")
            if await coordinator.user(parsed.name) is None:
                print(
                    f"no user {parsed.name} is defined; the rights apply to a client certificate of that "
                    "name, or once the user is added",
                    file=sys.stderr,
                )
        case "clear":
            if not await _clear(service, parsed.name, parsed.prefix):
                where = "" if parsed.prefix is None else f" at {parsed.prefix or '/'}"
                raise FileCommandError(f"user {parsed.name} has no rights{where}; see `permission list`")
            print(f"rights of user {parsed.name} are cleared")
        case "list":
            found = sorted(service.directory.every_permission(), key=lambda each: (each.user, each.prefix))
            found = [each for each in found if parsed.name in (None, each.user)]
            if parsed.json:
                rows = [
                    {"user": each.user, "prefix": each.prefix, "rights": sorted(each.rights)}
                    for each in found
                ]
                print(json.dumps({"permissions": rows}))
            else:
                for each in found:
                    print(f"{each.user}\t{each.prefix or '/'}\t{','.join(sorted(each.rights))}")
    return 0


def _service(coordinator: Coordinator) -> Service:
    """The present namespace."""
    directory = Directory(coordinator)
    directory.refresh()
    return Service(coordinator, directory)


async def _clear(service: Service, user: str, prefix: str | None) -> int:
    """Revokes rights at one prefix or at all prefixes; returns the number of revoked permissions."""
    found = [each for each in service.directory.permissions(user) if prefix in (None, each.prefix)]
    for each in found:
        await service.permit(OPERATOR, user, each.prefix, frozenset())
    return len(found)


def _prefix(text: str) -> str:
    """A name; `/` means all names. Raises InvalidNameError."""
    if text == "/":
        return ""
    prefix = text.removeprefix("/")
    check(prefix)
    return prefix


def _rights(text: str) -> frozenset[Right]:
    if text == "all":
        return frozenset(Right)
    try:
        rights = frozenset(Right(each.strip()) for each in text.split(","))
    except ValueError:
        raise FileCommandError(
            f"the rights are {text!a}; expected manage, send, listen by commas, or all"
        ) from None
    return rights


def _may(rights: frozenset[Right], prefix: str) -> str:
    words = ", ".join(right for right in Right if right in rights)
    return f"{words} on {prefix + ' and below' if prefix else 'everything'}"


def _password(parsed: argparse.Namespace) -> str:
    """The password: from the file, a terminal (two prompts), or the first line of stdin."""
    if parsed.password_file:
        try:
            with open(parsed.password_file, encoding="utf-8") as file:
                return _first_line(file.readline(PASSWORD_BYTES_MAX + 2))
        except (OSError, UnicodeDecodeError) as error:
            raise FileCommandError(
                f"the password file {parsed.password_file} can't be read: {error}"
            ) from None
    if not sys.stdin.isatty():
        return _first_line(sys.stdin.readline(PASSWORD_BYTES_MAX + 2))
    password = getpass.getpass(f"Password of {parsed.name}: ")
    if getpass.getpass("Again: ") != password:
        raise FileCommandError("the two passwords differ; nothing was changed")
    return password


def _first_line(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


async def _make_key(coordinator: Coordinator, name: str) -> bool:
    """Stores a new key; returns whether the user is new, too. Raises AccessKeyError, CoordinatorError."""
    record = await coordinator.user(name)
    if record is None:
        await coordinator.add_user(user_for_keys(name))
        return True
    await coordinator.replace_user(with_key(record))
    return False


async def _delete_key(coordinator: Coordinator, name: str, id: str) -> None:
    """Deletes a key. Raises AccessKeyError, UnknownUserError."""
    record = await coordinator.user(name)
    if record is None:
        raise UnknownUserError(f"there is no user {name!a}")
    await coordinator.replace_user(without_key(record, id))
    print(f"key {id} of user {name} is deleted; connections continue until their present token expires")


async def _show_keys(coordinator: Coordinator, parsed: argparse.Namespace, *, newest: bool = False) -> None:
    """Prints the keys of a user as parts of connection strings, or the newest one."""
    record = await coordinator.user(parsed.name)
    if record is None:
        raise UnknownUserError(f"there is no user {parsed.name!a}")
    found = list(keys_of(await coordinator.secret(), record))[-1 if newest else 0 :]
    if parsed.json:
        rows = [{"id": key.id, "key": key.text} for key in found]
        print(json.dumps({"name": record.name, "keys": rows}))
        return
    for key in found:
        print(f"{key.id}\tSharedAccessKeyName={record.name};SharedAccessKey={key.text}")


async def _show_all_keys(coordinator: Coordinator, parsed: argparse.Namespace) -> None:
    """Prints the users that have keys, without the keys."""
    secret = await coordinator.secret()
    rows = []
    for name in await coordinator.users():
        record = await coordinator.user(name)
        if record is not None and record.access_keys:
            rows.append({"name": name, "keys": [key.id for key in keys_of(secret, record)]})
    if parsed.json:
        print(json.dumps({"users": rows}))
        return
    for row in rows:
        print(f"{row['name']}\t{','.join(row['keys'])}")


def _show_rules(service: Service, parsed: argparse.Namespace) -> None:
    """Prints the authorization rules of entities with their rights, without the keys."""
    service.directory.refresh()
    rows = [
        {"name": record.name, "rule": rule.name, "rights": sorted(rule.rights)}
        for record in service.directory.below(parsed.name or "")
        for rule in record.authorization_rules
    ]
    if parsed.json:
        print(json.dumps({"rules": rows}))
        return
    for row in rows:
        print(f"{row['name']}\t{row['rule']}\t{','.join(row['rights'])}")


async def _delete_rule(service: Service, name: str, rule: str) -> None:
    """Raises FileCommandError, CoordinatorError."""
    service.directory.refresh()
    record = service.directory.get(name)
    kept = tuple(each for each in record.authorization_rules if each.name != rule)
    if kept == record.authorization_rules:
        raise FileCommandError(f"{name!a:.200} has no authorization rule {rule!a:.80}; see `key rules`")
    try:
        await service.change(OPERATOR, name, record.policy, record.revision, kept)
    except ServiceError as error:
        raise FileCommandError(str(error)) from None
    print(f"authorization rule {rule} of {name} is deleted; links that were open by it end")

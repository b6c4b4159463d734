"""Commands `lightrail-admin key`: shared access keys of users, for clients of Azure Service Bus."""

import argparse
import json

from lightrail.cluster.coordinator import Coordinator, UnknownUserError
from lightrail.service_bus.access_keys import keys_of, user_for_keys, with_key, without_key


async def make(coordinator: Coordinator, name: str) -> bool:
    """Stores a new key; returns whether the user is new, too. Raises AccessKeyError, CoordinatorError."""
    record = await coordinator.user(name)
    if record is None:
        await coordinator.add_user(user_for_keys(name))
        return True
    await coordinator.replace_user(with_key(record))
    return False


async def delete(coordinator: Coordinator, name: str, id: str) -> None:
    """Deletes a key. Raises AccessKeyError, UnknownUserError."""
    record = await coordinator.user(name)
    if record is None:
        raise UnknownUserError(f"there is no user {name!a}")
    await coordinator.replace_user(without_key(record, id))
    print(f"key {id} of user {name} is deleted; connections continue until their present token expires")


async def show(coordinator: Coordinator, parsed: argparse.Namespace, *, newest: bool = False) -> None:
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


async def show_all(coordinator: Coordinator, parsed: argparse.Namespace) -> None:
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

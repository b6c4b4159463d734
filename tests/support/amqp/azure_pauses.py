"""Pauses of Azure's client for Python: shorter ones, for the same frames in the same order.

The client looks each 50 ms whether a link is open, which takes it half a second, and close() of a link waits
for a thread that looks once a second whether the link is closed. The programs of tests/interop/azure run the
client as it is.
"""

import asyncio
import time
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final

from azure.servicebus import _servicebus_receiver, _servicebus_sender
from azure.servicebus._pyamqp import client
from azure.servicebus._pyamqp.aio import _client_async

OPENING_S: Final = 0.002
CLOSING_S: Final = 0.02


def shorten() -> None:
    """For all clients of this process."""
    opening = SimpleNamespace(**vars(time) | {"sleep": lambda _: time.sleep(OPENING_S)})
    for module in (_servicebus_receiver, _servicebus_sender):
        vars(module)["time"] = opening
    threads = SimpleNamespace(time=time.time, sleep=lambda _: time.sleep(CLOSING_S))
    _replace(client, client.AMQPClient, "_keep_alive", time=threads)
    tasks = SimpleNamespace(shield=asyncio.shield, sleep=lambda _: asyncio.sleep(CLOSING_S))
    _replace(_client_async, _client_async.AMQPClientAsync, "_keep_alive_async", asyncio=tasks)


def _replace(module: ModuleType, owner: type, name: str, **seen: Any) -> None:
    """The method as it is written, which sees other modules than the rest of its own one does."""
    method = vars(owner)[name]
    setattr(owner, name, FunctionType(method.__code__, vars(module) | seen, name, method.__defaults__))

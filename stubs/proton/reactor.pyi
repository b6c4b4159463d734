from collections.abc import Callable, Sequence
from typing import Any, Literal

from proton import AnyLink, Connection, Link, Receiver, Sender, SSLDomain
from proton.handlers import Handler

class LinkOption:
    # Given every link that is opened with it; most options are meant for one role.
    def apply(self, link: AnyLink) -> None: ...
    def test(self, link: Link) -> bool: ...

class AtMostOnce(LinkOption): ...

class DynamicNodeProperties(LinkOption):
    def __init__(self, props: dict[Any, Any] = ...) -> None: ...

class ReceiverOption(LinkOption): ...

class Selector(ReceiverOption):
    def __init__(self, value: str, name: str = "selector") -> None: ...

class DurableSubscription(ReceiverOption): ...
class Copy(ReceiverOption): ...

class Task:
    def cancel(self) -> None: ...

class Container:
    container_id: str
    timeout: float | None
    def __init__(self, *handlers: Handler) -> None: ...
    def run(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def process(self) -> bool: ...
    def schedule(self, delay: float, handler: Handler) -> Task: ...
    def connect(
        self,
        url: str | None = None,
        urls: list[str] | None = None,
        address: str | None = None,
        handler: Handler | None = None,
        reconnect: Literal[False] | None = None,
        heartbeat: float | None = None,
        ssl_domain: SSLDomain | None = None,
        *,
        sasl_enabled: bool = ...,
        allowed_mechs: str = ...,
        allow_insecure_mechs: bool = ...,
        user: str = ...,
        password: str = ...,
        virtual_host: str = ...,
        offered_capabilities: list[str] = ...,
        desired_capabilities: list[str] = ...,
        max_frame_size: int = ...,
        properties: dict[Any, Any] = ...,
    ) -> Connection: ...
    def create_sender(
        self,
        context: Connection,
        target: str | None = None,
        source: str | None = None,
        name: str | None = None,
        handler: Handler | None = None,
        tags: Callable[[], bytes] | None = None,
        options: LinkOption | Sequence[LinkOption] | None = None,
    ) -> Sender: ...
    def create_receiver(
        self,
        context: Connection,
        source: str | None = None,
        target: str | None = None,
        name: str | None = None,
        dynamic: bool = False,
        handler: Handler | None = None,
        options: LinkOption | Sequence[LinkOption] | None = None,
    ) -> Receiver: ...

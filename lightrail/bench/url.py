"""The address of a broker and a queue in one word: ``amqp://[user:password@]host[:port]/address``."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Url:
    """The broker's host and port, the user, and the address of the queue."""

    host: str
    port: int
    user: str | None
    password: str | None
    address: str

    @property
    def shown(self) -> str:
        """Without the password."""
        return f"amqp://{self.host}:{self.port}/{self.address}"


def parse_url(text: str) -> Url:
    """Read a URL; raises ValueError with what was expected and what was found.

    The address is the path without its first slash, so that addresses that begin with one
    (RabbitMQ's ``/queue/NAME``) are written with two.
    """
    parts = urlsplit(text if "//" in text else f"amqp://{text}")
    if parts.scheme != "amqp":
        raise ValueError(f"expected amqp://[user:password@]host[:port]/address, found {text!r}")
    try:
        port = parts.port or 5672
    except ValueError:
        raise ValueError(f"expected a port from 1 to 65535 in {text!r}") from None
    address = unquote(parts.path[1:]) + (f"?{parts.query}" if parts.query else "")
    return Url(
        host=parts.hostname or "127.0.0.1",
        port=port,
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        address=address or "bench",
    )

"""The extra `broker`: packages that the broker needs and the client does not."""

import sys
from importlib.util import find_spec
from typing import Final

MODULES: Final = (
    "aiohttp",
    "cproton",
    "defusedxml",
    "etcd3",
    "grpc",
    "jinja2",
    "jwt",
    "prometheus_client",
    "uvloop",
    "wsproto",
    "zmq",
)
"""One module of each package that the extra names."""
WRONG_USE: Final = 2


def missing() -> list[str]:
    """Modules of the extra that are not installed; none of them is imported."""
    return [name for name in MODULES if find_spec(name) is None]


def refuse(command: str) -> int | None:
    """Without the extra, prints one line on stderr and returns the exit status; otherwise returns None."""
    lacking = missing()
    if not lacking:
        return None
    install = "pip install 'lightrail[broker]'"
    print(
        f"{command} needs the broker's packages: {install} (missing: {', '.join(lacking)})", file=sys.stderr
    )
    return WRONG_USE

"""Stores: the file systems that paths and URIs name, opened by pyarrow and by deltalake alike.

Credentials and address of an object store are in environment variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL
and so on, on the driver and on every executor) or given by the machine's role, never in URIs, which are
visible in Spark's plans.
"""

import os
import re
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss"}
"""Names in pyarrow of schemes of Hadoop."""
_URI: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/(?:/([^/]*))?")
_SECRET: Final = re.compile(r"//[^/@]*:[^/@]*@|[?&][a-z_]*(key|secret|token|password)[a-z_]*=", re.IGNORECASE)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_PERSON: Final = (*_ENDPOINTS, "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION")


class StoreError(Exception):
    """The store is unknown, or its name is not allowed."""


def scheme_of(path: str) -> str | None:
    """The scheme of a URI in pyarrow; None for a path and for `file:`, which are local."""
    found = _URI.match(path)
    if found is None or found[1] == "file":
        return None
    return _SCHEMES.get(found[1], found[1])


def file_system(path: str) -> tuple[Any, str]:
    """The file system of a path or URI, and the path in it, without a / at its end.

    Raises:
        StoreError: pyarrow does not support it, or there is a secret in it.
    """
    scheme = scheme_of(path)
    if scheme is None:
        if path.startswith("file:"):
            return fs.LocalFileSystem(), "/" + path[len("file:") :].strip("/")
        return fs.LocalFileSystem(), path.rstrip("/") or "/"
    refuse_secret(path)
    found = _URI.match(path)
    assert found is not None
    environment = tuple(os.environ.get(name) for name in _PERSON)
    try:
        system, base = _opened(scheme, found[2], environment)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(
            f"expected a path or a URI of a file system that pyarrow opens (file, s3, gs, hdfs, abfss), "
            f"found {path!r}: {error}"
        ) from error
    return system, f"{base.rstrip('/')}/{path[found.end() :].strip('/')}".rstrip("/")


@lru_cache(maxsize=16)
def _opened(scheme: str, authority: str | None, environment: tuple[str | None, ...]) -> tuple[Any, str]:
    """Opens a file system; cached, because each client opens connections and looks up its bucket's region."""
    system, base = fs.FileSystem.from_uri(f"{scheme}://{authority or ''}" + ("" if authority else "/"))
    return system, base


def refuse_secret(path: str) -> None:
    """Refuses secrets in a URI, which is visible in Spark's plans, on its pages and in logs.

    Raises:
        StoreError: there is a secret in it.
    """
    if scheme_of(path) is not None and _SECRET.search(path):
        raise StoreError(
            f"expected a URI without credentials, found some in {_URI.match(path)[0].split('@')[-1]!a}: "  # type: ignore[index]
            "set them in environment variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def delta_options(uri: str) -> dict[str, str]:
    """Options of deltalake beyond those that it reads from the environment.

    Commits to S3 are puts on the condition that the object does not exist: of two concurrent commits one is
    refused. The store must support that condition (docs/operate/capture.md lists the stores that do).

    Raises:
        StoreError: there is a secret in the URI.
    """
    refuse_secret(uri)
    if scheme_of(uri) != "s3":
        return {}
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    options = {"conditional_put": "etag", "allow_unsafe_rename": "false"}
    if endpoint is not None:
        options["endpoint_url"] = endpoint
        if endpoint.startswith("http://"):
            options["allow_http"] = "true"
    return options

"""Claim checks: large bodies are stored elsewhere, and messages have references to them.

    bus = Bus(url, name="scans", format=ClaimCheck(Json(), FolderClaims("/mnt/claims"), size=100_000))

Services that read such messages need the same store. A body is not deleted with its message, since several
subscriptions may read it: `FolderClaims.expire` deletes old ones. Putting a body syncs the disk on the loop.
"""

import hashlib
import os
import time
from pathlib import Path
from typing import Any, Final, Protocol

from lightrail.bus.errors import NotReadableError
from lightrail.bus.formats import Format, Read
from lightrail.transport import Envelope

CLAIM: Final = "lightrail-claim"
"""Header: SHA-256 of the body, by which it is found."""
SIZE: Final = 64 * 1024


class Claims(Protocol):
    """A store of bodies."""

    def put(self, body: bytes) -> str:
        """Stores a body, and returns its claim."""
        ...

    def get(self, claim: str) -> bytes:
        """The body of a claim. Raises KeyError."""
        ...


class FolderClaims:
    """Bodies in a folder that all services see, each in a file that is named by its SHA-256."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, body: bytes) -> str:
        """Stores a body; it is on disk when this returns."""
        claim = hashlib.sha256(body).hexdigest()
        path = self._path(claim)
        if path.exists():
            # The body counts as new again for `expire`.
            os.utime(path)
            return claim
        path.parent.mkdir(exist_ok=True, mode=0o700)
        part = path.with_name(f".{claim}.{os.getpid()}.{time.monotonic_ns()}")
        with open(part, "xb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        for folder in (path.parent, self._folder):
            number = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        return claim

    def get(self, claim: str) -> bytes:
        """The body of a claim. Raises KeyError where it is missing or does not match."""
        if len(claim) != 64 or not claim.isalnum():
            raise KeyError(claim)
        try:
            body = self._path(claim).read_bytes()
        except FileNotFoundError:
            raise KeyError(claim) from None
        if hashlib.sha256(body).hexdigest() != claim:
            raise KeyError(claim)
        return body

    def expire(self, age_s: float) -> int:
        """Deletes bodies older than `age_s` seconds; returns how many."""
        count = 0
        for path in self._folder.glob("??/*"):
            if path.stat().st_mtime < time.time() - age_s:
                path.unlink(missing_ok=True)
                count += 1
        return count

    def _path(self, claim: str) -> Path:
        return self._folder / claim[:2] / claim


class ClaimCheck:
    """A format whose large bodies are stored elsewhere.

    Args:
        format: of the messages.
        claims: the store of bodies.
        size: bytes of a body from which it is stored there.
    """

    def __init__(self, format: Format, claims: Claims, size: int = SIZE) -> None:
        self._format = format
        self._claims = claims
        self._size = size

    def reads(self, envelope: Envelope) -> bool:
        """Whether the inner format reads the envelope."""
        return CLAIM in envelope.headers or self._format.reads(envelope)

    def write(
        self, types: str, data: Any, envelope: Envelope, *, source: str, cause: Envelope | None
    ) -> None:
        """As the inner format; a large body is stored, and an empty one sent."""
        self._format.write(types, data, envelope, source=source, cause=cause)
        if len(envelope.body) >= self._size:
            envelope.headers = {**envelope.headers, CLAIM: self._claims.put(envelope.body)}
            envelope.body = b""

    def read(self, envelope: Envelope) -> Read:
        """As the inner format, with the stored body. Raises NotReadableError where it is missing."""
        claim = envelope.headers.get(CLAIM)
        if claim is None:
            return self._format.read(envelope)
        try:
            stored = envelope.replace(body=self._claims.get(str(claim)))
        except KeyError:
            raise NotReadableError(f"expected the body of the claim {claim}, found none") from None
        read = self._format.read(stored)
        return Read(read.types, read.data, read.envelope.replace(body=envelope.body))

    def knows_faults(self, request: Envelope) -> bool:
        """As the inner format."""
        return self._format.knows_faults(request)

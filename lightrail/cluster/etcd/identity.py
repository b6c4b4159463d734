"""Identity: id and secret of a cluster, in the entry ``identity`` that its first process writes."""

import base64
import json
import logging
import secrets
from typing import Final, NamedTuple

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.etcd.client import EtcdClient

log = logging.getLogger("lightrail.cluster.etcd.identity")

IDENTITY: Final = "identity"


class Identity(NamedTuple):
    """See Coordinator.cluster_id and Coordinator.secret."""

    cluster: str
    secret: bytes

    @classmethod
    def decode(cls, found: Entry | None, prefix: str) -> "Identity":
        """Decodes the entry below `prefix`. Raises CoordinatorError."""
        try:
            fields = json.loads(found.value or "" if found is not None else "")
            return cls(str(fields["cluster"]), base64.b64decode(fields["secret"], validate=True))
        except (ValueError, KeyError, TypeError) as error:
            raise CoordinatorError(f"the entry {prefix}{IDENTITY} in etcd can't be read: {error!r}") from None


def identify(client: EtcdClient, prefix: str, until: float) -> Identity:
    """Reads the identity, or makes one if etcd has none. Blocks. Raises CoordinatorError."""
    found = client.get(IDENTITY, until)
    if found is None:
        secret = base64.b64encode(secrets.token_bytes(32)).decode()
        made = json.dumps({"cluster": secrets.token_hex(16), "secret": secret}, separators=(",", ":"))
        try:
            client.transact([Write(IDENTITY, made, 0)], until)
        except ConflictError:
            log.debug("another process was faster to make the identity of the cluster")
        found = client.get(IDENTITY, until)
    return Identity.decode(found, prefix)

"""Who gets in: SASL PLAIN with users of lightrail-admin, TLS, client certificates; by python-qpid-proton."""

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from proton import ConnectionException, Message, SSLDomain
from proton.utils import BlockingConnection, LinkDetached

from lightrail.cli import admin as lightrail_admin
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, received
from tests.support.broker import Broker
from tests.support.certificates import Authority

PASSWORD = "pa\u00dfword with spaces"


def admin(data: Path | str, *arguments: str, password: str = "") -> str:
    """Run lightrail-admin, in this process; the password goes in by stdin."""
    output, errors, typed = io.StringIO(), io.StringIO(), io.StringIO(f"{password}\n")
    with redirect_stdout(output), redirect_stderr(errors), mock.patch.object(sys, "stdin", typed):
        status = lightrail_admin.main(["--data", str(data), *arguments])
    assert status == 0, errors.getvalue()
    return output.getvalue()


class Secured(NamedTuple):
    broker: Broker
    authority: Authority

    @property
    def tls(self) -> str:
        # By name: proton does not compare addresses with those in a certificate.
        return f"amqps://localhost:{self.broker.ready['amqps'].rpartition(':')[2]}"

    def domain(self, user: str | None = None, ca: str | None = None) -> SSLDomain:
        """TLS of a client that checks the broker's certificate, with one of its own or without."""
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(ca or self.authority.path)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        if user is not None:
            certificate = self.authority.sign(user)
            domain.set_credentials(certificate.certificate, certificate.key, None)
        return domain


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with the user alice, TLS and client certificates."""
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory / "ca")
    server = authority.sign("localhost", "DNS:localhost")
    data = directory / "data"
    admin(data, "user", "add", "alice", password=PASSWORD)
    with Broker(
        data,
        *("--amqps", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key),
        *("--tls-client-ca", authority.path),
    ) as broker:
        yield Secured(broker, authority)


def pass_a_message(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(Message(body="hello"))
    assert received(connection.create_receiver(queue), 1)[0].body == "hello"


def refused(address: str, **options: object) -> str:
    with pytest.raises(ConnectionException) as error, connected(address, **options):
        pass
    return str(error.value)


def plain(user: str, password: str) -> dict[str, object]:
    return {"allowed_mechs": "PLAIN", "allow_insecure_mechs": True, "user": user, "password": password}


# --- users -----------------------------------------------------------------------------------------------


def test_plain_with_a_user(secured: Secured, queue: str) -> None:
    with connected(secured.broker.amqp, **plain("alice", PASSWORD)) as connection:
        pass_a_message(connection, queue)


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("alice", ""), ("nobody", PASSWORD), ("ALICE", PASSWORD)]
)
def test_wrong_names_and_passwords_are_refused(secured: Secured, user: str, password: str) -> None:
    assert "Authentication failed" in refused(secured.broker.amqp, **plain(user, password))


def test_anonymous_attaches_to_nothing_but_cbs_where_users_are_defined(secured: Secured, queue: str) -> None:
    with connected(secured.broker.amqp, allowed_mechs="ANONYMOUS") as connection:
        for open_link in (connection.create_sender, connection.create_receiver):
            with pytest.raises(LinkDetached, match=r"amqp:unauthorized-access.*put a token at \$cbs first"):
                open_link(queue)
        connection.create_sender("$cbs")


def test_no_sasl_is_refused_where_users_are_defined(secured: Secured) -> None:
    refused(secured.broker.amqp, sasl_enabled=False)


def test_users_come_and_go_while_the_broker_runs(secured: Secured, queue: str) -> None:
    data, address = secured.broker.data, secured.broker.amqp
    admin(data, "user", "add", "bob", password="first")
    assert admin(data, "user", "list").split() == ["alice", "bob"]
    with connected(address, **plain("bob", "first")) as connection:
        pass_a_message(connection, queue)
        admin(data, "user", "password", "bob", password="second")
        refused(address, **plain("bob", "first"))
        with connected(address, **plain("bob", "second")) as other:
            pass_a_message(other, queue)
        admin(data, "user", "remove", "bob")
        refused(address, **plain("bob", "second"))
    for path in data.rglob("*"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes()


def test_the_first_user_ends_anonymous_access(tmp_path: Path, queue: str) -> None:
    with Broker(tmp_path / "data") as broker:
        with connected(broker.amqp, allowed_mechs="ANONYMOUS") as connection:
            pass_a_message(connection, queue)
        admin(broker.data, "user", "add", "carol", password="secret")

        def anonymous_is_refused() -> bool:
            try:
                with connected(broker.amqp, allowed_mechs="ANONYMOUS") as connection:
                    connection.create_sender(queue)
                    return False
            except LinkDetached:
                return True

        wait.until(anonymous_is_refused, "the new user is noticed")
        with connected(broker.amqp, **plain("carol", "secret")) as connection:
            pass_a_message(connection, queue)


# --- TLS -------------------------------------------------------------------------------------------------


def test_tls_with_a_password(secured: Secured, queue: str) -> None:
    options = {"allowed_mechs": "PLAIN", "user": "alice", "password": PASSWORD}
    with connected(secured.tls, ssl_domain=secured.domain(), **options) as connection:
        pass_a_message(connection, queue)
        large = bytes(5_000_000)
        connection.create_sender(queue, name="large").send(Message(body=large, inferred=True))
        (found,) = received(connection.create_receiver(queue, name="large"), 1)
        assert bytes(found.body) == large


def test_tls_with_a_client_certificate(secured: Secured, queue: str) -> None:
    """EXTERNAL: the common name of the certificate is the user (5.3.3.2), with the rights given to it."""
    admin(secured.broker.data, "permission", "set", "dave", "/", "all")
    domain = secured.domain("dave")
    with connected(secured.tls, ssl_domain=domain, allowed_mechs="EXTERNAL") as connection:
        pass_a_message(connection, queue)


def test_external_without_a_certificate_is_refused(secured: Secured) -> None:
    assert "mech=none" in refused(secured.tls, ssl_domain=secured.domain(), allowed_mechs="EXTERNAL")


def test_a_certificate_of_a_stranger_is_refused(secured: Secured, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "Stranger").sign("mallory")
    domain = secured.domain()
    domain.set_credentials(stranger.certificate, stranger.key, None)
    refused(secured.tls, ssl_domain=domain, allowed_mechs="EXTERNAL")


def test_the_client_refuses_a_broker_it_does_not_trust(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path, "Other")
    assert "certificate verify failed" in refused(secured.tls, ssl_domain=secured.domain(ca=other.path))

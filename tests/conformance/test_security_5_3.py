"""SASL (security 5.3): mechanisms, PLAIN, SCRAM-SHA-256, what is refused, what only a server may send."""

import base64
import hashlib
import hmac
from collections.abc import Iterator

import pytest

from lightrail.amqp.performatives import (
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    encode_performative,
)
from lightrail.amqp.values import Symbol
from lightrail.cli import admin
from tests.support.amqp.frame_peer import AMQP, SASL, TLS, Peer, frame
from tests.support.broker import Broker

OK, AUTH = 0, 1
PASSWORD = "pencil"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With one user, so that nobody comes in without a password."""
    directory = tmp_path_factory.mktemp("sasl")
    password = directory / "password"
    password.write_text(f"{PASSWORD}\n")
    data = directory / "data"
    assert admin.main(["--data", str(data), "user", "add", "user", "--password-file", str(password)]) == 0
    with Broker(data) as started:
        yield started


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Without users: ANONYMOUS on loopback."""
    with Broker(tmp_path_factory.mktemp("anonymous") / "data") as started:
        yield started


def sasl(body: object) -> bytes:
    return frame(body, kind=1)


def entered(peer: Peer) -> None:
    """After the outcome: the AMQP header and open, as on a new connection (5.3.2)."""
    peer.open()
    peer.begin()


def greeted(peer: Peer) -> SaslMechanisms:
    peer.send(SASL)
    assert peer.header() == SASL
    return peer.expect(SaslMechanisms)


# --- the layer -------------------------------------------------------------------------------------------


def test_5_3_1_mechanisms_are_offered_the_strongest_first(peer: Peer) -> None:
    users = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
    # The last ones are for clients that put a token at $cbs.
    assert greeted(peer).sasl_server_mechanisms == [*users, "ANONYMOUS", "MSSBCBS"]


def test_5_3_1_sasl_frames_are_of_type_1_on_channel_0(peer: Peer) -> None:
    peer.send(SASL)
    peer.header()
    found = peer.read()
    assert (found.kind, found.channel) == (1, 0)


@pytest.mark.parametrize("header", [AMQP, TLS, b"AMQP\x03\x01\x01\x00"])
def test_5_3_2_without_sasl_nobody_gets_in(peer: Peer, header: bytes) -> None:
    """2.2: what is acceptable is said, and the socket closed."""
    peer.send(header, frame(Open(container_id="test")))
    assert peer.header() == SASL
    peer.expect_end()


def test_5_3_2_everything_pipelined(peer: Peer) -> None:
    """A client that knows what it will be offered need not wait for it."""
    init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0user\0pencil", hostname="example.com")
    peer.send(SASL, sasl(init), AMQP, frame(Open(container_id="pipelined")))
    assert peer.header() == SASL
    peer.expect(SaslMechanisms)
    assert peer.expect(SaslOutcome).code == OK
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.begin()


def test_5_3_2_byte_by_byte(peer: Peer) -> None:
    init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0user\0pencil")
    for byte in SASL + sasl(init):
        peer.send(bytes([byte]))
    assert peer.header() == SASL
    peer.expect(SaslMechanisms)
    assert peer.expect(SaslOutcome).code == OK
    entered(peer)


# --- mechanisms ------------------------------------------------------------------------------------------


def test_5_3_3_plain(peer: Peer) -> None:
    assert peer.sasl("PLAIN", b"\0user\0pencil").code == OK
    entered(peer)


@pytest.mark.parametrize(
    "response",
    [
        b"\0user\0wrong",
        b"\0nobody\0pencil",
        b"\0user\0",
        b"\0user\0pencil\0",
        b"\0user",
        b"",
        None,
        b"other\0user\0pencil",
        b"\0\xff\xfe\0pencil",
        b"\0user\0" + b"x" * 10_000,
    ],
    ids=[
        "wrong-password",
        "unknown-user",
        "empty-password",
        "nul-in-the-password",
        "no-password",
        "empty",
        "null",
        "another-identity",
        "no-utf-8",
        "endless-password",
    ],
)
def test_5_3_3_plain_is_refused(peer: Peer, response: bytes | None) -> None:
    outcome = peer.sasl("PLAIN", response)
    assert (outcome.code, outcome.additional_data) == (AUTH, None)
    peer.expect_end()


class Scram:
    """The client's side of RFC 5802 and RFC 7677, by hand."""

    def __init__(self, hash_name: str, user: str, password: str) -> None:
        self.hash = hash_name
        self.password = password
        self.nonce = "rOprNGfwEbeRWgbNEkqO"
        self.first_bare = f"n={user},r={self.nonce}"
        self.server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self.first_bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        text = challenge.decode()
        fields = dict(part.split("=", 1) for part in text.split(","))
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) > len(self.nonce)
        iterations = int(fields["i"])
        assert iterations >= 4096
        salt = base64.b64decode(fields["s"])
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        stored_key = hashlib.new(self.hash, client_key).digest()
        without_proof = f"c=biws,r={fields['r']}"
        message = f"{self.first_bare},{text},{without_proof}".encode()
        signature = hmac.digest(stored_key, message, self.hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self.hash)
        self.server_signature = hmac.digest(server_key, message, self.hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def scram(peer: Peer, client: Scram, mechanism: str) -> SaslOutcome:
    greeted(peer)
    peer.send(sasl(SaslInit(mechanism=Symbol(mechanism), initial_response=client.first())))
    challenge = peer.expect(SaslChallenge)
    peer.send(sasl(SaslResponse(response=client.final(challenge.challenge))))
    return peer.expect(SaslOutcome)


@pytest.mark.parametrize(("mechanism", "name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_5_3_3_scram(peer: Peer, mechanism: str, name: str) -> None:
    """The outcome proves that the broker knows the keys, too (5.3.3.5, additional-data)."""
    client = Scram(name, "user", PASSWORD)
    outcome = scram(peer, client, mechanism)
    assert outcome.code == OK
    assert outcome.additional_data == b"v=" + base64.b64encode(client.server_signature)
    entered(peer)


@pytest.mark.parametrize(("user", "password"), [("user", "wrong"), ("nobody", PASSWORD)])
def test_5_3_3_scram_is_refused(peer: Peer, user: str, password: str) -> None:
    """Unknown users are asked the same way, and refused at the same point."""
    outcome = scram(peer, Scram("sha256", user, password), "SCRAM-SHA-256")
    assert (outcome.code, outcome.additional_data) == (AUTH, None)
    peer.expect_end()


def test_5_3_3_an_unknown_user_always_has_the_same_salt(broker: Broker) -> None:
    challenges = []
    for _ in range(2):
        with Peer(broker.amqp) as peer:
            greeted(peer)
            client = Scram("sha256", "nobody", "x")
            peer.send(sasl(SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=client.first())))
            text = peer.expect(SaslChallenge).challenge.decode()
            challenges.append(dict(part.split("=", 1) for part in text.split(",")))
    assert challenges[0]["s"] == challenges[1]["s"]
    assert challenges[0]["i"] == challenges[1]["i"]
    assert challenges[0]["r"] != challenges[1]["r"]


@pytest.mark.parametrize("response", [b"", b"n,,", b"p=tls-unique,,n=user,r=x", b"garbage", None])
def test_5_3_3_scram_that_makes_no_sense_is_refused(peer: Peer, response: bytes | None) -> None:
    greeted(peer)
    peer.send(sasl(SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=response)))
    assert peer.expect(SaslOutcome).code == AUTH
    peer.expect_end()


def test_5_3_3_a_scram_proof_cannot_be_replayed(broker: Broker) -> None:
    """The broker's part of the nonce is new each time."""
    client = Scram("sha256", "user", PASSWORD)
    with Peer(broker.amqp) as peer:
        greeted(peer)
        peer.send(sasl(SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=client.first())))
        final = client.final(peer.expect(SaslChallenge).challenge)
    with Peer(broker.amqp) as peer:
        greeted(peer)
        peer.send(sasl(SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=client.first())))
        peer.expect(SaslChallenge)
        peer.send(sasl(SaslResponse(response=final)))
        assert peer.expect(SaslOutcome).code == AUTH
        peer.expect_end()


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "CRAM-MD5", "plain", ""])
def test_5_3_3_a_mechanism_that_is_not_offered_is_refused(peer: Peer, mechanism: str) -> None:
    assert peer.sasl(mechanism, b"\0user\0pencil").code == AUTH
    peer.expect_end()


def test_5_3_3_anonymous_where_no_user_is_defined(open_broker: Broker) -> None:
    for response in (None, b"", b"trace@example.com"):
        with Peer(open_broker.amqp) as peer:
            assert peer.sasl("ANONYMOUS", response).code == OK
            entered(peer)


def test_5_3_3_where_anonymous_is_allowed_sasl_may_be_left_away(open_broker: Broker) -> None:
    with Peer(open_broker.amqp) as peer:
        entered(peer)


def test_5_3_3_where_no_user_is_defined_nobody_has_to_say_who_they_are(open_broker: Broker) -> None:
    """MSSBCBS is ANONYMOUS for clients of Azure; others are configured with a user and choose PLAIN."""
    with Peer(open_broker.amqp) as peer:
        assert greeted(peer).sasl_server_mechanisms == ["ANONYMOUS", "MSSBCBS", "PLAIN"]
    for mechanism, response in (("MSSBCBS", None), ("PLAIN", b"\0guest\0guest")):
        with Peer(open_broker.amqp) as peer:
            assert peer.sasl(mechanism, response).code == OK
            entered(peer)


# --- what breaks the exchange ----------------------------------------------------------------------------

INIT = SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=Scram("sha256", "user", "x").first())
PLAIN_INIT = SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0user\0pencil")


@pytest.mark.parametrize(
    "bad",
    [
        sasl(SaslMechanisms(sasl_server_mechanisms=[Symbol("PLAIN")])),
        sasl(SaslChallenge(challenge=b"x")),
        sasl(SaslOutcome(code=0)),
        sasl(SaslResponse(response=b"x")),
        frame(Open(container_id="too early")),
        sasl(Open(container_id="in a SASL frame")),
        frame(encode_performative(PLAIN_INIT)),
        sasl(b"\xff\xff\xff"),
        sasl(b"\x00\x53\x41\x45"),
        sasl(b""),
        sasl(encode_performative(PLAIN_INIT) + b"\x40"),
        AMQP,
        b"\x00\x00\x00\x07\x02\x01\x00\x00",
        b"\x7f\xff\xff\xff\x02\x01\x00\x00",
        b"\x00\x00\x00\x08\x01\x01\x00\x00",
    ],
    ids=[
        "mechanisms",
        "challenge",
        "outcome",
        "response-before-init",
        "open",
        "open-as-sasl",
        "init-as-amqp",
        "garbage",
        "no-mechanism",
        "empty",
        "two-values",
        "amqp-header",
        "size-7",
        "2-GB-frame",
        "doff-1",
    ],
)
def test_5_3_2_frames_that_have_no_place_close_the_socket(peer: Peer, bad: bytes) -> None:
    """There is no performative yet to say why with."""
    greeted(peer)
    peer.send(bad)
    peer.expect_end()


@pytest.mark.parametrize(
    "bad",
    [
        sasl(INIT),
        sasl(SaslChallenge(challenge=b"x")),
        sasl(SaslOutcome(code=0)),
        sasl(SaslMechanisms(sasl_server_mechanisms=[])),
        frame(Open(container_id="too early")),
    ],
    ids=["init-again", "challenge", "outcome", "mechanisms", "open"],
)
def test_5_3_2_nothing_but_a_response_follows_a_challenge(peer: Peer, bad: bytes) -> None:
    greeted(peer)
    peer.send(sasl(INIT))
    peer.expect(SaslChallenge)
    peer.send(bad)
    peer.expect_end()


def test_5_3_2_there_is_one_sasl_layer(peer: Peer) -> None:
    assert peer.sasl("PLAIN", b"\0user\0pencil").code == OK
    peer.send(SASL)
    assert peer.header() == AMQP
    peer.expect_end()


def test_5_3_2_no_sasl_frame_after_open(peer: Peer) -> None:
    assert peer.sasl("PLAIN", b"\0user\0pencil").code == OK
    peer.open()
    peer.send(sasl(PLAIN_INIT))
    found = peer.read()
    assert str(found.body.error.condition) == "amqp:connection:framing-error"
    peer.expect_end()


def test_5_3_2_a_frame_above_512_bytes_is_taken(peer: Peer) -> None:
    """Tokens outgrow the 512 bytes of the specification: a long response is read, and judged."""
    outcome = peer.sasl("PLAIN", b"\0user\0" + b"p" * 1_000)
    assert outcome.code == AUTH

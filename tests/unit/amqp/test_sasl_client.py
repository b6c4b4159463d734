"""SASL in the client's role: the engine's frames, each mechanism, and what a server has to prove."""

import base64
from typing import Any

import pytest

from lightrail.amqp.connection import Connection
from lightrail.amqp.errors import LocalError
from lightrail.amqp.events import (
    Closed,
    Event,
    Opened,
    SaslChallenged,
    SaslFailed,
    SaslInit,
    SaslOffered,
    SaslResponse,
    SaslSucceeded,
)
from lightrail.amqp.performatives import SaslChallenge, SaslMechanisms, SaslOutcome
from lightrail.amqp.performatives import SaslResponse as Response
from lightrail.amqp.sasl import MECHANISM_HASHES, ROUNDS_MAX, SaslError, ScramServer, derive, parse_plain
from lightrail.amqp.sasl_client import External, Mechanism, Plain, Scram, mechanism_for
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from tests.unit.amqp.peer import sasl

NONCE = "rOprNGfwEbeRWgbNEkqO"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
"""The example of RFC 7677, section 3."""


class Pair:
    """A client and a server of our own."""

    def __init__(self, *mechanisms: str, **settings: Any) -> None:
        self.client = Connection(ConnectionSettings(is_server=False, uses_sasl=True, **settings), 0)
        self.server = Connection(ConnectionSettings(sasl_mechanisms=mechanisms, allow_plain_header=False), 0)
        self.heard: list[Event] = []

    def turn(self) -> list[Event]:
        """Bytes go both ways; what the client finds in them."""
        found: list[Event] = []
        while self.client.output or self.server.output:
            data = b"".join(self.client.output)
            self.client.output.clear()
            self.heard += self.server.feed(data, 0)
            data = b"".join(self.server.output)
            self.server.output.clear()
            found += self.client.feed(data, 0)
        return found

    def take(self, kind: type[Any]) -> Any:
        (event,) = [event for event in self.heard if isinstance(event, kind)]
        self.heard.clear()
        return event


def log_in(pair: Pair, mechanism: Mechanism, password: str = "pencil") -> list[Event]:
    """The whole exchange; what the client has found at its end."""
    (offered,) = pair.turn()
    assert isinstance(offered, SaslOffered)
    pair.client.sasl_init(mechanism.name, mechanism.initial())
    assert not pair.turn()
    init = pair.take(SaslInit)
    assert init.mechanism == mechanism.name
    if mechanism.name in MECHANISM_HASHES:
        server = ScramServer(mechanism.name)
        server.first(init.response)
        keys = derive(password, SALT, 4_096, MECHANISM_HASHES[mechanism.name])
        pair.server.sasl_challenge(server.challenge(keys, "server"))
        (challenged,) = pair.turn()
        assert isinstance(challenged, SaslChallenged)
        pair.client.sasl_respond(mechanism.respond(challenged.challenge))
        assert not pair.turn()
        try:
            pair.server.sasl_outcome(True, "user", server.final(pair.take(SaslResponse).response))
        except SaslError:
            pair.server.sasl_outcome(False)
    elif isinstance(mechanism, Plain):
        pair.server.sasl_outcome(parse_plain(init.response) == ("user", password), "user")
    else:
        pair.server.sasl_outcome(True, "somebody")
    return pair.turn()


@pytest.mark.parametrize("name", [*MECHANISM_HASHES, "PLAIN", "EXTERNAL", "ANONYMOUS"])
def test_who_proves_the_password_gets_in_and_opens(name: str) -> None:
    pair = Pair(name)
    has_user = name in (*MECHANISM_HASHES, "PLAIN")
    mechanism = mechanism_for(
        [name],
        "user" if has_user else None,
        "pencil" if has_user else None,
        NONCE,
        is_secure=True,
        has_certificate=name == "EXTERNAL",
    )
    (succeeded,) = log_in(pair, mechanism)
    assert isinstance(succeeded, SaslSucceeded)
    mechanism.verify(succeeded.additional_data)
    pair.client.open()
    (opened,) = pair.turn()
    assert isinstance(opened, Opened)
    assert pair.client.opened
    assert pair.server.user == ("user" if has_user else "somebody")


@pytest.mark.parametrize("name", [*MECHANISM_HASHES, "PLAIN"])
def test_who_does_not_is_told_so_and_the_connection_is_closed(name: str) -> None:
    pair = Pair(name)
    mechanism = mechanism_for([name], "user", "wrong", NONCE, is_secure=True)
    assert log_in(pair, mechanism) == [SaslFailed(1)]
    assert pair.client.closed


def test_open_waits_for_the_negotiation() -> None:
    pair = Pair("ANONYMOUS")
    with pytest.raises(LocalError, match="after the protocol header"):
        pair.client.open()


def test_a_server_that_speaks_no_sasl_is_named() -> None:
    client = Connection(ConnectionSettings(is_server=False, uses_sasl=True), 0)
    (closed,) = client.feed(b"AMQP\x00\x01\x00\x00", 0)
    assert isinstance(closed, Closed)
    assert closed.error is not None
    assert "AMQP" in (closed.error.description or "")


@pytest.mark.parametrize(
    "frames",
    [
        [SaslChallenge(challenge=b"x")],
        [SaslOutcome(code=0)],
        [Response(response=b"x")],
        [SaslMechanisms(sasl_server_mechanisms=[Symbol("PLAIN")])] * 2,
    ],
)
def test_frames_that_are_not_the_servers_turn_close_the_connection(frames: list[Any]) -> None:
    client = Connection(ConnectionSettings(is_server=False, uses_sasl=True), 0)
    found = client.feed(b"AMQP\x03\x01\x00\x00" + b"".join(map(sasl, frames)), 0)
    if isinstance(found[0], SaslOffered):
        client.sasl_init("PLAIN")
        found = client.feed(b"", 0)
    (closed,) = found
    assert isinstance(closed, Closed)
    assert "expected sasl-" in str(closed.error)
    with pytest.raises(LocalError):
        client.sasl_respond(b"")


# --- SCRAM ----------------------------------------------------------------------------------------------


def test_scram_answers_as_in_rfc_7677() -> None:
    scram = Scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert scram.initial() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.respond(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("proof", [None, b"", b"v=", b"v=AAAA", b"e=other-error"])
def test_a_server_that_does_not_know_the_password_is_not_believed(proof: bytes | None) -> None:
    scram = Scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    scram.respond(SERVER_FIRST)
    with pytest.raises(SaslError, match="prove"):
        scram.verify(proof)


def test_a_server_that_lets_us_in_without_a_challenge_is_not_believed() -> None:
    with pytest.raises(SaslError, match="prove"):
        Scram("SCRAM-SHA-256", "user", "pencil", NONCE).verify(b"v=")


def test_a_proof_may_come_as_one_more_challenge() -> None:
    scram = Scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    scram.respond(SERVER_FIRST)
    assert scram.respond(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") == b""
    scram.verify(None)


@pytest.mark.parametrize(
    "challenge",
    [
        b"\xff",
        b"",
        b"r=x,s=AAAA,i=4096",
        f"r={NONCE},s=AAAA,i=4096".encode(),
        f"r={NONCE}x,s=?,i=4096".encode(),
        f"r={NONCE}x,s=AAAA,i=4095".encode(),
        f"r={NONCE}x,s=AAAA,i={ROUNDS_MAX + 1}".encode(),
        f"r={NONCE}x,s=AAAA,i=-1".encode(),
        f"r={NONCE}x,i=4096,s=AAAA".encode(),
        f"m=x,r={NONCE}x,s=AAAA,i=4096".encode(),
    ],
)
def test_challenges_that_are_none_are_refused(challenge: bytes) -> None:
    with pytest.raises(SaslError):
        Scram("SCRAM-SHA-256", "user", "pencil", NONCE).respond(challenge)


def test_commas_and_equals_signs_of_names_are_escaped() -> None:
    scram = Scram("SCRAM-SHA-512", "a=b,c", "pencil", NONCE)
    assert ScramServer("SCRAM-SHA-512").first(scram.initial()) == "a=b,c"


# --- which mechanism -------------------------------------------------------------------------------------


def test_the_strongest_is_chosen() -> None:
    offered = ["ANONYMOUS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert mechanism_for(offered, "user", "pencil", NONCE, is_secure=False).name == "SCRAM-SHA-512"
    assert mechanism_for(offered[:3], "user", "pencil", NONCE, is_secure=False).name == "SCRAM-SHA-256"
    assert mechanism_for(offered[:2], "user", "pencil", NONCE, is_secure=True).name == "PLAIN"
    assert mechanism_for(offered, None, None, NONCE, is_secure=False).name == "ANONYMOUS"


def test_a_password_is_not_sent_where_others_may_read_it() -> None:
    with pytest.raises(SaslError, match="amqps://"):
        mechanism_for(["PLAIN"], "user", "pencil", NONCE, is_secure=False)


def test_a_certificate_is_enough_where_the_server_takes_it() -> None:
    found = mechanism_for(["PLAIN", "EXTERNAL"], None, None, NONCE, is_secure=True, has_certificate=True)
    assert isinstance(found, External)


@pytest.mark.parametrize(("user", "password"), [(None, None), ("user", None)])
def test_what_the_server_offers_is_in_the_error(user: str | None, password: str | None) -> None:
    with pytest.raises(SaslError, match="offers PLAIN, GSSAPI"):
        mechanism_for(["PLAIN", "GSSAPI"], user, password, NONCE, is_secure=True)

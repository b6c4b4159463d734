"""SASL: the exchanges of RFC 4616 and RFC 7677, and every way a client can go wrong."""

import base64
import contextlib
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.amqp.sasl import (
    MECHANISM_HASHES,
    MESSAGE_BYTES_MAX,
    SALT_BYTES,
    SaslError,
    ScramKeys,
    ScramServer,
    derive,
    parse_plain,
    prepare,
    unknown_user_keys,
    verify_plain,
)

FEW = 4096
"""The least that RFC 7677 asks for: tests need not be slow."""
KEYS = {hash: derive("pencil", b"salt of 16 bytes", FEW, hash) for hash in ("sha256", "sha512")}


class Client:
    """The client's side of SCRAM, from RFC 5802 section 3."""

    def __init__(
        self, mechanism: str, user: str, password: str, gs2: str = "n,,", nonce: str = "abc"
    ) -> None:
        self.hash = MECHANISM_HASHES[mechanism]
        self.password = password.encode()
        self.gs2 = gs2
        self.nonce = nonce
        self.bare = f"n={user},r={nonce}"

    def first(self) -> bytes:
        return f"{self.gs2}{self.bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        pairs = dict(part.split("=", 1) for part in challenge.decode().split(","))
        assert pairs["r"].startswith(self.nonce)
        salted = hashlib.pbkdf2_hmac(self.hash, self.password, base64.b64decode(pairs["s"]), int(pairs["i"]))
        binding = base64.b64encode(self.gs2.encode()).decode()
        without_proof = f"c={binding},r={pairs['r']}"
        message = f"{self.bare},{challenge.decode()},{without_proof}".encode()
        key = hmac.digest(salted, b"Client Key", self.hash)
        signature = hmac.digest(hashlib.new(self.hash, key).digest(), message, self.hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.signature = hmac.digest(hmac.digest(salted, b"Server Key", self.hash), message, self.hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def run(client: Client, mechanism: str, keys: ScramKeys) -> tuple[str, bytes]:
    server = ScramServer(mechanism)
    server.first(client.first())
    final = server.final(client.final(server.challenge(keys, "xyz")))
    assert final == b"v=" + base64.b64encode(client.signature)
    return server.user, final


# --- SCRAM --------------------------------------------------------------------------------------------


def test_exchange_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server = ScramServer("SCRAM-SHA-256")
    assert server.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == "user"
    challenge = server.challenge(
        derive("pencil", salt, 4096, "sha256"), nonce.removeprefix("rOprNGfwEbeRWgbNEkqO")
    )
    assert challenge == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = server.final(f"c=biws,r={nonce},p={proof}".encode())
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.user == "user"


@pytest.mark.parametrize("mechanism", MECHANISM_HASHES)
@pytest.mark.parametrize("gs2", ["n,,", "y,,", "n,a=user,", "y,a=user,"])
def test_exchange(mechanism: str, gs2: str) -> None:
    keys = KEYS[MECHANISM_HASHES[mechanism]]
    assert run(Client(mechanism, "user", "pencil", gs2), mechanism, keys)[0] == "user"
    with pytest.raises(SaslError, match="proof"):
        run(Client(mechanism, "user", "Pencil", gs2), mechanism, keys)


def test_names_are_unescaped_and_prepared() -> None:
    server = ScramServer("SCRAM-SHA-256")
    assert server.first("n,,n=a=2Cb=3D\u2168,r=1".encode()) == "a,b=IX"
    client = Client("SCRAM-SHA-256", "a=2Cb", "pencil", "n,a=a=2Cb,")
    assert run(client, "SCRAM-SHA-256", KEYS["sha256"])[0] == "a,b"


def test_extensions_that_are_not_mandatory_are_let_through() -> None:
    assert ScramServer("SCRAM-SHA-256").first(b"n,,n=user,r=abc,x=new") == "user"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"", "GS2 header"),
        (b"n,,", "n= and r="),
        (b"n,,n=user", "n= and r="),
        (b"n,,r=abc,n=user", "attribute n="),
        (b"n,,n=user,x=abc", "attribute r="),
        (b"n,,n=user,r=", "nonce"),
        (b"n,,n=user,r=a b", "nonce"),
        (b"n,,n=,r=abc", "empty"),
        (b"n,,n=us=er,r=abc", "=2C or =3D"),
        (b"n,,n=us=2cer,r=abc", "=2C or =3D"),
        (b"n,,n=us\x07er,r=abc", "control"),
        (b"n,,n=\xff,r=abc", "UTF-8"),
        (b"n,,m=ext,n=user,r=abc", "mandatory extension"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"x,,n=user,r=abc", "n or y"),
        (b"n,a=other,n=user,r=abc", "authorization"),
        (b"n,other,n=user,r=abc", "attribute a="),
        (b"n,,n=" + b"u" * MESSAGE_BYTES_MAX + b",r=abc", "at most"),
    ],
)
def test_client_first_refused(message: bytes, expected: str) -> None:
    with pytest.raises(SaslError, match=expected):
        ScramServer("SCRAM-SHA-256").first(message)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"", "c=, r= and p="),
        (b"c=biws,r=abcxyz", "c=, r= and p="),
        (b"c=biws,p=YQ==", "c=, r= and p="),
        (b"c=eSws,r=abcxyz,p=YQ==", "channel binding header"),
        (b"c=!,r=abcxyz,p=YQ==", "base64"),
        (b"c=biws,r=abc,p=YQ==", "nonce of server"),
        (b"c=biws,r=abcxyzz,p=YQ==", "nonce of server"),
        (b"r=abcxyz,c=biws,p=YQ==", "attribute c="),
        (b"c=biws,r=abcxyz,m=ext,p=YQ==", "mandatory extension"),
        (b"c=biws,r=abcxyz,p=YQ==", "proof of 32 bytes"),
        (b"c=biws,r=abcxyz,p=", "proof of 32 bytes"),
        ("c=biws,r=abcxyz,p=é".encode(), "base64"),
        (b"c=biws,r=abcxyz,p=" + base64.b64encode(bytes(32)), "proof of the user"),
        (b"c=biws,r=abcxyz,p=" + base64.b64encode(bytes(33)), "proof of 32 bytes"),
        (b"\xff", "UTF-8"),
    ],
)
def test_client_final_refused(message: bytes, expected: str) -> None:
    server = ScramServer("SCRAM-SHA-256")
    server.first(b"n,,n=user,r=abc")
    server.challenge(KEYS["sha256"], "xyz")
    with pytest.raises(SaslError, match=expected):
        server.final(message)
    with pytest.raises(SaslError, match="expected nothing more"):
        server.final(message)


def test_calls_out_of_order() -> None:
    server = ScramServer("SCRAM-SHA-256")
    with pytest.raises(SaslError, match="expected client-first-message"):
        server.final(b"c=biws,r=abcxyz,p=YQ==")
    server.first(b"n,,n=user,r=abc")
    with pytest.raises(SaslError, match="expected server-first-message"):
        server.first(b"n,,n=user,r=abc")


def test_a_challenge_needs_keys_and_nonce_that_fit() -> None:
    for keys, nonce in ((KEYS["sha512"], "xyz"), (KEYS["sha256"], ""), (KEYS["sha256"], "x,z")):
        server = ScramServer("SCRAM-SHA-256")
        server.first(b"n,,n=user,r=abc")
        with pytest.raises(SaslError):
            server.challenge(keys, nonce)


@settings(max_examples=300)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_garbage(first: bytes, final: bytes) -> None:
    for message in (first, b"n,," + first, b"n,,n=user,r=" + first):
        with contextlib.suppress(SaslError):
            ScramServer("SCRAM-SHA-256").first(message)
    for message in (final, b"c=biws,r=abcxyz,p=" + final, b"c=" + final + b",r=abcxyz,p=AA=="):
        server = ScramServer("SCRAM-SHA-256")
        server.first(b"n,,n=user,r=abc")
        server.challenge(KEYS["sha256"], "xyz")
        with pytest.raises(SaslError):
            server.final(message)
    with contextlib.suppress(SaslError):
        parse_plain(first)


# --- users that do not exist --------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISM_HASHES)
def test_unknown_users_look_like_wrong_passwords(mechanism: str) -> None:
    keys = unknown_user_keys(b"secret", "nobody", mechanism, FEW)
    assert keys == unknown_user_keys(b"secret", "nobody", mechanism, FEW)
    assert len(keys.salt) == SALT_BYTES
    assert keys.hash == MECHANISM_HASHES[mechanism]
    assert keys.salt != unknown_user_keys(b"secret", "no1", mechanism, FEW).salt
    assert keys.salt != unknown_user_keys(b"other", "nobody", mechanism, FEW).salt
    with pytest.raises(SaslError, match="proof"):
        run(Client(mechanism, "nobody", "pencil"), mechanism, keys)
    assert not verify_plain(keys, "pencil")


def test_keys_do_not_show_in_text() -> None:
    assert repr(KEYS["sha256"]) == "ScramKeys(salt=b'salt of 16 bytes', iterations=4096)"


# --- PLAIN --------------------------------------------------------------------------------------------


def test_plain() -> None:
    assert parse_plain(b"\0tim\0tanstaaftanstaaf") == ("tim", "tanstaaftanstaaf")
    assert parse_plain(b"tim\0tim\0x") == ("tim", "x")
    assert parse_plain("\0Ⅸ\0päss".encode()) == ("IX", "päss")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (b"", "two NUL"),
        (b"tim\0x", "two NUL"),
        (b"\0tim\0x\0", "two NUL"),
        (b"\0\0x", "empty"),
        (b"\0tim\0", "a password"),
        (b"Ursel\0Kurt\0xipj3plmq", "authorization"),
        (b"\0tim\0\xff", "UTF-8"),
        (b"\0tim\0" + b"x" * MESSAGE_BYTES_MAX, "at most"),
    ],
)
def test_plain_refused(response: bytes, expected: str) -> None:
    with pytest.raises(SaslError, match=expected):
        parse_plain(response)


@pytest.mark.parametrize("hash", KEYS)
def test_verify_plain(hash: str) -> None:
    assert KEYS[hash].hash == hash
    assert verify_plain(KEYS[hash], "pencil")
    assert verify_plain(KEYS[hash], "pen\u00adcil")
    assert not verify_plain(KEYS[hash], "pencil ")
    assert not verify_plain(KEYS[hash], "")
    assert not verify_plain(KEYS[hash], "\x00")
    assert not verify_plain(KEYS[hash], "\ud800")


# --- SASLprep: the examples of RFC 4013 section 3 -----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
    ],
)
def test_prepare(text: str, prepared: str) -> None:
    assert prepare(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "", "\u00ad", "\ud800", "\ue000", "a\u0627"])
def test_prepare_refuses(text: str) -> None:
    with pytest.raises(SaslError):
        prepare(text)


def test_right_to_left_text_is_prepared() -> None:
    assert prepare("\u0627\u0031\u0628") == "\u0627\u0031\u0628"

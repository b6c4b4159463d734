"""The wire's key: its file, and that nobody gets in without it."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
import zmq

from lightrail.wire.control import ControlClient, ControlDownError, ControlServer
from lightrail.wire.sockets import keys
from lightrail.wire.sockets.keys import WireKey, WireKeyError
from lightrail.wire.sockets.wiring import Wiring

WAIT_MS = 300


def made(path: Path) -> WireKey:
    keys.write(str(path))
    key = keys.read(str(path))
    assert key is not None
    return key


def test_a_key_is_its_owners_alone_and_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "wire.key"
    key = made(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key.secret.decode() not in repr(key)
    with pytest.raises(WireKeyError, match="exists already"):
        keys.write(str(path))
    assert keys.read(str(path)) == key
    assert keys.read(None) is None


def test_the_secret_half_alone_is_a_key(tmp_path: Path) -> None:
    """Who can draw random bytes and no more, such as a Helm chart, makes such a file."""
    whole = made(tmp_path / "whole")
    (tmp_path / "half").write_text(f"{keys.HEAD}\n{whole.secret.decode()}\n")
    assert keys.read(str(tmp_path / "half")) == whole
    (tmp_path / "half").write_text(f"{keys.HEAD}\nshort\n")
    with pytest.raises(WireKeyError, match="is damaged"):
        keys.read(str(tmp_path / "half"))


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wire.key"
    with pytest.raises(WireKeyError, match="can't be read: No such file"):
        keys.read(str(path))
    with pytest.raises(WireKeyError, match="can't be created"):
        keys.write(str(tmp_path / "absent" / "wire.key"))
    for text in ("", "a key", "lightrail-wire-key 2\nA\nB\n"):
        path.write_text(text)
        with pytest.raises(WireKeyError, match="is no wire key"):
            keys.read(str(path))
    other = made(tmp_path / "other")
    mine = made(tmp_path / "mine")
    for secret in (other.secret.decode(), "short", "é" * 20):
        path.write_text(f"{keys.HEAD}\n{mine.public.decode()}\n{secret}\n")
        with pytest.raises(WireKeyError, match="is damaged"):
            keys.read(str(path))


def asked(server_key: WireKey | None, client_key: WireKey | None) -> Any:
    """What a client with one key hears from a server with another."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        ours, theirs = Wiring(loop, server_key), Wiring(loop, client_key)
        server = ControlServer(ours, "tcp://127.0.0.1:0", {"twice": lambda f: {"n": 2 * f["n"]}})
        client = ControlClient(loop, theirs, server.address)
        try:
            return await client.request(
                "twice", {"n": 21}, wait_ms=WAIT_MS if server_key != client_key else 5_000
            )
        finally:
            client.close()
            server.close()
            theirs.close()
            ours.close()

    return asyncio.run(run())


def test_who_has_the_key_is_served(tmp_path: Path) -> None:
    key = made(tmp_path / "wire.key")
    assert asked(key, key) == {"n": 42}
    assert asked(None, None) == {"n": 42}


def test_a_stranger_hears_nothing(tmp_path: Path) -> None:
    key, other = made(tmp_path / "wire.key"), made(tmp_path / "other.key")
    for shown in (None, other, WireKey(key.public, other.secret), WireKey(other.public, other.secret)):
        with pytest.raises(ControlDownError, match="no answer"):
            asked(key, shown)


def test_who_knows_the_public_half_alone_is_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a client gets through the encryption with a key of its own; what it shows is another one."""
    key, other = made(tmp_path / "wire.key"), made(tmp_path / "other.key")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = Wiring(loop, key), Wiring(loop, other)
        theirs._zeromq().setsockopt(zmq.CURVE_SERVERKEY, key.public)
        server = ControlServer(ours, "tcp://127.0.0.1:0", {"any": lambda _: {}})
        client = ControlClient(loop, theirs, server.address)
        try:
            async with asyncio.timeout(20):
                while not ours.counts.zeromq.refused:  # noqa: ASYNC110 - ZeroMQ checks the key in its own thread
                    await asyncio.sleep(0.01)
            with pytest.raises(ControlDownError, match="no answer"):
                await client.request("any", {}, wait_ms=WAIT_MS)
        finally:
            client.close()
            server.close()
            theirs.close()
            ours.close()

    asyncio.run(run())
    assert "127.0.0.1 has shown another wire key and is refused (1 so far)" in caplog.text
    assert key.secret.decode() not in caplog.text

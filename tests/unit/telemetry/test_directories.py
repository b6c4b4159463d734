"""Directories: private, and short enough for sockets."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from lightrail.telemetry.directories import (
    LONGEST_SOCKET,
    SOCKET_PATH_BYTES_MAX,
    DirectoryRefusedError,
    make_data_directory,
    socket_directory,
)


def test_a_short_path_keeps_its_sockets(tmp_path: Path) -> None:
    data = str(tmp_path)
    assert socket_directory(data) == os.path.join(data, "run")
    assert stat.S_IMODE(os.stat(socket_directory(data)).st_mode) == 0o700


def test_a_long_path_gets_a_short_private_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of its own, since the path that pytest gives may be too long for a socket by itself.
    with tempfile.TemporaryDirectory(prefix="lr-") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        data = tmp_path / ("d" * 100)
        data.mkdir()
        found = socket_directory(str(data))
        assert found.startswith(short)
        assert len(found + LONGEST_SOCKET) <= SOCKET_PATH_BYTES_MAX
        assert stat.S_IMODE(os.stat(found).st_mode) == 0o700
        assert socket_directory(str(data)) == found, "processes that start apart find each other"
        os.chmod(found, 0o755)
        with pytest.raises(DirectoryRefusedError, match="remove it"):
            socket_directory(str(data))
        os.rmdir(found)
        os.symlink(short, found)
        with pytest.raises(DirectoryRefusedError, match="remove it"):
            socket_directory(str(data))


def test_the_data_directory_is_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "data"
    make_data_directory(str(path))
    make_data_directory(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DirectoryRefusedError, match="choose another with --data"):
        make_data_directory(str(file))

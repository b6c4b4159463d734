"""10,000 links on 10 connections take at most 10 kB of the client each, before and after they are used."""

import subprocess
import sys

BYTES_PER_LINK_MAX = 10_000


def test_ten_thousand_links_take_ten_kilobytes_each_at_most() -> None:
    command = [sys.executable, "-m", "tests.support.amqp.engine_broker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        port = broker.stdout.readline().decode().strip()
        client = [sys.executable, "-m", "tests.unit.client.link_memory", port, "10", "10000"]
        found = subprocess.run(client, capture_output=True, text=True, timeout=100)
        broker.stdin.close()
    assert found.returncode == 0, found.stderr
    attached, used = map(int, found.stdout.split())
    print(f"bytes of a link: {attached} attached, {used} after a message")
    assert attached <= BYTES_PER_LINK_MAX
    assert used <= BYTES_PER_LINK_MAX

"""RabbitMQ as Debian packages it, with its AMQP 1.0 plugin: a node of its own on loopback."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lightrail.bench.engine import Connection, PeerError
from lightrail.bench.plan import parse_url
from tests.support.ports import free_ports

SERVER: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""The script that Debian's own wrapper calls; the wrapper insists on root or the user rabbitmq."""
CONTROL: Final = "/usr/lib/rabbitmq/bin/rabbitmqctl"
PACKAGE: Final = "rabbitmq-server"
START_TIME_S: Final = 90.0
LOOK_S: Final = 0.1


def _resource(queue: str) -> str:
    """The name of a queue, as RabbitMQ's own functions have it."""
    return f'rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)'


class RabbitMQ:
    """A node with ports of its own; it is gone when the block ends.

    Args:
        directory: for everything that it writes; it exists.
        beside: a node whose mapper of names it uses, and whose cluster it can join.
    """

    def __init__(self, directory: str | Path, beside: "RabbitMQ | None" = None) -> None:
        self.directory = Path(directory)
        self.port, distribution, self._mapper = free_ports(3)
        if beside is not None:
            self._mapper = beside._mapper
        cookie = self.directory / ".erlang.cookie"
        cookie.write_text("lightrail")
        cookie.chmod(0o400)
        (self.directory / "plugins").write_text("[rabbitmq_amqp1_0].\n")
        home = str(self.directory)
        self.node: Final = f"lightrail{self.port}@localhost"
        self._environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": home,
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_LOGS": f"{home}/log/node.log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{home}/none",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._mapper),
        }
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process whose CPU time and children's is the broker's."""
        return self.process.pid

    def version(self) -> str:
        """As the package manager has it."""
        query = ["dpkg-query", "-W", "-f", "${Version}", PACKAGE]
        return subprocess.run(query, capture_output=True, text=True).stdout.strip() or "of unknown version"

    def start(self) -> None:
        """Returns when it serves AMQP 1.0. Raises TimeoutError with what it printed."""
        with open(self.directory / "output", "wb") as output:
            self.process = subprocess.Popen(
                [SERVER],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environ,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIME_S
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                printed = (self.directory / "output").read_text(errors="replace")[-500:]
                self.stop()
                raise TimeoutError(f"RabbitMQ did not serve within {START_TIME_S:g} s: {printed}")
            time.sleep(LOOK_S)

    def declare(self, queue: str, dead_letters: str | None = None, kind: str = "classic") -> None:
        """Makes a queue that survives a restart, at `/amq/queue/NAME`; those at `/queue/NAME` do not.

        Args:
            dead_letters: the queue, made before, for what is rejected.
            kind: quorum: with a member on each node of the cluster.
        """
        texts = {"x-queue-type": kind}
        if dead_letters:
            texts |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_letters}
        arguments = ", ".join(f'{{<<"{name}">>, longstr, <<"{text}">>}}' for name, text in texts.items())
        declare = (
            f'rabbit_amqqueue:declare({_resource(queue)}, true, false, [{arguments}], none, <<"tests">>)'
        )
        # After a kill a queue was missing once: its definition shall be in its table, and not only in a log.
        answer = self._control("eval", f"Answer = {declare}, dumped = mnesia:dump_log(), Answer.")
        assert "{new," in answer, answer

    def leader(self, queue: str) -> str:
        """The node whose member leads the others of a quorum queue."""
        queue_of = f"{{ok, Queue}} = rabbit_amqqueue:lookup({_resource(queue)})"
        found = f"{queue_of}, {{_, Node}} = amqqueue:get_pid(Queue), Node."
        return self._control("eval", found).strip().strip("'")

    def join(self, other: "RabbitMQ") -> None:
        """Becomes a node of the cluster of another one, without what it had."""
        for words in (("stop_app",), ("join_cluster", other.node), ("start_app",)):
            self._control(*words)

    def delete(self, queue: str) -> None:
        """Deletes a queue, with what is in it and used by whomever."""
        self._control("delete_queue", queue)

    def _control(self, *words: str) -> str:
        """What rabbitmqctl prints; an AssertionError where it fails."""
        command = [CONTROL, "--quiet", "--node", self.node, *words]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def kill(self) -> None:
        """kill -9 of all its processes but the mapper of names, whose port the next start needs."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._end_mapper()

    def stop(self) -> None:
        """Ends the node in order, then what it started: the session is its own."""
        for number, time_s in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(time_s)
                break
        self._end_mapper()

    def _end_mapper(self) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["epmd", "-kill"], env=self._environ, capture_output=True, timeout=10)

    def _serves(self) -> bool:
        try:
            Connection(parse_url(f"{self.url}//queue/is-it-up"), "is-it-up").close()
        except PeerError:
            return False
        return True

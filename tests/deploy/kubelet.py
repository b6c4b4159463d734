"""Pods of the chart as processes of this machine: each has a loopback address, files, variables and probes.

Names of the cluster become addresses, mounted paths become directories, and the wildcard address becomes the
pod's own; all else, above all the variables, arguments and ports, is what the chart says.
"""

import base64
import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Self

from tests.support import wait
from tests.support.broker import ROOT
from tests.support.deploy import helm
from tests.support.deploy.etcd import PROGRAM as ETCD
from tests.support.deploy.helm import Manifest

RUN_S_MAX: Final = 60
START_S_MAX: Final = 60


class Container:
    """One container that runs: started anew when it ends, as in a pod."""

    def __init__(self, command: list[str], environ: dict[str, str], log: IO[bytes]) -> None:
        self.command = command
        self.environ = environ
        self.log = log
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        """Starts it where it does not run."""
        if self.process is None or self.process.poll() is not None:
            self.starts += 1
            self.process = subprocess.Popen(
                self.command, env=self.environ, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
            )

    def end(self, grace_s: float) -> int:
        """SIGTERM, and SIGKILL after the grace; its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(grace_s)
        finally:
            self.process.kill()
            self.process.wait()


class Pod:
    """A pod by its name, on an address of its own."""

    def __init__(self, node: "Node", name: str, address: str, template: Manifest, volumes: Path) -> None:
        self.node = node
        self.name = name
        self.address = address
        self.labels: dict[str, str] = template["metadata"]["labels"]
        self.spec: Manifest = template["spec"]
        self.volumes = volumes
        self.running: Container | None = None

    def environ(self, container: Manifest) -> dict[str, str]:
        """The variables of a container."""
        found = {
            "PATH": f"{self.node.programs}:{os.defpath}",
            "PYTHONPATH": str(ROOT),
            "HOME": "/nonexistent",
        }
        fields = {
            "metadata.name": self.name,
            "status.podIP": self.address,
            "metadata.labels['apps.kubernetes.io/pod-index']": self.name.rpartition("-")[2],
            "metadata.labels['topology.kubernetes.io/zone']": "",
        }
        for each in container.get("env", ()):
            if "value" in each:
                found[each["name"]] = self.here(container, each["value"], found)
            else:
                found[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        return found

    def here(self, container: Manifest, text: str, environ: dict[str, str]) -> str:
        """A text of the pod's world in this machine's words."""
        text = re.sub(r"\$\((\w+)\)", lambda found: environ.get(found[1], found[0]), text)
        text = self.node.resolved(text).replace("0.0.0.0", self.address)
        for mount in sorted(container["volumeMounts"], key=lambda each: -len(each["mountPath"])):
            if mount["mountPath"] != "/tmp":
                text = text.replace(mount["mountPath"], str(self.volumes / mount["name"]))
        return text

    def container(self, name: str | None = None) -> Container:
        """A container, not yet started; without a name the only one."""
        (chosen,) = [each for each in helm.containers({"spec": self.spec}) if name in (None, each["name"])]
        environ = self.environ(chosen)
        words = [self.here(chosen, word, environ) for word in (*chosen["command"], *chosen.get("args", ()))]
        return Container(words, environ, self.node.log)

    def start(self) -> None:
        """Its one container, which is kept running."""
        self.running = self.container()
        self.running.keep_running()

    def succeeds(self, name: str | None = None) -> None:
        """Runs a container to its end, again when it fails: restartPolicy OnFailure."""
        found = self.container(name)
        until = time.monotonic() + RUN_S_MAX
        while True:
            done = subprocess.run(
                found.command, env=found.environ, capture_output=True, text=True, timeout=RUN_S_MAX
            )
            if done.returncode == 0 or time.monotonic() > until:
                break
            self.node.keep_running()
        assert done.returncode == 0, f"{self.name}: {done.stdout}{done.stderr}"

    def probe(self, which: str) -> int:
        """The status that a probe gets, 0 for none."""
        (container,) = self.spec["containers"]
        asked = container[which]["httpGet"]
        (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == asked["port"]]
        return self.get(port, asked["path"])

    def get(self, port: int, path: str) -> int:
        """The status of a GET, 0 where nobody answers."""
        connection = http.client.HTTPConnection(self.address, port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


class Node:
    """All pods of one rendering; `pods` by their names."""

    def __init__(self, directory: Path, network: str) -> None:
        self.directory = directory
        self.network = network
        self.log = open(directory / "log", "ab")  # noqa: SIM115 - closed by close()
        self.pods: dict[str, Pod] = {}
        self._addresses = 0
        """Of pods that were made, which keep theirs when others end."""
        self.services: dict[str, Manifest] = {}
        self.programs = directory / "bin"
        self.programs.mkdir()
        for name, words in (
            ("python", f'"{sys.executable}"'),
            ("lightrail", f'"{sys.executable}" -m lightrail.cli.main'),
            ("lightrail-admin", f'"{sys.executable}" -m lightrail.cli.admin'),
            ("etcd", f'"{ETCD}"'),
        ):
            (self.programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (self.programs / name).chmod(0o755)

    def apply(self, manifests: list[Manifest]) -> None:
        """Makes pods of what is rendered, without starting them; those that are there stay."""
        self.services = helm.of_kind(manifests, "Service")
        for each in manifests:
            if each["kind"] not in ("Deployment", "StatefulSet", "Job", "Pod"):
                continue
            template = each if each["kind"] == "Pod" else each["spec"]["template"]
            for number in range(each["spec"].get("replicas", 1)):
                name = f"{each['metadata']['name']}-{number}"
                if name not in self.pods:
                    self._addresses += 1
                    address = f"{self.network}.{self._addresses}"
                    self.pods[name] = Pod(
                        self, name, address, template, self._volumes(name, template, manifests)
                    )

    def _volumes(self, pod: str, template: Manifest, manifests: list[Manifest]) -> Path:
        folder = self.directory / pod
        (folder / "data").mkdir(parents=True, exist_ok=True)
        for volume in template["spec"]["volumes"]:
            (folder / volume["name"]).mkdir(exist_ok=True)
            contents: dict[str, bytes] = {}
            if "configMap" in volume:
                found = helm.of_kind(manifests, "ConfigMap")[volume["configMap"]["name"]]["data"]
                contents = {key: value.encode() for key, value in found.items()}
            elif "secret" in volume:
                found = helm.of_kind(manifests, "Secret")[volume["secret"]["secretName"]]["data"]
                items = volume["secret"].get("items") or [{"key": key, "path": key} for key in found]
                contents = {each["path"]: base64.b64decode(found[each["key"]]) for each in items}
            for key, content in contents.items():
                (folder / volume["name"] / key).write_bytes(content)
        return folder

    def resolved(self, text: str) -> str:
        """With addresses for names of the cluster: a pod's own, or that of the first pod of a Service."""
        for name, service in sorted(self.services.items(), key=lambda each: -len(each[0])):
            behind = [
                pod for pod in self.pods.values() if service["spec"]["selector"].items() <= pod.labels.items()
            ]
            for pod in behind:
                text = text.replace(f"{pod.name}.{name}.ns.svc", pod.address)
            if behind:
                text = text.replace(f"{name}.ns.svc", behind[0].address)
        return text

    def of(self, component: str) -> list[Pod]:
        """The pods of a component."""
        return [pod for pod in self.pods.values() if pod.labels["app.kubernetes.io/component"] == component]

    def keep_running(self) -> None:
        """Starts again what has ended."""
        for pod in self.pods.values():
            if pod.running is not None:
                pod.running.keep_running()

    def until_ready(self, *components: str) -> None:
        """Until all pods of these components are ready; fails at the deadline with the log."""

        def ready() -> bool:
            self.keep_running()
            return all(pod.probe("readinessProbe") == 200 for each in components for pod in self.of(each))

        try:
            wait.until(ready, "pods are ready", START_S_MAX)
        except AssertionError:
            raise AssertionError(f"not ready:\n{(self.directory / 'log').read_text()[-8000:]}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods.values():
            if pod.running is not None and pod.running.process is not None:
                pod.running.process.kill()
                pod.running.process.wait()
        self.log.close()


@contextlib.contextmanager
def node(directory: Path) -> Iterator[Node]:
    """A node whose addresses no other test of this machine has: 127.x.y.*, from our process number."""
    high, low = divmod(os.getpid() % 50_000, 200)
    with Node(directory, f"127.{high + 2}.{low + 2}") as made:
        yield made

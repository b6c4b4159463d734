"""Images under the names that Dockerfile and docker-compose.yml expect, made of Debian packages.

Registries of images can't be reached by tests. So the base of the Dockerfile is a debootstrap with Python,
and what others make (etcd, HAProxy, Prometheus) is the same with Debian's packages. Grafana is no Debian
package.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.deploy.docker import Engine

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
MIRROR_DEFAULT = "http://deb.debian.org/debian"
PYTHON = "python:3.11-slim-bookworm"
PYTHON_PACKAGES = "ca-certificates,python3,python3-venv,python3-dev"
SERVED = ("etcd", "proxy", "prometheus")
SERVERS = ("etcd-server", "etcd-client", "haproxy", "prometheus", "wget")
RECIPE = "lightrail.recipe"
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "timeout")


def make_python(engine: Engine, scratch: Path) -> None:
    """The image that the Dockerfile begins with; it reaches packages in the way that this machine does."""
    files = {
        AUTHORITIES: Path("/", AUTHORITIES).read_text(),
        "etc/pip.conf": _pip_configuration(engine),
        "etc/apt/apt.conf.d/99host": _apt_configuration(engine),
    }
    recipe = _hash(PYTHON_PACKAGES, *files.values())
    if engine.label(PYTHON, RECIPE) == recipe:
        return
    root = scratch / "root"
    engine.run(
        "debootstrap", "--variant=minbase", f"--include={PYTHON_PACKAGES}", SUITE, str(root), _mirror(engine),
        time_s=600,
    )  # fmt: skip
    try:
        for path, content in files.items():
            (root / path).write_text(content)
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        for deb in (root / "var/cache/apt/archives").glob("*.deb"):
            deb.unlink()
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(
                ["docker", "import", "--change", f"LABEL {RECIPE}={recipe}", "-", PYTHON],
                stdin=tar.stdout, stdout=subprocess.DEVNULL, check=True, env=engine.environ,
            )  # fmt: skip
        assert tar.returncode == 0
    finally:
        shutil.rmtree(root, ignore_errors=True)


def make_servers(engine: Engine) -> None:
    """One image with all servers, under the name of each that docker-compose.yml has from a registry."""
    names = [service["image"] for name, service in described().items() if name in SERVED]
    text = (
        f"FROM {PYTHON}\n"
        "RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
        f"{' '.join(SERVERS)} && rm -rf /var/lib/apt/lists/*\n"
    )
    recipe = _hash(engine.label(PYTHON, RECIPE), text)
    if any(engine.label(name, RECIPE) != recipe for name in names):
        tags = [word for name in names for word in ("--tag", name)]
        engine.docker(
            "build",
            "--network=host",
            f"--label={RECIPE}={recipe}",
            *tags,
            "-",
            input=text.encode(),
            time_s=600,
        )


def described() -> dict[str, Any]:
    """The services of docker-compose.yml as they are written there."""
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


def _mirror(engine: Engine) -> str:
    """Where this machine has Debian's packages from."""
    form = "$(CODENAME) $(COMPONENT) $(SITE)"
    targets = engine.run("apt-get", "indextargets", "--format", form, "Created-By: Packages", check=False)
    sites = [line.split()[2] for line in targets.splitlines() if line.startswith(f"{SUITE} main ")]
    return sites[0] if sites else MIRROR_DEFAULT


def _apt_configuration(engine: Engine) -> str:
    lines = engine.run("apt-config", "dump").splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith(("Acquire::http", "Acquire::Check-")))


def _pip_configuration(engine: Engine) -> str:
    lines = engine.run(sys.executable, "-m", "pip", "config", "list").splitlines()
    known = {line.partition("=")[0].rpartition(".")[2]: line.partition("=")[2].strip("'") for line in lines}
    return "[global]\n" + "".join(f"{name} = {known[name]}\n" for name in PIP_OPTIONS if name in known)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

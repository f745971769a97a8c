#!/bin/sh
# Makes a fresh container run tune's agent, and becomes it. Idempotent: a second run finds what the first one made.
#
#   TUNE_HOME        the tune home, on the biggest disk; everything below goes there
#   TUNE_PIP_ARGS    more arguments for pip, such as a mirror
#   TUNE_CPU_WHEELS  where torch without CUDA is to be had, for recipes that need no GPU
#
# Debian and Ubuntu images, root or not. Each step is bounded in time, asks nothing, and says what it does. A failure is
# final after its retries, unless an agent has run here before: the end of the log is uploaded through the addresses in
# signed.json, and the start command ends the instance.
set -u
umask 022
home=${TUNE_HOME:?TUNE_HOME is not set}
cd "$home" || exit 1
log=$home/log/bootstrap.log
lib=$home/env/agent
mkdir -p "$home/log" "$home/env" "$home/cache/tmp"

export LANG=C.UTF-8 LC_ALL=C.UTF-8 PYTHONUTF8=1 PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1
export DEBIAN_FRONTEND=noninteractive PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
export TMPDIR="$home/cache/tmp" PIP_CACHE_DIR="$home/cache/pip" XDG_CACHE_HOME="$home/cache/xdg"
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_TARGET PIP_USER 2>/dev/null

say() {
    printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1" | tee -a "$log"
}

# within SECONDS COMMAND…: its output goes to the log.
within() {
    limit=$1
    shift
    if command -v timeout >/dev/null 2>&1; then
        timeout -k 10 "$limit" "$@" >>"$log" 2>&1 </dev/null
    else
        "$@" >>"$log" 2>&1 </dev/null
    fi
}

# Three tries, because a mirror that hiccups must not cost an instance.
patiently() {
    "$@" && return 0
    for pause in 5 15; do
        say "failed; once more in $pause s"
        sleep "$pause"
        "$@" && return 0
    done
    return 1
}

# upload URL FILE: with curl or Python, whichever is there. The URL is as good as a key: never an argument. What it was
# signed with must be sent, and nothing else: some stores refuse the condition that keeps an end from being overwritten.
upload() {
    case $1 in
    *if-none-match*) only=yes ;;
    *) only='' ;;
    esac
    if command -v curl >/dev/null 2>&1; then
        printf 'url = "%s"\n' "$1" |
            curl -sS -f -m 60 -o /dev/null ${only:+-H "If-None-Match: *"} -T "$2" -K - >>"$log" 2>&1
        return
    fi
    [ -n "${python:-}" ] || return 1
    printf '%s' "$1" | "$python" -c '
import sys, urllib.request
path, only = sys.argv[1:]
head = {"If-None-Match": "*"} if only else {}
body = open(path, "rb").read()
urllib.request.urlopen(urllib.request.Request(sys.stdin.read(), body, head, method="PUT"), timeout=60)
' "$2" "$only" >>"$log" 2>&1
}

# Plain JSON of one line per key, as the launcher writes it.
signed() {
    sed -n "s/^ *\"$1\": \"\(.*\)\",\{0,1\}\$/\1/p" signed.json 2>/dev/null | head -n 1
}

plain() {
    tr -cd '[:print:]\n' | tr '"\\' "''"
}

fail() {
    say "the set-up failed: $1"
    # Where an agent has been at work already, a trainer may live, and what it made is not stored: try again, for ever.
    [ -e state/counters.json ] && exit 1
    tail -c 20000 "$log" >"$TMPDIR/bootstrap.tail"
    url=$(signed log_url)
    [ -z "$url" ] || upload "$url" "$TMPDIR/bootstrap.tail" || say 'its log could not be uploaded'
    url=$(signed exit_url)
    if [ -n "$url" ]; then
        {
            printf '{"attempt": %s, "code": 1, "format": 1, "outcome": "setup_failed", "step": 0, "max_steps": 0,\n' \
                "$(sed -n 's/^ *"attempt": \([0-9]*\),\{0,1\}$/\1/p' agent.json | head -n 1)"
            printf ' "reason": "%s", "tail": [' "$(printf '%s' "$1" | plain)"
            tail -n 20 "$log" | plain | sed -e 's/^/"/' -e 's/$/",/' | tr '\n' ' ' | sed 's/, *$//'
            printf ']}\n'
        } >"$TMPDIR/exit.json"
        upload "$url" "$TMPDIR/exit.json" || say 'its end could not be recorded'
    fi
    printf 'setup_failed: %s\n' "$1" >ended
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for python in "${TUNE_PYTHON:-}" python3 python3.13 python3.12 python3.11 /venv/main/bin/python \
        /opt/conda/bin/python /usr/local/bin/python3 python; do
        [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 && is_new_enough "$python" && return 0
    done
    python=$home/env/python/bin/python
    is_new_enough "$python"
}

from_debian() {
    command -v apt-get >/dev/null 2>&1 || return 1
    root=''
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || return 1
        root='sudo -n'
    fi
    within 300 $root apt-get -o DPkg::Lock::Timeout=120 update
    within 600 $root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y \
        --no-install-recommends "$@"
}

# Where the image's Python is too old for us, one of our own beside it; the image's stays as it is.
get_python() {
    say 'no Python 3.11 or newer here; installing one'
    from_debian python3 python3-pip python3-venv ca-certificates && find_python && return 0
    from_debian python3.11 python3.11-venv && find_python && return 0 # Ubuntu 22.04 has it beside its 3.10
    for old in python3 python; do
        command -v "$old" >/dev/null 2>&1 || continue
        within 300 "$old" -m pip install ${TUNE_PIP_ARGS:-} --target "$home/env/uv" uv &&
            within 600 "$home/env/uv/bin/uv" venv --python 3.12 --seed "$home/env/python" && find_python && return 0
    done
    return 1
}

have_pip() {
    "$python" -m pip --version >/dev/null 2>&1 || within 120 "$python" -m ensurepip --default-pip ||
        from_debian python3-pip || return 1
    "$python" -m pip --version >/dev/null 2>&1
}

# What the image has may be newer than the pins, which are for installing; another major version is another library.
is_satisfied() {
    "$python" - stacks/agent.txt >>"$log" 2>&1 <<'PY'
import re
import sys
from importlib.metadata import PackageNotFoundError, version


def numbers(text):
    return [int(part) for part in re.findall(r"\d+", text)[:3]]


for line in open(sys.argv[1], encoding="utf-8"):
    name, _, pinned = line.split("#")[0].strip().partition("==")
    try:
        if name and not (numbers(pinned) <= numbers(version(name)) < [numbers(pinned)[0] + 1]):
            print(name, version(name), "is not", pinned)
            sys.exit(1)
    except PackageNotFoundError:
        print(name, "is missing")
        sys.exit(1)
PY
}

install_pins() {
    within 600 "$python" -m pip install ${TUNE_PIP_ARGS:-} --quiet --no-deps --only-binary :all: --upgrade \
        --target "$lib.new" -r stacks/agent.txt
}

wheel=$(ls wheel/*.whl 2>/dev/null | head -n 1)
[ -n "$wheel" ] || fail 'the agent itself has not arrived'

say '[1/3] looking for Python'
find_python || get_python || fail 'there is no Python 3.11 or newer, and none could be installed'
stamp=$({ cat "$wheel" stacks/agent.txt && "$python" -VV; } 2>/dev/null | cksum)
if [ "$(cat "$lib/.stamp" 2>/dev/null)" = "$stamp" ]; then
    say '[2/3] the agent is there already'
else
    say "[2/3] setting up the agent with $(command -v "$python")"
    rm -rf "$lib.new"
    mkdir -p "$lib.new"
    if is_satisfied; then
        say 'the image has what it needs'
    else
        have_pip || fail 'pip is missing, and could not be installed'
        patiently install_pins || fail "the agent's packages could not be installed"
    fi
    "$python" -m zipfile -e "$wheel" "$lib.new" >>"$log" 2>&1 || fail 'the agent could not be unpacked'
    printf '%s' "$stamp" >"$lib.new/.stamp"
    rm -rf "$lib"
    mv "$lib.new" "$lib"
fi
say '[3/3] starting the agent'
PYTHONPATH=$lib "$python" -c 'import boto3, orchestrator.agent.__main__' >>"$log" 2>&1 ||
    fail 'the agent does not start with what was installed'
export PYTHONPATH="$lib"
exec "$python" -m orchestrator.agent --home "$home"

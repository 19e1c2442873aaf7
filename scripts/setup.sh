#!/usr/bin/env bash
# Makes the environment .venv in the project folder: the packages of requirements.txt (on a machine
# with an NVIDIA GPU: requirements-gpu.txt) and transformer_mt itself, so that
# `.venv/bin/python -m transformer_mt` works from anywhere. Run again, it does nothing, or mends
# what is broken. The other scripts source this file and call `setup`.

usage='Usage: scripts/setup.sh [--dev]
  --dev   also installs what the tests need (requirements-dev.txt)
From the environment:
  PYTHON=/path/to/python          the Python to use, 3.10 to 3.12 (otherwise it is looked for)
  TRANSFORMER_MT_DEVICE=cpu|gpu   which PaddlePaddle (otherwise gpu where nvidia-smi answers)
  PIP_INDEX_URL, pip.conf, ...    as pip knows them, for a mirror for example'

set -euo pipefail
unset CDPATH # cd would go elsewhere, and print where

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python
stamp=$venv/.setup_stamp # written when all is done: what was installed, and where
log=$venv/setup.log

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$@"
    exit 1
}
wrong_usage() {
    say "$1"
    exit 2
}
show_help() {
    printf '%s\n' "$1"
    exit
}

# ---- What is there, and what is to be done ----

# What is wrong with a Python that is to make .venv, or "ok" and its version. Runs on any Python.
# Paddle cannot be loaded without the two libraries; slim container images lack them.
base_code='
import sys
wrong = []
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    wrong.append("is Python %d.%d.%d" % sys.version_info[:3])
for name in "venv", "ensurepip", "libstdc++.so.6", "libgomp.so.1":
    try:
        if ".so." in name:
            import ctypes
            ctypes.CDLL(name)
        else:
            __import__(name)
    except (ImportError, OSError):
        wrong.append("lacks " + name)
print(", ".join(wrong) or "ok %d.%d" % sys.version_info[:2])
'

# The version of the Python in .venv, and what is missing. Looks for the modules without importing
# them, which would take seconds.
venv_code='
import sys
from importlib.util import find_spec
names = "paddle paddlenlp numpy pydantic yaml sacrebleu safetensors sentencepiece tqdm"
names = names.split() + ["transformer_mt"]
missing = [name for name in names if getattr(find_spec(name), "origin", None) is None]
print("%d.%d" % sys.version_info[:2], *["without", *missing] if missing else [])
'

sum_of() { (cd "$root" && cat "$@" | cksum | tr ' ' '-'); }

# Sets `plan` to what is to be done (ready: nothing; dev: add requirements-dev.txt; update: let pip
# bring .venv to the requirements; make: begin with an empty .venv), and `why`.
look() {
    local have made_for='' made_with='' old_base='' old_dev=none made_in=''
    if [ -f "$stamp" ]; then
        read -r made_for made_with old_base old_dev made_in <"$stamp" || true
    fi
    # A finished .venv keeps its device: on a cluster, not all machines that share it see the GPU.
    device=${TRANSFORMER_MT_DEVICE:-$made_for}
    if [ -z "$device" ]; then
        if nvidia-smi >/dev/null 2>&1; then device=gpu; else device=cpu; fi
    fi
    case $device in
    cpu) list=requirements.txt cost='2 minutes, 2.5 GB' ;;
    gpu) list=requirements-gpu.txt cost='some minutes, 6.5 GB' ;;
    *) wrong_usage "TRANSFORMER_MT_DEVICE is \"$device\": it can be cpu or gpu." ;;
    esac
    if [ "$old_dev" != none ]; then dev=yes; fi # once added, always kept up to date
    version=$made_with base_sum=$(sum_of requirements.txt "$list") dev_sum=none
    if [ "$dev" = yes ]; then
        dev_sum=$(sum_of requirements.txt requirements-dev.txt requirements-ctranslate2.txt)
    fi

    have=$("$python" -I -c "$venv_code" 2>/dev/null) || have='no Python that runs'
    plan=make why=''
    if [ ! -e "$venv" ]; then
        why='there is none'
    elif [ ! -f "$stamp" ]; then
        why='it is not complete'
    elif [ "$made_in" != "$root" ]; then
        why="it was made in $made_in"
    elif [ "$have" != "$made_with" ]; then
        why="it was made with Python $made_with and now has $have"
    elif [ "$made_for" != "$device" ]; then
        why="it was made for the $made_for"
    elif [ -n "${PYTHON-}" ] && pick_python && [ "$version" != "$made_with" ]; then
        why="it was made with Python $made_with"
    elif [ "$base_sum" != "$old_base" ]; then
        plan=update why='the requirements have changed'
    elif [ "$dev_sum" != "$old_dev" ]; then
        plan=dev why='requirements-dev.txt is wanted too'
    else
        plan=ready
    fi
}

# Sets `base` to the Python that makes .venv, and `version`.
pick_python() {
    local name names answer found=''
    names=(python3.12 python3.11 python3.10 python3 python)
    if [ -n "${PYTHON-}" ]; then names=("$PYTHON"); fi
    # Every one on the PATH, because the first may be a pyenv shim that fails when it is run.
    while IFS= read -r base; do
        case $base in '' | "$venv"/*) continue ;; esac
        answer=$("$base" -c "$base_code" 2>/dev/null) || answer='does not run'
        version=${answer#ok }
        if [ "$answer" != "$version" ]; then return; fi
        found="$found"$'\n'"  $base $answer"
    done <<<"$(for name in "${names[@]}"; do type -aP "$name" || true; done)"
    say "No usable Python was found${PYTHON:+ at PYTHON=$PYTHON}. Needed is 3.10, 3.11 or 3.12," \
        "with venv and ensurepip, and the libraries libstdc++ and libgomp.$found"
    say "They can be installed with"
    say "  Debian, Ubuntu:  apt-get install python3 python3-venv libstdc++6 libgomp1" \
        " # or python3.11-venv"
    say "  Fedora, RHEL:    dnf install python3.12 libstdc++ libgomp"
    say "  conda:           conda create -n py312 python=3.12 && conda activate py312"
    die "One that is not on the PATH can be named: PYTHON=/path/to/python bash scripts/setup.sh"
}

# ---- Doing it ----

# In the background, because bash acts on a signal only when the command in the foreground ends; a
# `wait` it leaves at once. Such a command does not get Ctrl-C itself, so `stopped` ends it.
run() {
    "$@" </dev/null >&2 &
    wait "$!"
}
stopped() { # STATUS
    trap '' INT TERM
    kill "$(jobs -p)" 2>/dev/null && wait
    say "Stopped."
    exit "$1"
}

# Python in .venv; only for `run`, because it replaces the shell it runs in. On a terminal it shows
# what it does; otherwise that is only in the log.
# TMPDIR: pip unpacks several hundred MB, for which /tmp is often too small. PIP_USER: a pip.conf
# may say `user = true`, which fails here. PIP_PROGRESS_BAR: a stopped one leaves the terminal
# without a cursor. -I: nothing in PYTHONPATH or the current folder comes before what is in .venv.
venv_python() {
    cd "$root"
    export TMPDIR=$venv/tmp PIP_USER=0 PIP_PROGRESS_BAR=off PIP_DISABLE_PIP_VERSION_CHECK=1
    if [ -t 2 ]; then export PIP_LOG=$log; else exec >>"$log" 2>&1; fi
    exec "$python" -I "$@"
}
pip() { run venv_python -m pip "$@" || failed; }

failed() {
    if [ ! -t 2 ]; then tail -n 12 "$log" >&2 2>/dev/null || true; fi
    say "The installation failed, for the reason above. The log is $log"
    say "Needed are Linux x86-64 with glibc 2.28 or newer, room on the disk (free:" \
        "$(df -Ph "$root" | awk 'NR == 2 { print $4 }')) and a network; with a mirror:" \
        "PIP_INDEX_URL=<URL of the mirror> bash scripts/setup.sh"
    [ "$device" = cpu ] || say "Without the GPU: TRANSFORMER_MT_DEVICE=cpu bash scripts/setup.sh"
    exit 1
}

install() {
    [ -w "$root" ] || die "Cannot write in $root: it is read-only, or someone else's."
    if [ "$plan" = make ]; then
        # To make it anew would delete what the link points to, and perhaps the Python that does it.
        [ ! -L "$venv" ] || die "$venv is a link, and what it points to is not this project's" \
            "finished environment ($why). It is left as it is: remove the link."
        pick_python
        say "Making .venv, because $why: $base ($version), for the $device. It takes about $cost" \
            "(longer where the network is slow)."
        run "$base" -m venv --clear "$venv" || failed
    else
        say "Updating .venv, because $why."
    fi
    { mkdir -p "$venv/tmp" && : >"$log"; } || failed
    if [ "$plan" != dev ]; then
        rm -f "$stamp" # if this is interrupted, the next run begins with an empty .venv
        # The tools first, in the locked versions: jieba and seqeval are built with them.
        pip install -c requirements.txt pip setuptools setuptools-scm
        pip install --no-build-isolation -r "$list" -e .
    fi
    if [ "$dev" = yes ]; then pip install -r requirements-dev.txt; fi
    pip check
    run venv_python -W ignore -c 'import paddle, paddlenlp, transformer_mt' || failed
    rm -rf "$venv/tmp"
    echo "$device $version $base_sum $dev_sum $root" >"$stamp" || failed
}

# Two runs at once would spoil each other's work. The lock is on the project folder itself, so that
# no file is left behind; without flock, or where the file system has no locks, there is none.
lock() {
    command -v flock >/dev/null || return 0
    exec 9<"$root"
    if flock -n 9; then return; fi
    say "Another run is making $venv; waiting for it to finish."
    run flock 9 || true
}

setup() { # [--dev]
    dev=no
    if [ "${1-}" = --dev ]; then dev=yes; fi
    trap 'stopped 130' INT
    trap 'stopped 143' TERM
    look
    if [ "$plan" != ready ]; then
        lock
        look # the other run may have done it
        if [ "$plan" != ready ]; then install; fi
        exec 9<&- # or the training that follows would keep the lock
    fi
}

# Run, and not sourced by another script: do it.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    case $* in
    '' | --dev) setup "$@" ;;
    -h | --help) show_help "$usage" ;;
    *) wrong_usage "$usage" ;;
    esac
    say ".venv is ready (Python $version, $device)."
fi

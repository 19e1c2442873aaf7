#!/usr/bin/env bash
# Makes the environment .venv in the project folder: the packages of requirements.txt (on a machine with
# an NVIDIA GPU: requirements-gpu.txt) and transformer_mt itself, so that
# `.venv/bin/python -m transformer_mt` works from anywhere. Run again, it does nothing, or mends what is
# broken. The other scripts source this file and call `setup`, so nobody has to run it by hand.

setup_usage='Usage: scripts/setup.sh [--dev]
  --dev   also installs what the tests need (requirements-dev.txt)
From the environment:
  PYTHON=/path/to/python              the Python to use, 3.10 to 3.12 (otherwise it is looked for)
  TRANSFORMER_MT_DEVICE=cpu|gpu       which PaddlePaddle (otherwise gpu where nvidia-smi answers)
  TRANSFORMER_MT_SETUP_DRY_RUN=1      only say what would be done
  PIP_INDEX_URL and all of pip.conf   as pip knows them, for a mirror for example'

set -euo pipefail
# CDPATH would make cd print, and go elsewhere; PYTHONHOME would give .venv another Python's library.
unset CDPATH PYTHONHOME

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python
stamp=$venv/.transformer_mt_setup # written when all is done: what was installed, and where
log=$venv/setup.log
child=      # the process that is waited for
working=no  # whether this run is changing .venv
want_dev=no # whether what the tests need is wanted too

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$@"
    exit 1
}

# For the other scripts.
wrong_usage() {
    say "$1"
    exit 2
}
help_of() { # COMMAND USAGE: ours, then the program's own, unless that would first install it
    printf '%s\n' "$2"
    look
    if [ "$plan" != ready ]; then
        echo "The options of the program are shown here once scripts/setup.sh has been run."
        exit 0
    fi
    echo
    exec "$python" -m transformer_mt "$1" --help
}

# ---- Running things ----

# Bash acts on a signal only after the command it runs in the foreground; while it waits for one in the
# background it does so at once. Such a process does not get Ctrl-C itself: stopped() ends it.
run() {
    "$@" </dev/null &
    child=$!
    wait_for_child
}
wait_for_child() {
    local status=0
    wait "$child" || status=$?
    child=
    return "$status"
}
stopped() { # STATUS
    trap '' INT TERM
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    if [ "$working" = yes ]; then
        rm -rf "$venv/.tmp"
        say "Stopped. The next run goes on from here."
    fi
    exit "$1"
}

# Runs a command, its output in the log and, on a terminal, what it is doing on the screen.
progress_lines='^ *(Collecting|Downloading|Processing|Building|Installing|Checking) '
logged() {
    if [ ! -t 2 ]; then
        run "$@" >>"$log" 2>&1
        return
    fi
    "$@" </dev/null >>"$log" 2>&1 &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        printf '\r\033[K  %.76s' "$(grep -E "$progress_lines" "$log" 2>/dev/null | tail -n 1)" >&2
        sleep 0.3
    done
    printf '\r\033[K' >&2
    wait_for_child
}

# .venv's Python; to be called by `run` or `logged` only, because it replaces its shell.
# TMPDIR: pip unpacks several hundred MB, for which /tmp is often too small. PIP_USER: a pip.conf may have
# `user = true`, which fails in a virtual environment. -I: neither PYTHONPATH nor the current folder may
# put other packages before those of .venv.
venv_python() {
    cd "$root"
    export TMPDIR=$venv/.tmp PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
    exec "$python" -I "$@"
}
import_all() {
    export HOME=$venv/.tmp # PaddleNLP makes folders there when it is imported
    venv_python -c "$import_code"
}

# ---- Python code (the first two also run on a Python that is much too old) ----

python_code='
import sys
state = "ok"
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    state = "version"
else:
    try:
        import ensurepip, venv
    except ImportError:
        state = "venv"
print("%s %d.%d.%d" % ((state,) + tuple(sys.version_info[:3])))
'

# Without these two shared libraries Paddle cannot be loaded; slim container images lack them.
library_code='
import ctypes
for name in ("libstdc++.so.6", "libgomp.so.1"):
    try:
        ctypes.CDLL(name)
    except OSError:
        print(name)
'

# What is in .venv: its Python, the folder its transformer_mt is in, and what is missing. Looks for the
# modules without importing them, which would take seconds. A package whose installation was killed may
# lack its RECORD, without which pip can neither mend nor remove it.
venv_code='
import glob, os, sys, sysconfig
from importlib.util import find_spec
names = ("paddle", "paddlenlp", "numpy", "pydantic", "yaml", "sacrebleu", "sentencepiece", "tqdm")
missing = [n for n in names if getattr(find_spec(n), "origin", None) is None]
spec = find_spec("transformer_mt")
where = os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else ""
info = glob.glob(os.path.join(glob.escape(sysconfig.get_path("purelib")), "*.dist-info"))
broken = [d for d in info if not os.path.exists(os.path.join(d, "RECORD"))]
paddle = {os.path.basename(d).split("-")[0] for d in info}
print("%d.%d" % sys.version_info[:2])
print(" ".join(missing))
print(" ".join(os.path.basename(d) for d in broken))
print(" ".join(sorted(paddle & {"paddlepaddle", "paddlepaddle_gpu"})))
print(where)
print("end")  # the shell would drop empty lines at the end
'

import_code='
import numpy, paddle, paddlenlp, pydantic, sacrebleu, sentencepiece, tqdm, yaml
import transformer_mt
paddle.to_tensor([1.0, 2.0]).sum().item()
'

# After the folder was moved, the commands in .venv/bin name the Python of the old place. The form with
# /bin/sh, which pip also uses, allows spaces in the path.
move_code='
import os, sys
old, new = (os.fsencode(a) for a in sys.argv[1:])
folder = os.path.join(new, b"bin")
for name in os.listdir(folder):
    path = os.path.join(folder, name)
    if os.path.islink(path) or not os.path.isfile(path):
        continue
    with open(path, "rb") as f:
        data = f.read(1 << 20)
    if name.lower().startswith(b"activate"):
        fixed = data.replace(old, new)
    elif data.startswith((b"#!" + old, b"#!/bin/sh\n\x27\x27\x27exec\x27 \"" + old)):
        _, _, rest = data.partition(b"\n\x27 \x27\x27\x27\n" if data.startswith(b"#!/bin/sh") else b"\n")
        start = b"#!/bin/sh\n\x27\x27\x27exec\x27 \"%s/bin/python\" \"$0\" \"$@\"\n\x27 \x27\x27\x27\n" % new
        fixed = start + rest
    else:
        continue
    with open(path, "wb") as f:
        f.write(fixed)
'

# ---- What is there, and what is to be done ----

# Sets `plan` to one of
#   ready    nothing to do                    new      there is no .venv
#   afresh   .venv is to be emptied first     install  pip puts right what is missing
#   dev      only requirements-dev.txt        moved    only the paths of the old folder are wrong
# and `why` to the reason.
look() {
    local key value found answer version missing broken paddle where
    stamped=no chosen=no dev_sum='' base_sum='' stamp_python='' stamp_root='' device=''
    if [ -f "$stamp" ]; then
        stamped=yes
        while IFS='=' read -r key value; do
            case $key in
            root) stamp_root=$value ;;
            python) stamp_python=$value ;;
            device) device=$value ;;
            chosen) chosen=$value ;;
            base) base_sum=$value ;;
            dev) dev_sum=$value ;;
            esac
        done <"$stamp"
        # What the tests need is kept when the rest is renewed.
        if [ -n "$dev_sum" ]; then want_dev=yes; fi
    fi
    # A finished environment keeps its device: on a cluster the GPU is often only visible to some of the
    # machines that share it.
    case ${TRANSFORMER_MT_DEVICE-} in
    '') if [ -z "$device" ]; then detect_device; fi ;;
    cpu | gpu)
        if [ -n "$device" ] && [ "$device" != "$TRANSFORMER_MT_DEVICE" ]; then
            base_sum=other-device
        fi
        device=$TRANSFORMER_MT_DEVICE chosen=yes
        ;;
    *) wrong_usage "TRANSFORMER_MT_DEVICE is \"$TRANSFORMER_MT_DEVICE\": it can be cpu or gpu." ;;
    esac
    if [ "$device" = gpu ]; then
        base_file=requirements-gpu.txt paddle_package=paddlepaddle_gpu cost='some minutes, 6 GB' room=6500
    else
        base_file=requirements.txt paddle_package=paddlepaddle cost='about 2 minutes, 1.8 GB' room=2500
    fi
    wanted_base=$(sum_of requirements.txt "$base_file")
    wanted_dev=$(sum_of requirements.txt requirements-dev.txt)

    plan=ready why=''
    if [ ! -e "$venv" ] && [ ! -L "$venv" ]; then
        plan=new
        return
    fi
    if [ ! -d "$venv" ]; then die "$venv is not a folder. Remove it and run this again."; fi
    if ! found=$("$python" -I -c "$venv_code" 2>/dev/null); then
        plan=afresh why="its Python does not run"
        return
    fi
    { read -r version && read -r missing && read -r broken && read -r paddle && read -r where; } <<<"$found"
    case $version in
    3.10 | 3.11 | 3.12) ;;
    *)
        plan=afresh why="it has Python $version"
        return
        ;;
    esac
    if [ -n "${PYTHON-}" ]; then
        answer=$("$PYTHON" -c "$python_code" 2>/dev/null) || answer=''
        answer=${answer#* }
    else
        answer=$version.
    fi
    if [ "${answer%.*}" != "${version}" ]; then
        plan=afresh why="it has Python $version, and PYTHON is $PYTHON"
    elif [ -n "$broken" ]; then
        plan=afresh why="parts of it are broken: $broken"
    elif [ "$base_sum" = other-device ]; then
        plan=afresh why="TRANSFORMER_MT_DEVICE is now $device"
    elif [ -n "$paddle" ] && [ "$paddle" != "$paddle_package" ]; then
        plan=afresh why="it has $paddle in place of $paddle_package"
    elif [ "$stamped" = no ]; then
        plan=install why="it is not complete"
    elif [ "$stamp_python" != "$version" ]; then
        plan=afresh why="its Python was $stamp_python and is now $version"
    elif [ -n "$missing" ]; then
        plan=afresh why="it lacks $missing"
    elif [ "$base_sum" != "$wanted_base" ]; then
        plan=install why="the requirements have changed"
    elif [ "$stamp_root" != "$root" ]; then
        plan=moved why="it was made in $stamp_root"
    elif [ "$where" != "$root" ]; then
        plan=moved why="its transformer_mt is not the one of this folder"
    elif [ "$want_dev" = yes ] && [ "$dev_sum" != "$wanted_dev" ]; then
        plan=dev
    fi
}

sum_of() { (cd "$root" && cat "$@" | cksum | tr ' ' '-'); }
gpu_answers() { command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; }
detect_device() { if gpu_answers; then device=gpu; else device=cpu; fi; }

# Sets `base_python` and `base_version`.
pick_python() {
    local name path answer without='' seen=''
    if [ -n "${PYTHON-}" ]; then
        answer=$("$PYTHON" -c "$python_code" 2>/dev/null) || die "PYTHON is \"$PYTHON\", which does not run."
        base_python=$PYTHON base_version=${answer#* }
        case $answer in
        ok*) return ;;
        venv*)
            say "PYTHON is \"$PYTHON\" ($base_version), which cannot make a virtual environment:" \
                "venv or ensurepip is missing."
            die "  Debian, Ubuntu:  apt-get install python3-venv (or python${base_version%.*}-venv)"
            ;;
        *) die "PYTHON is \"$PYTHON\", which is Python $base_version. Needed is 3.10, 3.11 or 3.12." ;;
        esac
    fi
    for name in python3.12 python3.11 python3.10 python3 python; do
        # Every one on the PATH, because the first may be a pyenv shim that fails when it is run.
        while IFS= read -r path; do
            case $path in '' | "$venv"/*) continue ;; esac
            answer=$("$path" -c "$python_code" 2>/dev/null) || continue
            base_python=$path base_version=${answer#* }
            case $answer in
            ok*) return ;;
            venv*) without="$path ($base_version)" ;;
            version*) seen="$seen $path ($base_version)" ;;
            esac
        done <<<"$(type -aP "$name")"
    done
    if [ -n "$without" ]; then
        say "$without cannot make a virtual environment: venv or ensurepip is missing."
        say "  Debian, Ubuntu:  apt-get install python3-venv (or, for 3.11, python3.11-venv)"
    else
        say "No Python 3.10, 3.11 or 3.12 was found.${seen:+ Found:$seen.}"
        say "  Debian, Ubuntu:  apt-get install python3 python3-venv"
    fi
    say "  Fedora, RHEL:    dnf install python3.12"
    say "  macOS:           brew install python@3.12"
    say "  conda:           conda create -n py312 python=3.12 && conda activate py312"
    die "One that is not on the PATH can be named: PYTHON=/path/to/python3.12"
}

check_libraries() { # PYTHON
    [ "$(uname -s)" = Linux ] || return 0
    local missing
    missing=$("$1" -c "$library_code" 2>/dev/null | tr '\n' ' ') || return 0
    [ -n "$missing" ] || return 0
    say "PaddlePaddle needs shared libraries that are missing here: $missing"
    say "  Debian, Ubuntu:  apt-get install libgomp1 libstdc++6"
    die "  Fedora, RHEL:    dnf install libgomp libstdc++"
}

free_mb() { df -Pk "$root" 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }'; }
check_room() { # MB
    local free
    free=$(free_mb)
    if [ "${free:-$1}" -lt "$1" ]; then
        die "Not enough room in $root: $1 MB are needed, $free MB are free."
    fi
}

# ---- Doing it ----

network_errors='ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|ProtocolError|Download failed'
failed() {
    local last
    last=$(tail -n 8 "$log" 2>/dev/null | sed 's/^/    /') || last=''
    rm -rf "$venv/.tmp"
    say "$1 The last lines of $log:"
    say "$last"
    if grep -qiE 'no space left|quota exceeded' "$log" 2>/dev/null; then
        say "The disk is full. Needed are $room MB in $root; free now: $(free_mb) MB."
    elif grep -qE "$network_errors" "$log" 2>/dev/null; then
        say "The network could not be used. With a mirror:" \
            "PIP_INDEX_URL=<URL of the mirror> bash scripts/setup.sh"
        say "If the disk is the reason: needed are $room MB in $root; free now: $(free_mb) MB."
    else
        say "Needed are Linux x86-64 with glibc 2.28 or newer (Debian 10, Ubuntu 20.04, RHEL 8)," \
            "$room MB in $root (free now: $(free_mb) MB) and a network;" \
            "with a mirror: PIP_INDEX_URL=<URL of the mirror> bash scripts/setup.sh"
    fi
    if [ "$device" = gpu ]; then
        say "PaddlePaddle for the GPU comes from the index that requirements-gpu.txt names." \
            "For the CPU instead: TRANSFORMER_MT_DEVICE=cpu bash scripts/setup.sh"
    fi
    exit 1
}

make_venv() {
    local answer
    answer=$("$base_python" -m venv --clear "$venv" 2>&1) ||
        die "Could not make $venv with $base_python: $answer"
}

# The tools first, in the locked versions, because the next step builds two packages with them.
install_base() {
    logged venv_python -m pip install -c requirements.txt pip setuptools setuptools-scm &&
        logged venv_python -m pip install --no-build-isolation -r "$base_file"
}
install_dev() { logged venv_python -m pip install -r requirements-dev.txt; }
install_self() { logged venv_python -m pip install --no-deps --no-build-isolation -e .; }
check() {
    echo "Checking what was installed" >>"$log"
    logged venv_python -m pip check && logged import_all
}

write_stamp() {
    {
        printf 'root=%s\npython=%s\ndevice=%s\nchosen=%s\n' "$root" "${base_version%.*}" "$device" "$chosen"
        printf 'base=%s\n' "$wanted_base"
        if [ "$want_dev" = yes ]; then printf 'dev=%s\n' "$wanted_dev"; fi
    } >"$stamp.new" && mv "$stamp.new" "$stamp"
}

# Two runs at the same time would spoil each other's work. The lock is on the project folder itself, so
# that no file is left behind. Without flock (macOS), or where the file system has no locks: no lock.
take_turn() {
    command -v flock >/dev/null || return 0
    exec 9<"$root"
    if ! flock -n 9 2>/dev/null; then
        say "Another run is making $venv; waiting for it to finish."
        run flock 9 2>/dev/null || true
    fi
}

do_plan() {
    if [ "$plan" = new ] || [ "$plan" = afresh ]; then
        pick_python
    else
        base_python=$python
        base_version=$("$python" -I -c 'import platform; print(platform.python_version())')
    fi
    local what
    case $device$chosen in
    cpuno) what="CPU (nvidia-smi finds no GPU)" ;;
    gpuno) what="GPU (nvidia-smi finds one)" ;;
    *) what="$device (TRANSFORMER_MT_DEVICE)" ;;
    esac
    case $plan in
    new) say "Making .venv with Python $base_version ($base_python), for the $what." ;;
    afresh) say "Making .venv again, because $why: Python $base_version ($base_python), for the $what." ;;
    install) say "Mending .venv, because $why: Python $base_version, for the $what." ;;
    moved) say "Mending .venv, because $why." ;;
    dev) say "Adding the packages of requirements-dev.txt to .venv." ;;
    esac
    if [ -n "${TRANSFORMER_MT_SETUP_DRY_RUN-}" ]; then
        local files=$base_file
        if [ "$want_dev" = yes ]; then files="$files requirements-dev.txt"; fi
        say "A dry run: plan=$plan python=$base_python device=$device files=$files"
        exit 0
    fi

    if [ ! -w "$root" ] || { [ -d "$venv" ] && [ ! -w "$venv" ]; }; then
        die "Cannot write in $root: it is read-only, or belongs to someone else."
    fi
    check_libraries "$base_python"
    if [ "$plan" = new ]; then check_room "$room"; fi
    working=yes
    if [ "$plan" = new ] || [ "$plan" = afresh ]; then make_venv; fi
    rm -f "$stamp"
    rm -rf "$venv/.tmp"
    if ! { mkdir -p "$venv/.tmp" && : >"$log"; } 2>/dev/null; then
        die "Cannot write in $venv: read-only, or the disk is full."
    fi

    case $plan in
    new | afresh | install)
        say "Installing PaddlePaddle and the rest: $cost (longer where the network is slow)."
        install_base || failed "The installation failed."
        if [ "$want_dev" = yes ]; then install_dev || failed "The installation failed."; fi
        ;;
    dev) install_dev || failed "The installation failed." ;;
    esac
    if [ -n "$stamp_root" ] && [ "$stamp_root" != "$root" ] && [ "$plan" != afresh ]; then
        "$python" -I -c "$move_code" "$stamp_root/.venv" "$venv" ||
            say "Some commands in .venv/bin still name $stamp_root."
    fi
    if [ "$plan" != dev ]; then install_self || failed "transformer_mt could not be installed."; fi
    if ! check; then
        # Files that an earlier, interrupted run left can be broken in ways pip does not see.
        if [ "$plan" = install ] || [ "$plan" = moved ]; then
            say "That was not enough."
            plan=afresh why="it could not be mended"
            do_plan
            return
        fi
        failed "The packages were installed but do not work."
    fi
    rm -rf "$venv/.tmp"
    write_stamp || die "Cannot write $stamp: is the disk full?"
    working=no
    say "Done: .venv is ready."
}

setup() { # [--dev] [--quiet]
    local quiet=no
    want_dev=no
    while [ $# -gt 0 ]; do
        case $1 in
        --dev) want_dev=yes ;;
        --quiet) quiet=yes ;; # nothing is said when nothing is to do
        -h | --help)
            printf '%s\n' "$setup_usage"
            exit 0
            ;;
        *) wrong_usage "$setup_usage" ;;
        esac
        shift
    done
    trap 'stopped 130' INT
    trap 'stopped 143' TERM
    look
    if [ "$plan" != ready ]; then
        if [ -z "${TRANSFORMER_MT_SETUP_DRY_RUN-}" ]; then
            take_turn
            look # the run before may have done it all
        fi
        if [ "$plan" != ready ]; then do_plan; fi
        exec 9<&- # or the training that follows would keep the lock
    elif [ "$quiet" = no ]; then
        say "Nothing to do: .venv is ready (Python $stamp_python, $device)."
    fi
    if [ "$device$chosen" = cpuno ] && gpu_answers; then
        say "There is a GPU here, but .venv was made for the CPU. To change it:" \
            "TRANSFORMER_MT_DEVICE=gpu bash scripts/setup.sh"
    fi
    trap - INT TERM
}

# Run, and not sourced by another script: do it.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then setup "$@"; fi

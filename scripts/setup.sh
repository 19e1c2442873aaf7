#!/usr/bin/env bash
# Makes the environment .venv in the project folder. It installs the packages of requirements.txt
# (of requirements-gpu.txt on a machine with an NVIDIA GPU) and transformer_mt itself, so that
# `.venv/bin/python -m transformer_mt` works from any folder. A second run does nothing, or repairs
# what is broken. The other scripts source this file and call `setup`.
#
# .venv can be a link to an empty folder, for example on a larger disk, or to the environment of
# another copy of this project with the same requirements. That environment is used with the code of
# this folder, and is never changed from here. A .venv that this script did not make is left alone.

usage='Usage: scripts/setup.sh [--dev]
  --dev   also installs what the tests need (requirements-dev.txt)
Environment variables:
  PYTHON=/path/to/python          the Python to use, 3.10 to 3.12 (default: search the PATH)
  TRANSFORMER_MT_DEVICE=cpu|gpu   which PaddlePaddle to install (default: gpu if nvidia-smi works)
  TRANSFORMER_MT_CUDA=cu118|cu126|cu129|cu130
                                  the build of PaddlePaddle to install for the GPU, here for CUDA
                                  11.8, 12.6, 12.9 and 13.0 (default: the newest one that the
                                  driver supports, according to nvidia-smi)
  PIP_INDEX_URL, ...              settings of pip, for example a mirror; pip.conf is read too'

[ "${BASH_VERSION-}" ] || exec bash -- "$0" "$@" # `sh scripts/setup.sh` works too
set -euo pipefail
unset CDPATH # otherwise cd could go to another folder and print its name

# `readlink` follows a link to this file.
root=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python
# Records what was installed, and where. While .venv is being made, it says that it is unfinished.
stamp=$venv/.setup_stamp
log=$venv/setup.log
# PaddlePaddle's builds for NVIDIA GPUs, the newest first. Each is named after its CUDA version. The
# list of packages, requirements-gpu.txt, names the index of the usual one.
cuda_builds='cu130 cu129 cu126 cu118'
usual_cuda=cu126

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

# ---- Finding out what must be done ----

# Prints "ok" and the version of a Python that can make .venv, or what is wrong with it. It runs on
# any Python. Paddle cannot be loaded without the two libraries, which slim container images lack.
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

# Prints the version of the Python in .venv, and the missing modules. It looks for the modules
# without importing them, because imports take seconds.
venv_code='
import sys
from importlib.util import find_spec
names = "paddle paddlenlp numpy pydantic yaml sacrebleu safetensors sentencepiece tqdm"
names = names.split() + ["transformer_mt"]
missing = [name for name in names if getattr(find_spec(name), "origin", None) is None]
print("%d.%d" % sys.version_info[:2], *["without", *missing] if missing else [])
'

sum_of() { (cd "$root" && cat "$@" | cksum | tr ' ' '-'); }

# Sets `plan` to what must be done, and `why` to the reason:
#   ready   nothing
#   dev     add requirements-dev.txt
#   update  let pip install the changed requirements
#   make    start with an empty .venv
#   refuse  nothing either, because somebody else may have made .venv
look() {
    local have made_for='' made_with='' old_base='' old_dev=none
    local asked=${TRANSFORMER_MT_CUDA-}
    made_in='' # the project folder that .venv was made in
    if [ -f "$stamp" ]; then
        read -r made_for made_with old_base old_dev made_in <"$stamp" || true
    fi
    made_cuda='' # the build of PaddlePaddle in .venv
    case $made_for in
    gpu-*) made_cuda=${made_for#gpu-} made_for=gpu ;;
    gpu) made_cuda=$usual_cuda ;; # there was no other build when this was written
    esac
    case $made_for$made_in in
    cpu/* | gpu/* | unfinished/*) ;;
    *) made_for='' made_in='' ;; # damaged
    esac
    # A finished .venv keeps its device, because a machine without a GPU may share it.
    device=${TRANSFORMER_MT_DEVICE:-${made_for#unfinished}}
    if [ -z "$device" ]; then
        if nvidia-smi >/dev/null 2>&1; then device=gpu; else device=cpu; fi
    fi
    case $device in
    cpu) list=requirements.txt cost='2 minutes, 2.5 GB' ;;
    gpu) list=requirements-gpu.txt cost='some minutes, 6.5 GB' ;;
    *) wrong_usage "TRANSFORMER_MT_DEVICE is \"$device\", but it must be cpu or gpu." ;;
    esac
    case " $cuda_builds " in
    *" ${asked:-$usual_cuda} "*) ;;
    *) wrong_usage "TRANSFORMER_MT_CUDA is \"$asked\", but it must be one of $cuda_builds." ;;
    esac
    # A finished .venv keeps its build as well.
    cuda=''
    if [ "$device" = gpu ]; then cuda=${asked:-$made_cuda}; fi
    if [ "$old_dev" != none ]; then dev=yes; fi # once added, it is kept up to date
    version=$made_with base_sum=$(sum_of requirements.txt "$list") dev_sum=none
    if [ "$dev" = yes ]; then dev_sum=$(sum_of requirements-dev.txt); fi

    have=$("$python" -I -c "$venv_code" 2>/dev/null) || have='no Python that runs'
    plan=make why=''
    if [ ! -e "$venv" ] && [ ! -L "$venv" ]; then
        why='there is none'
    elif is_empty "$venv"; then
        why='it is empty'
    elif [ ! -f "$stamp" ]; then
        plan=refuse why='scripts/setup.sh did not make it'
    elif [ -z "$made_in" ]; then
        plan=refuse why="its file ${stamp##*/}, which scripts/setup.sh wrote, is damaged"
    elif [ "$made_for" = unfinished ]; then
        why='it is not complete'
    elif [ "$made_in" != "$root" ] && [ ! -L "$venv" ]; then
        why="it was made in $made_in"
    elif [ "$have" != "$made_with" ]; then
        why="it was made with Python $made_with and now has $have"
    elif [ "$made_for" != "$device" ]; then
        why="it was made for the $made_for"
    elif [ "$device" = gpu ] && [ "$made_cuda" != "$cuda" ]; then
        why="it was made with the build $made_cuda of PaddlePaddle"
    elif [ -n "${PYTHON-}" ] && pick_python && [ "$version" != "$made_with" ]; then
        why="it was made with Python $made_with"
    elif [ "$base_sum" != "$old_base" ]; then
        plan=update why='the requirements have changed'
    elif [ "$dev_sum" != "$old_dev" ]; then
        plan=dev why='requirements-dev.txt is needed too'
    else
        plan=ready
    fi
}

# Tells whether .venv is a link to the environment of another folder of this project.
is_shared() { [ -L "$venv" ] && [ -n "$made_in" ] && [ "$made_in" != "$root" ]; }

is_empty() { # FOLDER
    local content
    [ -d "$1" ] && content=$(ls -A "$1/") && [ -z "$content" ]
}

# Sets `base` to the Python that makes .venv, and `version` to its version.
pick_python() {
    local name names answer found=''
    names=(python3.12 python3.11 python3.10 python3 python)
    if [ -n "${PYTHON-}" ]; then names=("$PYTHON"); fi
    # Try every Python on the PATH, because the first may be a pyenv shim that fails.
    while IFS= read -r base; do
        case $base in '' | "$venv"/*) continue ;; esac
        answer=$("$base" -c "$base_code" 2>/dev/null) || answer='does not run'
        version=${answer#ok }
        if [ "$answer" != "$version" ]; then return; fi
        found="$found"$'\n'"  $base $answer"
    done <<<"$(for name in "${names[@]}"; do type -aP "$name" || true; done)"
    say "No usable Python was found${PYTHON:+ at PYTHON=$PYTHON}. This project needs Python 3.10," \
        "3.11 or 3.12 with venv and ensurepip, and the libraries libstdc++ and libgomp.$found"
    say "Install them with"
    say "  Debian, Ubuntu:  apt-get install python3 python3-venv libstdc++6 libgomp1" \
        " # or python3.11-venv"
    say "  Fedora, RHEL:    dnf install python3.12 libstdc++ libgomp"
    say "  conda:           conda create -n py312 python=3.12 && conda activate py312"
    die "Another Python can be given: PYTHON=/path/to/python bash scripts/setup.sh"
}

# Prints 1206 for "12.6" and for "cu126", so that versions can be compared.
number_of() { # VERSION or BUILD
    case $1 in
    cu*) echo $((${1:2:2} * 100 + ${1:4})) ;;
    *) echo $((10#${1%.*} * 100 + 10#${1#*.})) ;;
    esac
}
version_of() { echo "${1:2:2}.${1:4}"; } # BUILD

# Sets `cuda` to the newest build of PaddlePaddle that the driver and the GPUs of this machine support.
# A driver runs everything that was built for its own CUDA version or for an older one. It runs newer
# minor versions only with limits, so they are not chosen.
pick_cuda() {
    local header driver line build number capability lowest='' highest=''
    if [ -n "${TRANSFORMER_MT_CUDA-}" ]; then return; fi
    header=$(nvidia-smi 2>/dev/null) || header=''
    # Recent drivers write "CUDA UMD Version".
    if ! [[ $header =~ CUDA\ (UMD\ )?Version:\ *([0-9]+\.[0-9]+) ]]; then
        cuda=${made_cuda:-$usual_cuda}
        say "nvidia-smi does not show which CUDA version the driver supports, so the build $cuda of" \
            "PaddlePaddle is installed, for CUDA $(version_of "$cuda"). Another one can be given:" \
            "TRANSFORMER_MT_CUDA=cu118 bash scripts/setup.sh"
        return
    fi
    driver=${BASH_REMATCH[2]}
    while IFS= read -r line; do
        if ! [[ $line =~ ^[0-9]+\.[0-9]+$ ]]; then continue; fi
        capability=$(number_of "$line")
        if [ "$capability" -lt "${lowest:-9999}" ]; then lowest=$capability; fi
        if [ "$capability" -gt "${highest:-0}" ]; then highest=$capability; fi
    done <<<"$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true)"
    for build in $cuda_builds; do
        number=$(number_of "$build")
        if [ "$number" -gt "$(number_of "$driver")" ]; then continue; fi
        # CUDA 13 has dropped the GPUs before Turing (7.5). CUDA 12.8 is the first for Blackwell (10).
        if [ "$number" -ge 1300 ] && [ "${lowest:-9999}" -lt 705 ]; then continue; fi
        if [ "$number" -lt 1208 ] && [ "${highest:-0}" -ge 1000 ]; then continue; fi
        cuda=$build
        say "The driver supports CUDA $driver, so the build $cuda of PaddlePaddle is installed, for" \
            "CUDA $(version_of "$cuda")."
        return
    done
    if [ "${highest:-0}" -ge 1000 ]; then build=cu129; fi # otherwise it is the oldest of all
    say "No build of PaddlePaddle runs with this machine's NVIDIA driver. The driver supports CUDA" \
        "$driver, and the oldest build that fits the GPU needs CUDA $(version_of "$build")." \
        "You can do one of these:"
    say "  Update the NVIDIA driver, until nvidia-smi shows CUDA $(version_of "$build") or newer."
    say "  Install without GPU support:  TRANSFORMER_MT_DEVICE=cpu bash scripts/setup.sh"
    die "  Try that build all the same:  TRANSFORMER_MT_CUDA=$build bash scripts/setup.sh"
}

# ---- Installing ----

# Runs a command in the background and waits for it. Bash handles a signal at once during `wait`, but
# only at the end of a command in the foreground. A command in the background does not receive Ctrl-C,
# so `stopped` ends it.
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

# Runs the Python of .venv. Only `run` may call it, because it replaces its shell. Its output goes to
# the terminal, or to the log if there is no terminal.
#   TMPDIR            pip unpacks several hundred MB, for which /tmp is often too small
#   PIP_USER          a pip.conf may contain `user = true`, which fails in .venv
#   PIP_PROGRESS_BAR  a progress bar that is stopped leaves the terminal without a cursor
#   -I                modules in PYTHONPATH or the current folder are not imported
venv_python() {
    cd "$root"
    export TMPDIR=$venv/tmp PIP_USER=0 PIP_PROGRESS_BAR=off PIP_DISABLE_PIP_VERSION_CHECK=1
    if [ -t 2 ]; then export PIP_LOG=$log; else exec >>"$log" 2>&1; fi
    exec "$python" -I "$@"
}
pip() { run venv_python -m pip "$@" || failed; }

failed() {
    case $(tail -n 100 "$log" 2>/dev/null) in
    *'Retry(total=0,'*)
        say "The installation failed, because pip could not reach the package index. The log is" \
            "$log"
        say "Check the network, and HTTPS_PROXY if there is a proxy. To use a mirror:" \
            "PIP_INDEX_URL=<URL of the mirror> bash scripts/setup.sh"
        say "Without a network, download the packages on another machine that has this project and" \
            "the same version of Python, and copy them:"
        say "  there:  python3 -m pip download -r requirements.txt -d packages"
        die "  here:   PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/packages bash scripts/setup.sh"
        ;;
    esac
    if [ ! -t 2 ]; then tail -n 12 "$log" >&2 2>/dev/null || true; fi
    say "The installation failed, for the reason above."
    if [ -f "$log" ]; then say "The log is $log"; fi
    say "The installation needs Linux x86-64 with glibc 2.28 or newer, space on the disk (free:" \
        "$(df -Ph "$root" | awk 'NR == 2 { print $4 }')) and a network. To use a mirror:" \
        "PIP_INDEX_URL=<URL of the mirror> bash scripts/setup.sh"
    [ "$device" = cpu ] || say "To install without GPU support:" \
        "TRANSFORMER_MT_DEVICE=cpu bash scripts/setup.sh"
    exit 1
}

# Prints entries of the lock with their hashes: those whose first line fulfils a condition of awk.
locked() { awk "/^[a-z]/ { chosen = $1 } chosen" "$root/requirements.txt"; }

# Installs the lock without PaddlePaddle for the CPU. Then come PaddlePaddle for the GPU and
# NVIDIA's libraries, whose hashes are not known. They must not change the versions of the lock.
install_for_gpu() {
    local tmp=$venv/tmp
    locked '!/^paddlepaddle==/' >"$tmp/others.txt" || failed
    awk '/^[a-z]/ && sub(/ *\\$/, "")' "$root/requirements.txt" >"$tmp/versions.txt" || failed
    # The indexes hold different wheels of the same name and version, so pip must know only one.
    awk "{ sub(/$usual_cuda/, \"$cuda\") } 1" "$root/$list" >"$tmp/$list" || failed
    pip install --require-hashes --no-build-isolation -r "$tmp/others.txt"
    pip install --no-build-isolation -c "$tmp/versions.txt" -r "$tmp/$list"
}

# Writes the stamp at once, so that a full disk leaves no damaged one.
write_stamp() { # CONTENT
    { mkdir -p "$venv" && echo "$* $root" >"$stamp.new" && mv -f "$stamp.new" "$stamp"; } || failed
}

# Removes everything in .venv except the stamp, by which the next run knows .venv.
empty_venv() {
    local entry
    shopt -s dotglob
    for entry in "$venv"/*; do
        [ "$entry" = "$stamp" ] || rm -rf -- "$entry" || return
    done
}

install() {
    if [ "$plan" = refuse ]; then
        die "$venv can't be used, because $why. Nothing was changed. To let scripts/setup.sh make" \
            "an environment, move this one away or remove it, for example with" \
            "$(printf 'mv %q %q' "$venv" "$venv.old"). Then give the command again."
    fi
    [ -w "$root" ] || die "$root can't be written: it is read-only, or it belongs to someone else."
    # Another folder of this project may use the environment, and it runs its own code with it.
    if is_shared; then
        die "$venv is a link to the environment of $made_in, which does not suit this folder: $why." \
            "Nothing was changed. To make an environment for this folder, remove the link."
    fi
    if [ "$plan" = make ]; then
        if [ "$device" = gpu ]; then pick_cuda; fi
        pick_python
        say "Making .venv, because $why: $base ($version), for the $device. It takes about $cost" \
            "(longer on a slow network)."
        write_stamp unfinished - - none
        { run empty_venv && run "$base" -m venv "$venv"; } || failed
    else
        say "Updating .venv, because $why."
    fi
    { mkdir -p "$venv/tmp" && : >"$log"; } || failed
    if [ "$plan" != dev ]; then
        write_stamp unfinished - - none # if this is stopped, the next run empties .venv
        # What builds jieba and seqeval comes first. Without a network, this is where pip fails.
        locked '/^(pip|setuptools|setuptools-scm|packaging|tomli|typing-extensions)==/' \
            >"$venv/tmp/build.txt" || failed
        pip install --quiet --retries 1 --require-hashes -r "$venv/tmp/build.txt"
        if [ "$device" = gpu ]; then
            install_for_gpu
        else
            pip install --require-hashes --no-build-isolation -r "$list"
        fi
        pip install --no-build-isolation --no-deps -e .
    fi
    if [ "$dev" = yes ]; then
        pip install --require-hashes --no-build-isolation -r requirements-dev.txt
    fi
    pip check
    run venv_python -W ignore -c 'import paddle, paddlenlp, transformer_mt' || failed
    rm -rf "$venv/tmp"
    write_stamp "$device${cuda:+-$cuda}" "$version" "$base_sum" "$dev_sum"
}

# Prevents two runs at the same time. The lock is on the project folder itself, so that no file is
# left behind. If flock is missing or the file system has no locks, nothing is locked.
lock() {
    command -v flock >/dev/null || return 0
    exec 9<"$root"
    if flock -n 9; then return; fi
    say "Another run is making $venv; waiting for it to finish."
    run flock 9 || true
}

setup() { # [--dev]
    [ -f "$root/requirements.txt" ] ||
        die "$root is not the folder of this project: it has no requirements.txt. setup.sh works" \
            "only in the folder scripts of the project, or through a link to it."
    dev=no
    if [ "${1-}" = --dev ]; then dev=yes; fi
    trap 'stopped 130' INT
    trap 'stopped 143' TERM
    look
    if [ "$plan" != ready ]; then
        lock
        look # another run may have finished the work
        if [ "$plan" != ready ]; then install; fi
        exec 9<&- # otherwise the training that follows would hold the lock
    fi
    # The environment of another folder has that folder's transformer_mt. This one's comes before it.
    if is_shared; then export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}; fi
}

# This file is run, not sourced by another script.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    case $* in
    '' | --dev) setup "$@" ;;
    -h | --help) show_help "$usage" ;;
    *) wrong_usage "$usage" ;;
    esac
    say ".venv is ready (Python $version, $device)."
fi

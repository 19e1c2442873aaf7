#!/usr/bin/env bash
# Runs the tests, in the environment that setup.sh makes.
[ "${BASH_VERSION-}" ] || exec bash -- "$0" "$@" # `sh scripts/test.sh` works too
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

usage='Usage: scripts/test.sh [--all | --attack | options of pytest]
  (nothing)  runs all tests except the slow ones, in parallel: about 8 minutes on 2 cores
  --all      also runs the slow tests, such as further kills and runs with several processes.
             Continuous integration runs this: about 13 minutes
  --attack   also runs the large attacks of tests/attack, about an hour more than --all. Every process
             of the program starts fresh, and is not forked from one that has imported the libraries
All options: .venv/bin/python -m pytest --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
esac

setup --dev
cd "$root"
case $* in
'' | --all | --attack) # test files run in parallel, one per core
    set -- "$@" --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
    ;;
esac
exec "$python" -m pytest "$@"

#!/usr/bin/env bash
# Runs the tests, in the environment that setup.sh makes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

usage='Usage: scripts/test.sh [--all | --attack | options of pytest]
  (nothing)  all tests but the slow ones, side by side: about 5 minutes on 2 cores
  --all      also the slow tests, such as further kills and runs of several processes; and every
             process of the program starts afresh, not forked from one that has imported its
             libraries. This is what continuous integration runs: about 20 minutes
  --attack   as --all, with the large attacks of tests/attack: about an hour more
All options: .venv/bin/python -m pytest --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
esac

setup --dev
cd "$root"
case $* in
'' | --all | --attack) # files side by side, one per core
    set -- "$@" --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
    ;;
esac
exec "$python" -m pytest "$@"

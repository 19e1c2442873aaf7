#!/usr/bin/env bash
# Runs the tests, in the environment that setup.sh makes.
# Usage: scripts/test.sh [--all | options of pytest]
#   --all   the large attacks of tests/attack too, which take about an hour
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

setup --dev
cd "$root"
case $* in
'' | --all) # files side by side, one a core
    set -- "$@" --numprocesses auto --maxprocesses 4 --dist loadfile
    ;;
esac
exec "$python" -m pytest "$@"

#!/usr/bin/env bash
# Runs the tests, in the environment that setup.sh makes.
# Usage: scripts/test.sh [options of pytest]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

setup --dev
cd "$root"
if [ $# -eq 0 ]; then # all of them: files side by side, one a core
    set -- --numprocesses auto --maxprocesses 4 --dist loadfile
fi
exec "$python" -m pytest "$@"

#!/usr/bin/env bash
# Runs the tests, in the environment that setup.sh makes.
# Usage: scripts/test.sh [options of pytest]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

setup --dev
cd "$root"
exec "$python" -m pytest "$@"

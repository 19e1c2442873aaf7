#!/usr/bin/env bash
# Translates SOURCE with models, and compares the translations with REFERENCE. Runs in the environment
# that setup.sh makes.
[ "${BASH_VERSION-}" ] || exec bash -- "$0" "$@" # `sh scripts/evaluate.sh` works too
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

usage='Usage: scripts/evaluate.sh MODEL_DIR [MODEL_DIR ...] SOURCE REFERENCE [options]
All options: .venv/bin/python -m transformer_mt evaluate --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
'') wrong_usage "$usage" ;;
esac

setup
exec "$python" -m transformer_mt evaluate "$@"

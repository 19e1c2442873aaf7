#!/usr/bin/env bash
# Translates a file or the standard input, in the environment that setup.sh makes. Only translations
# are written to the standard output.
[ "${BASH_VERSION-}" ] || exec bash -- "$0" "$@" # `sh scripts/translate.sh` works too
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

usage='Usage: scripts/translate.sh MODEL_DIR [INPUT [OUTPUT]] [options]
INPUT and OUTPUT are the standard input and output if they are left out or given as -.
All options: .venv/bin/python -m transformer_mt translate --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
'') wrong_usage "$usage" ;;
esac

setup
exec "$python" -m transformer_mt translate "$@"

#!/usr/bin/env bash
# Repeats a row of the table of results, in the environment that setup.sh makes.
[ "${BASH_VERSION-}" ] || exec bash -- "$0" "$@" # `sh scripts/reproduce.sh` works too
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

usage='Usage: scripts/reproduce.sh ROW [--seed N] [--data FOLDER] [--runs FOLDER] [--record]
       scripts/reproduce.sh --list
Trains and scores a row of docs/results.md, and compares it with the recorded scores. The rows and
what they need: scripts/reproduce.sh --list
All options: .venv/bin/python scripts/reproduce.py --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
'') wrong_usage "$usage" ;;
esac

setup
exec "$python" "$root/scripts/reproduce.py" "$@"

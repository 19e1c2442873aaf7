#!/usr/bin/env bash
# Translates a file or the standard input, in the environment that setup.sh makes. Only translations
# are written to the standard output.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

usage='Usage: scripts/translate.sh MODEL_DIR [INPUT [OUTPUT]] [options]
INPUT and OUTPUT are the standard input and output if they are left out or given as -.
All options: .venv/bin/python -m transformer_mt translate --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
esac

# File names come first. The first option and everything after it is passed on unchanged.
names=()
while [ $# -gt 0 ]; do
    case $1 in
    -) names+=(-) ;;
    -*) break ;;
    *) names+=("$1") ;;
    esac
    shift
done
if [ ${#names[@]} -lt 1 ] || [ ${#names[@]} -gt 3 ]; then
    wrong_usage "$usage"
fi
input=${names[1]--}
output=${names[2]--}
if [ "$output" != - ]; then set -- --output "$output" "$@"; fi
if [ "$input" != - ]; then set -- --input "$input" "$@"; fi

setup
exec "$python" -m transformer_mt translate "${names[0]}" "$@"

#!/usr/bin/env bash
# Translates SOURCE with a model, and compares the translation with REFERENCE. Runs in the environment
# that setup.sh makes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

usage='Usage: scripts/evaluate.sh MODEL_DIR SOURCE REFERENCE [options]
All options: .venv/bin/python -m transformer_mt evaluate --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
esac
# The first three arguments are names, and all others are options.
case ${1--}:${2--}:${3--} in
-* | *:-*) wrong_usage "$usage" ;;
esac
case ${4--} in
-*) ;;
*) wrong_usage "$usage" ;;
esac
model=$1 source=$2 reference=$3
shift 3

setup
exec "$python" -m transformer_mt evaluate "$model" --source "$source" --reference "$reference" "$@"

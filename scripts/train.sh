#!/usr/bin/env bash
# Trains a model, in the environment that setup.sh makes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

usage='Usage: scripts/train.sh [CONFIG] [KEY=VALUE ...] [options]
The default of CONFIG is configs/demo.yaml, and the training then runs in the project folder. If
CONFIG is given, relative paths start at the current folder.
All options: .venv/bin/python -m transformer_mt train --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
esac

setup
case ${1-} in
'' | -* | *=*)
    [ "${1-x}" ] || shift # an empty argument counts as none
    cd "$root"
    exec "$python" -m transformer_mt train configs/demo.yaml "$@"
    ;;
*) exec "$python" -m transformer_mt train "$@" ;;
esac

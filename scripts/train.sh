#!/usr/bin/env bash
# Trains a model, in the environment that setup.sh makes.
[ "${BASH_VERSION-}" ] || exec bash -- "$0" "$@" # `sh scripts/train.sh` works too
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

usage='Usage: scripts/train.sh [CONFIG] [KEY=VALUE ...] [options]
The default of CONFIG is configs/demo.yaml, and the training then runs in the project folder. If
CONFIG is given, relative paths start at the current folder.
All options: .venv/bin/python -m transformer_mt train --help'

case ${1-} in
-h | --help) show_help "$usage" ;;
esac

config=''
for argument; do
    case $argument in
    '' | -* | *=* | cpu | gpu | gpu:*) ;; # options, values of keys, and the values of --device
    *) config=$argument ;;
    esac
done

setup
if [ "$config" ]; then exec "$python" -m transformer_mt train "$@"; fi
cd "$root"
[ "${1-x}" ] || shift # an empty argument counts as none
exec "$python" -m transformer_mt train configs/demo.yaml "$@"

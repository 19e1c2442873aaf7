#!/usr/bin/env bash
# Imports an OPUS-MT model, translates with it, fine-tunes it on your own text, compares both, and
# exports the result, in the environment that setup.sh makes.
[ "${BASH_VERSION-}" ] || exec bash -- "$0" "$@" # `sh scripts/opus_mt_example.sh` works too
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

usage='Usage: scripts/opus_mt_example.sh TEXT [SOURCE [MINUTES [FOLDER]]]
TEXT     text of your own, as for `new --train`: memory.tmx, pairs.tsv, corpus/train
SOURCE   the model, as for `import` (default: hf:Helsinki-NLP/opus-mt-en-de)
MINUTES  how long the fine-tuning may take (default: 60)
FOLDER   where everything is written (default: runs/opus_mt_example)'

case ${1-} in
-h | --help) show_help "$usage" ;;
'') wrong_usage "$usage" ;;
esac

text=$1 model=${2:-hf:Helsinki-NLP/opus-mt-en-de} minutes=${3:-60}
folder=${4:-runs/opus_mt_example}
setup
"$python" -m pip install --quiet -r "$root/requirements-ctranslate2.txt" # for the export of step 5

run() { "$python" -m transformer_mt "$@"; }
step() { printf '\n== %s\n' "$*" >&2; }
translate() {
    printf '%s\n' "The weather is nice today." "Click the button to save the file." |
        run translate "$1"
}

step "1. Importing $model"
run import "$model" "$folder/base"
step "2. Translating with it"
translate "$folder/base"
step "3. Fine-tuning on $text, for $minutes minutes"
run new "$folder/my.yaml" --from "$folder/base" --train "$text" --minutes "$minutes" \
    --model-dir "$folder/tuned"
run train "$folder/my.yaml"
step "4. Translating with the new model"
translate "$folder/tuned"
step "5. Exporting it, for fast translation on a CPU and for Hugging Face's transformers"
run export "$folder/tuned" --format ctranslate2 --quantization int8
run export "$folder/tuned" --format huggingface
step "Done. What was gained and lost is in $folder/tuned/report.html"

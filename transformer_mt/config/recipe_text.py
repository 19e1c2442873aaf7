"""The text of a recipe for text files: a YAML file whose comments explain every line.

The command `new` fills it in.
"""

from string import Template
from typing import Any

from transformer_mt.config import yaml_text

TEXT = """\
# A recipe for your own text, written by `new`. Every value can be changed.
#
#     bash scripts/train.sh $file --check   # what would be trained, and how long it would take
#     bash scripts/train.sh $file
#
# A key that is not here has its default, and docs/config.md explains every key.

# The folder for everything that the training writes: the model, its checkpoints, the scores.
model_dir: $model_dir

data:
  root: $root
  # The training text: PREFIX.LANGUAGE in this folder for both languages, or a file NAME.tsv.
  train: $train
  source_lang: $source_lang
  target_lang: $target_lang
  # The dev set chooses the best checkpoint, and the test set gives the final score. They are
  # given like `train`. null holds pairs of the training text out (data.held_out).
  dev: $dev
  test: $test

subword:
  # The number of different subwords. The more text there is, the more of them can be learnt.
$vocabulary
  # Whether both languages share the subwords. This suits languages with the same letters.
  joint: $joint
  # The share of all characters that the subwords cover. Below 1, the rarest are left out.
  character_coverage: $character_coverage
  # Letters with accents are one character each (NFC), however the files spell them.
  normalization: nfc

model:
  # A larger model needs more text, and more time for each step.
  num_layers: $num_layers
  d_model: $d_model
  num_heads: $num_heads
  d_ff: $d_ff
  norm: pre
  bias: false
  # The more often the same text is seen, and the less text there is, the higher the dropout.
  dropout: $dropout

training:
  # The number of steps, and the target tokens of each. Here, a step takes about $seconds s, and
  # all steps together are $epochs passes over the text.
  max_steps: $max_steps
  batch_tokens: $batch_tokens
  # The learning rate rises for warmup_steps up to learning_rate, and then falls with
  # 1 / sqrt(step). A wider model needs a lower rate.
  schedule: inverse_sqrt
  warmup_steps: $warmup_steps
  learning_rate: $learning_rate
  # The steps between two measurements of the dev set's BLEU, and between two checkpoints.
  validate_every: $interval
  save_every: $interval
  # Translates with the mean of the last checkpoints, which is often better than any of them.
  average_last: $average_last
"""


def recipe_text(values: dict[str, Any], vocabulary_sizes: dict[str, int], file: str) -> str:
    """Fills in the text.

    Args:
        values: a value for each name in TEXT.
        vocabulary_sizes: the keys of the section `subword` that set the size of a vocabulary, and
            their values.
        file: the name of the recipe, as it is typed at a shell.
    """
    sizes = "\n".join(f"  {key}: {size}" for key, size in vocabulary_sizes.items())
    shown = {key: _scalar(value) for key, value in values.items()}
    return Template(TEXT).substitute(shown, vocabulary=sizes, file=file)


def _scalar(value: Any) -> str:
    return yaml_text.dump({"key": value}).removeprefix("key: ").rstrip("\n")

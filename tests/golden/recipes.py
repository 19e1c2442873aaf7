"""The configs of the golden models.

Paths are relative: training runs in a folder that `corpus.write` has filled.
"""

from __future__ import annotations

from typing import Any

import yaml

from tests.golden.corpus import MAX_LENGTH

Recipe = dict[str, dict[str, Any]]

BASE: Recipe = yaml.safe_load(f"""
data: {{root: text, dev: dev, test: test, held_out: 0, source_lang: en, target_lang: de,
       max_length: {MAX_LENGTH}, cache: cache}}
subword: {{vocab_size: 180}}
model: {{num_layers: 1, d_model: 16, num_heads: 2, d_ff: 32, norm: pre, dropout: 0.05}}
training: {{max_steps: 500, batch_tokens: 600, device_tokens: 600, schedule: inverse_sqrt,
           warmup_steps: 60, learning_rate: 0.02, clip_norm: 1.0, log_every: 100,
           validate_every: 1200, save_every: 1200, keep_last: 1, devices: 1, seed: 3}}
decoding: {{beam_size: 4, batch_tokens: 100, max_length_extra: 10}}
evaluation: {{samples: 1}}
""")

# The plain model has another checkpoint besides the last.
EARLIER = "step_250"

# What each golden model has in place of BASE. "apart" has as many settings of the model as possible
# that are not the plain model's.
MODELS: dict[str, Recipe] = yaml.safe_load("""
plain:
  training: {save_every: 250, keep_last: 2}
apart:
  subword: {joint: false, source_vocab_size: 130, target_vocab_size: 120}
  model: {num_encoder_layers: 2, norm: post, bias: false, tie_embeddings: false, dropout: 0.05,
          embedding_dropout: 0.0, attention_dropout: 0.05, feed_forward_dropout: 0.05}
  training: {optimizer: adamw, weight_decay: 0.01, schedule: noam, learning_rate: null,
             clip_norm: null, best_metric: loss}
  decoding: {length_penalty: 0.6, length_penalty_kind: average}
alignment:
  model: {copying: true}
  guided_attention: {by: alignment, alignments: links}
length:
  subword: {type: word}
  model: {non_autoregressive: length}
  training: {max_steps: 1200}
""")

# Those that keep the optimizer, so that training can go on.
CONTINUED = ("plain", "apart")


def config(name: str) -> dict[str, Any]:
    """The whole config of a model, as YAML has it; its model_dir is its name."""
    changes = MODELS[name]
    keys = {**BASE, **changes}
    return {"model_dir": name} | {key: BASE.get(key, {}) | changes.get(key, {}) for key in keys}


def is_non_autoregressive(name: str) -> bool:
    return "non_autoregressive" in config(name)["model"]

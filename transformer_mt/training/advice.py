"""Advice about a run that can be trained as it is, but will probably not do what its user wants.

Whatever cannot work at all is an error, and is reported by the rules of the config or by what reads
the data.
"""

from collections.abc import Iterator

from transformer_mt.config.schema import LARGEST, STEP, Config, takes_head_width
from transformer_mt.data.facts import RARE, Facts, unknown_texts
from transformer_mt.utils.languages import has_spaces, taken_for

# Copies of the source among the targets are reported from this share of the pairs on. A few are in
# every corpus, such as names.
MANY_COPIES = 0.001
# Unknown subwords are reported from this share on.
MANY_UNKNOWN = 0.02


def advice(config: Config, facts: Facts, total_steps: int, on_gpu: bool = False) -> list[str]:
    """Returns messages, each of which says what is odd, where, and what to do about it.

    Args:
        facts: the facts about the data, as `data.facts.facts_of` returns them.
        total_steps: the number of steps of the whole run.
        on_gpu: whether a GPU trains, whose fused attention does not serve all models.
    """
    return [
        *_about_steps(config, total_steps, facts["dev"] > 0),
        *(_about_attention(config) if on_gpu else ()),
        *_about_languages(config, facts),
        *_about_text(config, facts),
    ]


def _about_steps(config: Config, total_steps: int, has_dev: bool) -> Iterator[str]:
    training = config.training
    end = f"training ends at step {total_steps:,}"
    if total_steps < training.warmup_steps:
        yield (
            f"training.warmup_steps: {training.warmup_steps}: {end}, while the learning rate still "
            f"rises. Lower warmup_steps, to {max(1, total_steps // 5)} for example, or train longer"
        )
    if training.decay_steps is not None and total_steps != training.decay_steps:
        # A run that is resumed can't change it.
        yield (
            f"training.decay_steps: {training.decay_steps}: {end}, and the learning rate is 0 from "
            f"step {training.decay_steps:,} on. In a new run, set it to {total_steps}"
        )
    if has_dev and total_steps < training.validate_every:
        yield (
            f"training.validate_every: {training.validate_every}: {end}, so no validation comes "
            f"before that. Lower it, to {max(1, total_steps // 10)} for example"
        )
    if not has_dev and training.patience is not None:
        yield (
            f"training.patience: {training.patience}: there is no dev set, so training will not "
            "end early. Give data.dev, or let pairs be held out for it (data.held_out)"
        )
    saved = -(-total_steps // training.save_every)  # one is saved at the end in any case
    if training.average_last is not None and saved < training.average_last:
        most = total_steps // training.average_last
        advised = f". Lower training.save_every to at most {most}" if most else ""
        yield (
            f"training.average_last: {training.average_last}: {end}, and only {saved} checkpoints "
            f"will have been saved (training.save_every: {training.save_every}){advised}"
        )


def _about_attention(config: Config) -> Iterator[str]:
    model, precision = config.model, config.training.precision
    if precision == "float32":
        return  # the fused attention is for half precision
    end = "the result is the same, but it is slower and needs more memory"
    width = model.d_model // model.num_heads
    if not takes_head_width(width):
        yield (
            f"model.num_heads: {model.num_heads}: with d_model {model.d_model}, a head has width "
            f"{width}, and Paddle's fused attention takes multiples of {STEP} up to {LARGEST}. "
            f"Attention is computed without it: {end}. {_other_width(config)}"
        )
    elif layers := sorted(config.layers_read_by_the_loss):
        numbers = ", ".join(str(layer + 1) for layer in layers)
        yield (
            f"training.precision: {precision}: attention in decoder layer {numbers} is computed "
            "without Paddle's fused attention, because copying or guided attention reads its "
            f"weights: {end}"
        )


def _other_width(config: Config) -> str:
    d_model, heads = config.model.d_model, config.model.num_heads
    fitting = [
        n for n in range(1, d_model + 1) if d_model % n == 0 and takes_head_width(d_model // n)
    ]
    if fitting:
        return f"Use num_heads {min(fitting, key=lambda n: (abs(n - heads), n))}, for example"
    width = min(max(STEP, round(d_model / heads / STEP) * STEP), LARGEST)
    return f"Use d_model {heads * width}, for example"


def _about_languages(config: Config, facts: Facts) -> Iterator[str]:
    for side in ("source", "target"):
        key = f"{side}_lang"
        language = getattr(config.data, key)
        if code := taken_for(language):
            yield f"data.{key}: {language} is taken for {code}, the code of the language"
        elif has_spaces(language) and facts[side]["unspaced_script"] > 0.5:
            yield (
                f"data.{key}: the text is in a script without spaces between words, and {language} "
                "is no language that has such a script, so that a sentence counts as one word and "
                "BLEU is wrong. Give the code of the language, such as zh, ja or th, and name the "
                "files so"
            )


def _about_text(config: Config, facts: Facts) -> Iterator[str]:
    # The subwords of another model can't be changed.
    sizes = {} if config.training.init_from else config.subword.vocabulary_sizes
    for key, side in zip(sizes, ("source", "target"), strict=False):
        if (share := facts[side]["rare"]) > 0.5:
            yield (
                f"{'subword.vocabulary' if config.subword.type == 'vocabulary' else key}: "
                f"{_percent(share)} of the {facts[side]['vocabulary']:,} subwords occur less than "
                f"{RARE} times in the training text, too rarely to be learnt well. Use fewer "
                "subwords, or train on more text"
            )
    for name, side, unknown in unknown_texts(facts):
        if (share := unknown["share"]) >= MANY_UNKNOWN:
            yield (
                f"data.{name}: {_percent(share)} of the subwords of the {side} are unknown, such "
                f"as {', '.join(unknown['examples'])}. {_known(config, name, unknown['examples'])}"
            )
    names = ("dev", "test", "general_dev", "general_test")
    held_out = [name for name in names if name in facts and getattr(config.data, name) is None]
    left_out = facts["dropped"].get("held out for dev or test", {"count": 0})
    count = sum(facts[name] for name in held_out)
    if (others := left_out["count"] - count) > count / 2:
        source, target = left_out["examples"][0]
        yield (
            f"data.held_out: {count:,} pairs are held out of the training text, and {others:,} "
            "others are left out of it, because they share a source or a target with one of those. "
            f'So "{source}" – "{target}" is not trained on, for example. Give data.dev and '
            "data.test, or lower data.held_out"
        )
    for name, overlap in facts["overlap"].items():
        # Pairs that are held out share at most a label.
        if (count := overlap["lines"]) and name not in held_out:
            whole = f" ({overlap['pairs']:,} as a whole pair)" if overlap["pairs"] else ""
            yield (
                f"data.{name}: the source or the target of {count:,} of its {facts[name]:,} pairs "
                f"is also in the training text{whole}, so its scores are higher than those of "
                "new text. Remove these pairs from the training text"
            )
    copies = facts["copies"]["count"]
    if (share := copies / facts["pairs"]) >= MANY_COPIES:
        yield (
            f"data.train: in {copies:,} pairs ({_percent(share)}), the target is a copy of the "
            "source. The model learns to leave text untranslated from them. Remove these pairs"
        )


def _known(config: Config, name: str, examples: list[str]) -> str:
    """Returns advice on how text becomes known."""
    if any(example.startswith("U+03") for example in examples):
        return (
            "Letters and their accents are apart there: bring all text to one form of Unicode, or "
            "train a model with subword.normalization: nfc"
        )
    if config.training.init_from:
        return "The subwords are those of training.init_from, so choose a model of such text"
    if config.subword.type == "vocabulary":
        return "Check that subword.vocabulary is the list that this text was split with"
    if name == "train":
        return "Raise subword.character_coverage or the size of the vocabulary"
    return "The training text does not have them"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"

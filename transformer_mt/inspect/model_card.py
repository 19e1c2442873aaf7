"""The model card of a run: what the model is, for the people it is given to.

The card is Markdown. It begins with metadata in YAML, which model hubs read (Hugging Face, "Model
Cards"; the idea is that of Mitchell et al. 2019, arXiv 1810.03993). Text of a recipe or a folder's
name can neither break the metadata nor add markup to the page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_mt.config import file as config_file
from transformer_mt.config import yaml_text
from transformer_mt.config.schema import Config, ModelConfig
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.languages import primary
from transformer_mt.evaluation.metrics import METRICS
from transformer_mt.inspect import record
from transformer_mt.inspect.record import Record, half_width, number
from transformer_mt.model_directory import MODEL_CARD, ModelDirectory
from transformer_mt.utils.console import duration, visible
from transformer_mt.utils.folders import sealed

# What ISO 639 has as the code of a language.
_LANGUAGE = re.compile(r"[a-z]{2,3}")


def card_of(directory: ModelDirectory, checkpoint: str) -> str:
    """Returns the card of a checkpoint: the one in the directory if a person has edited it, and
    otherwise a new one.

    Raises:
        UserError, UsageError: the directory can't be read.
    """
    if directory.has_edited_card:
        return directory.own(MODEL_CARD).read_bytes().decode("utf-8", errors="replace")
    found = record.read(directory.path, directory.path.resolve().name)
    return sealed(model_card(found, directory.load_config(), checkpoint), "<!-- {} -->")


def model_card(record: Record, config: Config, checkpoint: str) -> str:
    """Returns the card of a run.

    Args:
        checkpoint: the checkpoint to translate with. Only scores of it are shown.
    """
    scores = {
        split: line
        for split, line in (("dev", _dev_line(record, checkpoint)), ("test", record.last("test")))
        if line.get("checkpoint") == checkpoint
    }
    sections = [
        f"---\n{yaml_text.dump(_metadata(record, config, scores))}---\n",
        *_introduction(record, config.model, checkpoint),
        "## Scores\n",
        *_scores(scores),
        "## How to use it\n",
        _USE,
        "## Data\n",
        *_data(record, config),
        "## Training\n",
        *_training(record, config.training.seed),
        "## Limits\n",
        *_limits(record, config),
        "## How to repeat it\n",
        *_repeat(config),
    ]
    return visible("\n".join(sections))


_USE = """\
The model belongs to transformer_mt. In the folder of that program, with MODEL_DIR for the folder of
this file:

```bash
bash scripts/translate.sh MODEL_DIR FILE
```

```python
from transformer_mt import Translator

translator = Translator.load("MODEL_DIR")
print(translator.translate(["A line of text."]))
```

No file of the folder can run code when it is opened.
"""


def _metadata(record: Record, config: Config, scores: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns what model hubs read. Only what is known is in it."""
    codes = [primary(code) for code in (config.data.source_lang, config.data.target_lang)]
    languages = [code for code in dict.fromkeys(codes) if _LANGUAGE.fullmatch(code)]
    metadata: dict[str, Any] = {"language": languages} if languages else {}
    metadata |= {
        "library_name": "transformer_mt",
        "pipeline_tag": "translation",
        "tags": ["translation", "transformer", "paddlepaddle"],
    }
    line = scores.get("test")
    if line is None:
        return metadata
    values = {METRICS[key].label: round(value, METRICS[key].digits) for key, value in _values(line)}
    name = "files of the author" if config.data.dataset == "files" else config.data.dataset
    result = {
        "task": {"type": "translation", "name": f"Translation {codes[0]}-{codes[1]}"},
        "dataset": {"type": config.data.dataset, "name": name, "split": "test"},
        "metrics": [
            {"type": label.lower(), "name": label, "value": value}
            for label, value in values.items()
        ],
    }
    return metadata | {
        "metrics": [label.lower() for label in values],
        "model-index": [{"name": record.name, "results": [result]}],
    }


def _introduction(record: Record, model: ModelConfig, checkpoint: str) -> Iterator[str]:
    start = record.last("start")
    source, target = map(_plain, record.languages)
    parameters = number(start.get("parameters"))
    size = "" if parameters is None else f" It has {int(parameters):,} parameters."
    yield f"# {_plain(record.name)}\n"
    yield (
        f"This model translates from {source} to {target}. It is a Transformer "
        f"([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)) with {model.encoder_layers} "
        f"encoder layers and {model.decoder_layers} decoder layers, d_model {model.d_model}, d_ff "
        f"{model.d_ff} and {model.num_heads} heads.{size} Its weights are those of the checkpoint "
        f"{checkpoint}.\n"
    )


def _scores(scores: dict[str, dict[str, Any]]) -> Iterator[str]:
    if not scores:
        yield "This model was not scored at the end of its training.\n"
        return
    rows, notes = [], []
    for split, line in scores.items():
        for key, value in _values(line):
            metric, half = METRICS[key], half_width(line, key)
            interval = "" if half is None else f" ± {half:.{metric.digits}f}"
            rows.append(f"| {split} | {metric.label} | {value:.{metric.digits}f}{interval} |")
            notes.append(_code(line.get(metric.signature_key)))
        notes.append(_code(line.get("note")))
    yield "| set | metric | score |\n| --- | --- | --- |"
    yield "\n".join(rows) + "\n"
    yield (
        "A number behind ± is half the width of the 95 % confidence interval, by bootstrap "
        "resampling. The checkpoint and the settings of the search were chosen on the dev set. "
        "Scores of another test set, or with another signature, are not comparable with these:\n"
    )
    yield "\n".join(["```text", *filter(None, dict.fromkeys(notes)), "```\n"])


def _values(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields each score of a line, under its key of METRICS."""
    for key in METRICS:
        value = number(line.get(key))
        if value is not None:
            yield key, value


def _dev_line(record: Record, checkpoint: str) -> dict[str, Any]:
    """Returns the scores of a checkpoint on the dev set: with the settings of the search if it was
    compared with an average, and otherwise those of its validation."""
    lines = [
        *({**line, "checkpoint": f"step_{line.get('step')}"} for line in record.lines("dev")),
        *record.lines("average"),
        *record.lines("best"),
    ]
    return next((line for line in reversed(lines) if line.get("checkpoint") == checkpoint), {})


def _data(record: Record, config: Config) -> Iterator[str]:
    dataset = DATASETS[config.data.dataset]
    if dataset.origin:
        yield f"The text is {dataset.origin}. Its licence: {dataset.licence}.\n"
    else:
        files = record.facts.get("files")
        train = files.get("train") if isinstance(files, dict) else None
        names = [_plain(Path(str(path)).name) for path in train] if isinstance(train, list) else []
        named = f" ({', '.join(names)})" if names else ""
        yield (
            f"The text is files of the author of the model{named}. Their licence is not stated "
            "here. Look for it before you use the model: the licence of a text can also restrict "
            "the use of models that were trained on it.\n"
        )
    pairs = number(record.facts.get("pairs"))
    if pairs is not None:
        yield f"The model was trained on {int(pairs):,} pairs of sentences.\n"
    yield "No licence of the model itself is stated. Whoever publishes it chooses one.\n"


def _training(record: Record, seed: int) -> Iterator[str]:
    start = record.last("start")
    facts = {
        "updates": f"{record.step:,}",
        "time": None if record.seconds is None else duration(record.seconds),
        "computed on": start.get("device_name"),
        "cores": start.get("cores"),
        "seed": seed,
        "transformer_mt": start.get("version"),
        "PaddlePaddle": start.get("paddle"),
        "Python": start.get("python"),
    }
    yield "| what | value |\n| --- | --- |"
    yield "\n".join(f"| {key} | {_plain(v)} |" for key, v in facts.items() if v is not None) + "\n"


def _limits(record: Record, config: Config) -> Iterator[str]:
    source, target = map(_plain, record.languages)
    longest = config.decoding.max_source_length or config.data.max_length
    yield (
        f"- It translates from {source} to {target} only, one line at a time, without the context "
        "of the lines around it.\n"
        "- It is best on text like that of its training. The further a text is from it, in subject "
        "and in style, the worse is the translation.\n"
        "- A translation can read well and be wrong: words can be left out, added, or turned into "
        "their opposite. It can also repeat sentences of the training text, and its prejudices.\n"
        f"- It has seen texts of at most {longest} subwords. Longer sentences are translated in "
        "parts."
    )
    if config.decoding.split_sentences:
        yield "- It translates each sentence of a line by itself."
    if DATASETS[config.data.dataset].is_lc_norm_tok:
        yield "- It reads and writes lower-cased tokens, and not text as people write it."
    yield ""


def _repeat(config: Config) -> Iterator[str]:
    text = yaml_text.dump(_recipe(config))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    place = "" if config.data.root is None else "put the folder of the text in place of FOLDER, "
    yield (
        f"Write the recipe below into a file my.yaml, {place}and type "
        "`bash scripts/train.sh my.yaml`. It has all settings that differ from the defaults of "
        "this version of the program.\n"
    )
    yield f"{fence}yaml\n{text}{fence}\n"


def _recipe(config: Config) -> dict[str, Any]:
    """Returns the settings that differ from their defaults, without the folders of one computer."""
    recipe: dict[str, Any] = {}
    for name, value in config_file.changed(config).items():
        section, _, key = name.rpartition(".")
        if name == "model_dir":
            value = Path(value).name or "model"
        elif name == "data.root":
            value = "FOLDER"
        elif name == "data.cache":
            continue
        elif isinstance(value, str) and Path(value).is_absolute():
            value = Path(value).name
        (recipe.setdefault(section, {}) if section else recipe)[key] = value
    return recipe


def _code(value: Any) -> str:
    """Returns a value as text of one line that can't end a block of code."""
    return " ".join(str(value or "").split()).replace("`", "'")


def _plain(value: Any) -> str:
    """Returns a value as text of one line that means nothing in Markdown or HTML."""
    text = html.escape(" ".join(str(value).split()), quote=False)
    # Hubs make links of www.x.org and https://x.org.
    return re.sub(r"([\\`*_{}\[\]()#+!|~]|(?<=www)\.|:(?=//))", r"\\\1", text, flags=re.I)

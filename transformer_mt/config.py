"""The YAML schema: one class a section, every key described, and errors a person can act on.

Nothing heavy is imported here, so that a mistake in a config is reported at once.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from transformer_mt.errors import UsageError

PositiveInt = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


def _problem(message: str) -> PydanticCustomError:
    """An error about a combination of keys; pydantic reports it under the key being validated."""
    return PydanticCustomError("combination", "{message}", {"message": message})


class Section(BaseModel):
    """A section of the config: unknown keys and values of a wrong type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataConfig(Section):
    """Where the parallel text is, and which pairs of it are used."""

    dataset: Literal["files", "wmt14ende", "multi30k"] = Field(
        "files", description="files: your own; wmt14ende, multi30k: downloaded, or read from root"
    )
    root: str | None = Field(None, description="folder with the data")
    train: str = Field("train", description="prefix of PREFIX.LANG[.gz], a .tsv, or a split's name")
    dev: str | None = Field(None, description="as train; null: pairs are held out of train")
    test: str | None = Field(None, description="as train; null: pairs are held out of train")
    source_lang: str = Field(..., min_length=1, description="ending of the source files")
    target_lang: str = Field(..., min_length=1, description="ending of the target files")
    held_out: Annotated[int, Field(ge=0)] = Field(
        1000, description="pairs taken from train for each of dev and test that is null"
    )
    max_length: PositiveInt = Field(256, description="longest training sentence, in subwords")
    max_length_ratio: Annotated[float, Field(ge=1)] | None = Field(
        6.0, description="longest ratio of the two sides' lengths in training; null: any"
    )
    drop_duplicates: bool = Field(False, description="drop exact repetitions of a training pair")
    cache: str = Field("data/cache", description="folder for encoded corpora")

    @field_validator("root")
    @classmethod
    def _files_need_a_root(cls, root: str | None, info) -> str | None:
        if root is None and info.data.get("dataset") == "files":
            raise _problem("data.dataset: files needs the folder that holds them")
        return root

    @field_validator("target_lang")
    @classmethod
    def _two_languages(cls, target_lang: str, info) -> str:
        if target_lang == info.data.get("source_lang"):
            raise _problem("must differ from data.source_lang")
        known = {"wmt14ende": {"en", "de"}, "multi30k": {"en", "de"}}.get(info.data.get("dataset"))
        pair = {info.data.get("source_lang", target_lang), target_lang}
        if known and not pair <= known:
            raise _problem(f"{info.data['dataset']} has the languages en and de")
        return target_lang


class SubwordConfig(Section):
    """How text becomes subwords."""

    type: Literal["bpe", "unigram", "char", "word", "vocabulary"] = Field(
        "bpe", description="a SentencePiece model; vocabulary: text that has its BPE applied"
    )
    vocab_size: PositiveInt = Field(8000, description="subwords, special ones included")
    joint: bool = Field(True, description="one vocabulary for both sides")
    source_vocab_size: PositiveInt | None = Field(None, description="null: vocab_size")
    target_vocab_size: PositiveInt | None = Field(None, description="null: vocab_size")
    character_coverage: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of the text's characters that the vocabulary must hold"
    )
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = Field(
        "identity", description="SentencePiece's normalisation rule; identity keeps the text"
    )
    vocabulary: str | None = Field(None, description="vocabulary file, one type a line")

    @field_validator("joint")
    @classmethod
    def _a_vocabulary_is_joint(cls, joint: bool, info) -> bool:
        if not joint and info.data.get("type") == "vocabulary":
            raise _problem("subword.type: vocabulary is one vocabulary for both sides")
        return joint

    @field_validator("source_vocab_size", "target_vocab_size")
    @classmethod
    def _apart_only_if_not_joint(cls, size: int | None, info) -> int | None:
        if size is not None and info.data.get("joint"):
            raise _problem("a size of its own needs subword.joint: false")
        return size


class ModelConfig(Section):
    """The Transformer."""

    num_layers: PositiveInt = Field(6, description="layers of the encoder and of the decoder")
    num_encoder_layers: PositiveInt | None = Field(None, description="null: num_layers")
    num_decoder_layers: PositiveInt | None = Field(None, description="null: num_layers")
    d_model: PositiveInt = Field(512, description="width of the model")
    num_heads: PositiveInt = Field(8, description="attention heads")
    d_ff: PositiveInt = Field(2048, description="width of the feed-forward layers")
    norm: Literal["pre", "post"] = Field("post", description="post: the paper's")
    dropout: Probability = Field(0.1, description="of each sub-layer's output")
    embedding_dropout: Probability | None = Field(None, description="null: dropout")
    attention_dropout: Probability = Field(0.0, description="of the attention weights")
    feed_forward_dropout: Probability = Field(0.0, description="inside the feed-forward layers")
    tie_embeddings: bool = Field(
        True, description="output layer = target embedding (= source embedding if joint)"
    )
    bias: bool = Field(True, description="biases in the linear layers")

    @field_validator("num_heads")
    @classmethod
    def _heads_divide_the_width(cls, num_heads: int, info) -> int:
        d_model = info.data.get("d_model")
        if d_model is not None and d_model % num_heads:
            raise _problem(f"must divide model.d_model ({d_model})")
        return num_heads


class TrainingConfig(Section):
    """The optimisation, its schedule, and its intervals (in steps: updates of the weights)."""

    max_steps: PositiveInt | None = Field(None, description="stop after these updates")
    max_epochs: PositiveInt | None = Field(None, description="stop after these passes")
    batch_tokens: PositiveInt = Field(4096, description="padded target tokens of one update")
    device_tokens: PositiveInt = Field(4096, description="how many a process takes at once")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="update rule")
    schedule: Literal["noam", "inverse_sqrt", "constant"] = Field("noam", description="rate")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(4000, description="linear warm-up")
    learning_rate: PositiveFloat | None = Field(
        None, description="rate at the end of warm-up; null under noam: the paper's"
    )
    betas: Annotated[list[Probability], Field(min_length=2, max_length=2)] = Field(
        [0.9, 0.98], description="of adam and adamw"
    )
    epsilon: PositiveFloat = Field(1e-9, description="of adam and adamw")
    momentum: Probability = Field(0.9, description="of sgd")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="of adamw")
    label_smoothing: Probability = Field(0.1, description="share spread over the vocabulary")
    clip_norm: PositiveFloat | None = Field(None, description="of the gradient; null: none")
    log_every: PositiveInt = Field(50, description="steps between lines of metrics.jsonl")
    validate_every: PositiveInt = Field(1000, description="steps between validations")
    save_every: PositiveInt = Field(1000, description="steps between checkpoints")
    keep_checkpoints: PositiveInt = Field(5, description="how many of the last; best stays too")
    devices: PositiveInt | None = Field(None, description="processes; null: one a GPU, or one")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(1, description="of everything random")

    @field_validator("max_epochs")
    @classmethod
    def _an_end(cls, max_epochs: int | None, info) -> int | None:
        if max_epochs is None and info.data.get("max_steps", 0) is None:
            raise _problem("give training.max_steps or training.max_epochs")
        return max_epochs

    @field_validator("warmup_steps")
    @classmethod
    def _decay_needs_a_warmup(cls, warmup_steps: int, info) -> int:
        if warmup_steps == 0 and info.data.get("schedule") in ("noam", "inverse_sqrt"):
            raise _problem(f"schedule {info.data['schedule']} needs at least 1")
        return warmup_steps

    @field_validator("learning_rate")
    @classmethod
    def _only_noam_has_a_rate_of_its_own(cls, rate: float | None, info) -> float | None:
        if rate is None and info.data.get("schedule") in ("inverse_sqrt", "constant"):
            raise _problem(f"schedule {info.data['schedule']} needs a rate")
        return rate

    @field_validator("weight_decay")
    @classmethod
    def _only_adamw_decays(cls, weight_decay: float, info) -> float:
        if weight_decay and info.data.get("optimizer") in ("adam", "sgd"):
            raise _problem("needs training.optimizer: adamw")
        return weight_decay


class DecodingConfig(Section):
    """The search."""

    beam_size: PositiveInt = Field(5, description="1: greedy")
    length_penalty: Annotated[float, Field(ge=0)] = Field(
        1.0, description="alpha of ((5 + length) / 6)^alpha; 0: none"
    )
    max_length_ratio: PositiveFloat = Field(2.0, description="longest output = ratio * input ...")
    max_length_extra: Annotated[int, Field(ge=0)] = Field(20, description="... + extra subwords")
    batch_tokens: PositiveInt = Field(4096, description="padded source tokens decoded at once")


class EvaluationConfig(Section):
    """Scores."""

    tokenize: Literal["13a", "zh", "char", "intl", "none"] | None = Field(
        None, description="sacreBLEU's; null: zh for Chinese, none for BPE'd text, else 13a"
    )
    validation_beam_size: PositiveInt = Field(1, description="beam of the dev set's BLEU")
    samples: Annotated[int, Field(ge=0)] = Field(3, description="translations shown at the end")


class Config(Section):
    """A whole recipe."""

    model_dir: str = Field(..., min_length=1, description="where everything of this run goes")
    data: DataConfig
    subword: SubwordConfig = Field(default_factory=SubwordConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)

    @field_validator("subword")
    @classmethod
    def _the_vocabulary_comes_with_bped_text(cls, subword: SubwordConfig, info) -> SubwordConfig:
        data = info.data.get("data")
        if data is None:
            return subword
        if data.dataset == "wmt14ende" and subword.type != "vocabulary":
            raise _problem("data.dataset: wmt14ende is BPE'd text, it needs type: vocabulary")
        if data.dataset != "wmt14ende" and subword.type == "vocabulary" and not subword.vocabulary:
            raise _problem("type: vocabulary needs subword.vocabulary, the file with the types")
        return subword


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: `1e-9` is a number, `no` (Norwegian) is text; a key given twice is an
    error."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 (PyYAML's own attribute)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"a key must be text, not {key!r}", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )
# PyYAML's own constructor reads "010" as octal and "1_0" as ten.
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(node.value))


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads and validates a config file with `section.key=value` overrides laid over it.

    Raises:
        UsageError: naming every problem at once.
    """
    values = _parse(_read(Path(path)), str(path))
    problems: list[str] = []
    for override in overrides or []:
        problem = _apply_override(values, override)
        if problem:
            problems.append(problem)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems += [_describe(item) for item in error.errors()]
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise UsageError(f"{path}: {count}\n{lines}")
    return config


def dump(config: Config) -> str:
    """The resolved config as YAML that `load` reads back to an equal Config."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read as a config: {error}") from None


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        values = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{name}{where}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name}: expected `model_dir` and the sections {', '.join(SECTIONS)}")
    return values


def _apply_override(values: dict[str, Any], override: str) -> str | None:
    """Lays `section.key=value` over the parsed file; returns the problem, if there is one."""
    path, equals, text = override.partition("=")
    section, _, key = path.partition(".")
    if not equals or not path:
        return f"{override!r}: expected section.key=value, as in training.max_steps=1000"
    if path == "model_dir":
        values["model_dir"] = text
        return None
    if section not in SECTIONS or not key:
        return f"{path}: unknown key{_suggestion(path)}"
    target = values.setdefault(section, {})
    if not isinstance(target, dict):
        return None  # the file's own section is wrong, which is reported by the schema
    field = SECTIONS[section].model_fields.get(key)
    takes_text = field is not None and field.annotation in (str, str | None)
    if takes_text:
        target[key] = None if text in ("", "null") and field.annotation != str else text
        return None
    try:
        target[key] = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        target[key] = text
    return None


def _describe(item: dict[str, Any]) -> str:
    """One line for one of pydantic's errors: the path, the value, and what was expected."""
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown key{_suggestion(path)}"
    if item["type"] == "missing":
        return f"{path}: missing; {_expected(item['loc'])}"
    if item["type"] == "combination":
        value = item["input"]
        shown = "" if isinstance(value, dict | BaseModel) else f"{_shown(value)}: "
        return f"{path}: {shown}{item['ctx']['message']}"
    if item["type"] in ("model_type", "model_attributes_type"):
        return f"{path}: {_shown(item['input'])}: expected a section with keys of its own"
    message = {
        "int_type": "expected a whole number",
        "int_from_float": "expected a whole number",
        "float_type": "expected a number",
        "finite_number": "expected a finite number",
        "string_type": "expected text",
        "bool_type": "expected true or false",
        "list_type": "expected a list, as in [0.9, 0.98]",
    }.get(item["type"], item["msg"].replace("Input should be", "expected"))
    return f"{path}: {_shown(item['input'])}: {message}"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(location: tuple) -> str:
    """What the schema wants at a path that is missing."""
    if len(location) == 1:
        field = Config.model_fields[location[0]]
        if location[0] in SECTIONS:
            required = [
                name for name, f in SECTIONS[location[0]].model_fields.items() if f.is_required()
            ]
            keys = required or list(SECTIONS[location[0]].model_fields)[:2]
            return f"expected a section with {' and '.join(keys)}"
    else:
        field = SECTIONS[location[0]].model_fields[location[1]]
    return f"expected {field.description}"


def _suggestion(path: str) -> str:
    """The known key nearest to an unknown one: spelt alike, or the same key of another section."""
    known = ["model_dir", *SECTIONS]
    known += [f"{name}.{key}" for name, section in SECTIONS.items() for key in section.model_fields]
    last = path.split(".")[-1]
    same_key = [name for name in known if name.split(".")[-1] == last]
    if same_key:
        return f"; did you mean {' or '.join(same_key)}?"
    section = path.split(".")[0]
    nearby = [name for name in known if name.startswith(section + ".")] if "." in path else known
    match = difflib.get_close_matches(path, nearby, n=1, cutoff=0.6) or difflib.get_close_matches(
        path, known, n=1, cutoff=0.6
    )
    if match:
        return f"; did you mean {match[0]}?"
    if section in SECTIONS:
        return f"; known keys: {', '.join(SECTIONS[section].model_fields)}"
    return f"; known: model_dir, {', '.join(SECTIONS)}"

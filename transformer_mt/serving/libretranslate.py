"""LibreTranslate's API, which other programs speak: its requests and answers, and which model
answers them. https://docs.libretranslate.com/api describes it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, InstanceOf, Tag, model_validator

from transformer_mt.decoding.output import Translation
from transformer_mt.serving.kept import File
from transformer_mt.serving.models import Card, ServedModel
from transformer_mt.serving.requests import (
    LIBRE,
    OWN,
    Text,
    TranslateQuery,
    dialect_of,
    example,
    lines_of,
)
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.languages import primary, standard

AUTO = "auto"
# Weblate sends [X7X] in place of a placeholder or a tag that begins at character 7, and looks for
# this in the translation. Models have not learnt such text, so it is protected whatever else is.
PLACEHOLDER = r"\[X[0-9]+X\]"

Texts = Annotated[list[Text], Field(fail_fast=True)]
Language = Annotated[str, Field(min_length=1, max_length=100)]


class LibreTranslateQuery(BaseModel):
    """A request in the form of LibreTranslate. Values of a form are strings, and keys that are not
    known are left alone, as LibreTranslate does."""

    model_config = example(q="Where is the station?", source="en", target="de")

    q: Text | Texts = Field(description="What to translate: a text, or a list of texts.")
    source: Language = Field(
        description="The code of its language. `auto` does not detect it, but stands for the only "
        "language from which a model translates into `target`."
    )
    target: Language = Field(description="The code of the language to translate into.")
    format: Literal["text", "html"] = Field("text", description="What the texts are.")
    alternatives: int = Field(0, ge=0, description="The number of further translations per text.")
    api_key: str | None = Field(
        None, description="The token, if the service needs one and no header has it."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty_values(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: one for key, one in values.items() if key == "q" or one not in ("", None)}

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


class FileQuery(BaseModel):
    """The form with which a file is sent."""

    file: InstanceOf[File]
    source: Language
    target: Language


class DetectedLanguage(BaseModel):
    language: str
    confidence: float = Field(description="Always 0, because the language was not detected.")


class LibreTranslateAnswer(BaseModel):
    """Each key has one value if `q` was a text, or a list of them if it was a list."""

    model_config = example(translatedText="Wo ist der Bahnhof?")

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = Field(
        None, description="Further translations, if they were asked for."
    )
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = Field(
        None, description="The language that `auto` stood for."
    )


class FileAnswer(BaseModel):
    translatedFileUrl: str = Field(
        description="The address of the translated file, which is kept for ten minutes."
    )


class LanguageAnswer(BaseModel):
    """A language that a model translates from or into."""

    model_config = example(code="en", name="English", targets=["de"])

    code: str
    name: str = Field(description="In English.")
    targets: list[str] = Field(description="The languages to translate into from this one.")


class LibreTranslateProblem(BaseModel):
    """What every answer in LibreTranslate's form with a status from 400 on holds."""

    error: str = Field(description="What is wrong, and what to do.")


# The form of /translate_file, in the description.
FILE_FORM = {
    "type": "object",
    "required": ["file", "source", "target"],
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        **{key: {"type": "string"} for key in ("source", "target", "api_key")},
    },
}
# What /translate takes.
AnyQuery = Annotated[
    Annotated[TranslateQuery, Tag(OWN)] | Annotated[LibreTranslateQuery, Tag(LIBRE)],
    Discriminator(dialect_of),
]


# ---- Texts ----


def lines_of_texts(texts: list[str]) -> tuple[list[str], list[list[str]]]:
    """The lines of all texts, and what ends those of each text."""
    split = [lines_of(text) for text in texts]
    return [line for lines, _ in split for line in lines], [ends for _, ends in split]


def versions_of(ends: list[list[str]], translations: list[Translation]) -> list[list[str]]:
    """The translations of each text, best first, given what `lines_of_texts` and the model made of
    them. In the second one, each line has its second best translation, and so on; a line that has
    fewer has its best one."""
    lines = iter(translations)
    return [list(_versions(list(itertools.islice(lines, len(own))), own)) for own in ends]


def _versions(lines: list[Translation], ends: list[str]) -> Iterator[str]:
    for number in range(max(len(line.outputs) for line in lines)):
        outputs = [line.outputs[number if number < len(line.outputs) else 0] for line in lines]
        yield "".join(output.text + end for output, end in zip(outputs, ends, strict=True))


def answer(
    query: LibreTranslateQuery, source: str, versions: list[list[str]]
) -> LibreTranslateAnswer:
    """The answer to a request.

    Args:
        source: the code of the language that the model translates from.
        versions: the translations of each text, best first.
    """
    best = [own[0] for own in versions]
    others = [own[1:] for own in versions] if query.alternatives else None
    code = standard(source)
    detected = DetectedLanguage(language=code, confidence=0) if query.source == AUTO else None
    if isinstance(query.q, str):
        return LibreTranslateAnswer(
            translatedText=best[0], alternatives=others and others[0], detectedLanguage=detected
        )
    return LibreTranslateAnswer(
        translatedText=best,
        alternatives=others,
        detectedLanguage=detected and [detected] * len(best),
    )


# ---- Languages ----


def choose(models: Iterable[ServedModel], source: str, target: str) -> ServedModel:
    """The model that translates from one language into another.

    Codes of one language fit each other, as in the rest of the program: zh, zh-Hans and zh_CN. Of
    several models, the one with the nearest codes is taken, or else the first one.

    Args:
        source: a code, or AUTO if any language will do.

    Raises:
        UsageError: there is no such model, or AUTO can mean several languages.
    """
    models = list(models)
    into = [model for model in models if _fit(model.card.target_lang, target)]
    fitting = [m for m in into if source == AUTO or _fit(m.card.source_lang, source)]
    if not fitting:
        pairs = dict.fromkeys(f"{m.card.source_lang}-{m.card.target_lang}" for m in models)
        name = f"into {target}" if source == AUTO else f"from {source} into {target}"
        raise UsageError(f"no model translates {name}. There are models for {', '.join(pairs)}")
    languages = {primary(model.card.source_lang) for model in fitting}
    if source == AUTO and len(languages) > 1:
        raise UsageError(
            f"source: this service does not detect languages. Give the code of one of these: "
            f"{', '.join(sorted(languages))}"
        )
    return max(fitting, key=lambda model: _nearness(model.card, source, target))


def languages(cards: Iterable[Card]) -> list[LanguageAnswer]:
    """The languages of models. A language with a region or a script is there without it too,
    because many clients know only short codes, and compare them letter by letter."""
    targets: dict[str, dict[str, None]] = {}
    for card in cards:
        own = _codes(card.target_lang)
        for code in _codes(card.source_lang):
            targets.setdefault(code, {}).update(own)
        for code in own:
            targets.setdefault(code, {})
    return [
        LanguageAnswer(code=code, name=name_of(code), targets=list(found))
        for code, found in targets.items()
    ]


def _codes(language: str) -> dict[str, None]:
    return dict.fromkeys([standard(language), primary(language)])


def name_of(code: str) -> str:
    """The English name of a language in the standard form of its code, such as Portuguese (Brazil)
    for pt-BR. A code that is not registered is its own name."""
    first, *rest = code.split("-")
    names = _registered()
    name = re.sub(r" \(.*", "", names.get(first, code))  # without "(macrolanguage)"
    # Han (Simplified variant) is the name of a script, in which the last words matter.
    further = [re.sub(r".* \((.*)\)", r"\1", names[one]) for one in rest if one in names]
    return f"{name} ({', '.join(further)})" if further and first in names else name


@cache
def _registered() -> dict[str, str]:
    """The names of languages, scripts and regions in the registry of IANA, by their codes."""
    from langcodes.registry_parser import parse_registry

    kinds = ("language", "script", "region")
    entries = [entry for entry in parse_registry() if entry["Type"] in kinds]
    return {entry["Subtag"]: entry["Description"][0] for entry in entries}


def _fit(known: str, asked: str) -> bool:
    return primary(known) == _subtags(asked)[0]


def _nearness(card: Card, source: str, target: str) -> int:
    """How many regions and scripts that a client asks for are those of a model. What the code of a
    model leaves out is what is likely: zh-Hant is nearer to zh-TW than zh-Hans is."""
    sides = (card.source_lang, source), (card.target_lang, target)
    return sum(part in _likely(known) for known, asked in sides for part in _subtags(asked)[1:])


def _likely(language: str) -> list[str]:
    """The parts of a model's code, with the likely script and region."""
    from langcodes import Language as Code
    from langcodes.tag_parser import LanguageTagError

    try:
        return Code.get(standard(language)).maximize().to_tag().lower().split("-")
    except LanguageTagError:
        return []


def _subtags(asked: str) -> list[str]:
    """The parts of a code that a client gave. Only short ones are looked up, since a result is kept
    as long as the program runs, and a client could fill the memory."""
    first, *rest = re.split("[-_]", asked.lower())
    return [primary(first) if re.fullmatch("[a-z]{2,3}", first) else first, *rest]

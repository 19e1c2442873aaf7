"""What requests and answers consist of, in JSON: their keys, how text becomes lines and lines text,
and what is answered to errors.

Requests have two forms: this service's own, which is here, and that of LibreTranslate, which is in
libretranslate.py. An answer has the form of its request.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import os
import re
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from transformer_mt.config import problems
from transformer_mt.data.terms import Term, parse
from transformer_mt.decoding.checks import KINDS, LOSSES
from transformer_mt.serving.batching import Unavailable
from transformer_mt.serving.models import Card
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError, UserError

if TYPE_CHECKING:
    from transformer_mt.decoding.output import Translation

_LINE_END = re.compile(r"(\r\n|\r|\n)")
# The keys of an answer that are there if `alignment` was true.
WITH_ALIGNMENT = ("alignment", "words", "parts", "source_words", "source_parts")
# The warnings of an answer.
MOST_WARNINGS = 10
# The terms of a request, the strings of each, and the characters of a string, as in page/terms.js.
MOST_TERMS = 2_000
MOST_COLUMNS = 20
LONGEST_COLUMN = 200

# A pair of numbers: a link between words, or the place of a word.
Pair = tuple[int, int]
Beam = Annotated[int, Field(ge=1)]
# With a length, pydantic refuses half of a character, which JSON can have, but no text.
Text = Annotated[str, Field(min_length=0)]
Line = Annotated[str, Field(pattern=r"^[^\r\n]*$")]
# A request is checked up to its first item that is wrong: one of 1 MB can have 500,000 of them.
Lines = Annotated[list[Line], Field(fail_fast=True)]
# A term with its translation and the forms of that.
Column = Annotated[str, Field(max_length=LONGEST_COLUMN)]
Columns = Annotated[list[Column], Field(max_length=MOST_COLUMNS)]


# The two forms of requests.
OWN, LIBRE = "own", "libretranslate"


def dialect_of(values: Any) -> str:
    """The form of a request: LIBRE if it has keys that only LibreTranslate's has."""
    is_libre = isinstance(values, dict) and "text" not in values
    return LIBRE if is_libre and {"q", "source", "target"} & values.keys() else OWN


def example(**values: Any) -> ConfigDict:
    """The configuration of a class that has an example in the description."""
    return ConfigDict(json_schema_extra={"examples": [values]})


class Query(BaseModel):
    """The base of requests."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = Field(
        None, description="The name of the model. It may be left out if there is one model."
    )

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                key = key[:100]  # The time of what follows grows with its length.
                near = difflib.get_close_matches(key, cls.model_fields, n=1)
                hint = (
                    f"did you mean {near[0]}" if near else f"known: {', '.join(cls.model_fields)}"
                )
                raise ValueError(f"{problems.printable(key)}: unknown key; {hint}")
        return values


class TranslateQuery(Query):
    model_config = example(text="Where is the station?\nI am hungry.")

    text: Text | Lines = Field(
        description="What to translate. Each line of a string is translated by itself, and the "
        "answer has the same line ends. In a list, each item is a line."
    )
    n_best: Beam | None = Field(
        None, description="The number of different translations per line, in `outputs`."
    )
    beam_size: Beam | None = Field(
        None, description="The number of hypotheses of beam search (default: that of the model)."
    )
    alignment: bool = Field(
        False, description="Whether to tell which words of source and translation belong together."
    )
    scores: bool = Field(False, description="Whether to tell the score of each translation.")
    terms: list[Columns] | None = Field(
        None,
        max_length=MOST_TERMS,
        description="How terms are translated: lists of a term, its translation, and further forms "
        'of that. If the last item is "forbidden", the translation is not used. A model whose '
        "`terms` in /models is false refuses this.",
        examples=[[["cell", "Zelle", "Zellen"], ["box", "Kiste", "forbidden"]]],
    )

    def own_terms(self) -> list[Term] | None:
        """
        Raises:
            HTTPException: a term has no translation.
        """
        found = []
        for number, columns in enumerate(self.terms or []):
            try:
                found.append(parse(columns))
            except ValueError as error:
                raise HTTPException(422, f"terms[{number}]: {error}") from None
        return None if self.terms is None else found


class PartsQuery(Query):
    model_config = example(text=["Where is the station? I am hungry."])

    text: Lines = Field(description="Lines.")


class AttentionQuery(Query):
    model_config = example(source="Where is the station?", target="Wo ist der Bahnhof?")

    source: Text = Field(description="A sentence.")
    target: Text = Field(description="Its translation.")


# JSON has no numbers that are not finite.
Score = Annotated[
    float | None,
    AfterValidator(lambda score: round(score, 4) if math.isfinite(score) else None),
    Field(description="The log-probability divided by the length penalty."),
]
Alignment = Annotated[
    list[Pair] | None,
    Field(
        description="Pairs [source word, target word], both counted from 0, if `alignment` was "
        "true."
    ),
]
Places = Annotated[
    list[Pair] | None,
    Field(
        description="The place of each word in its line, or of each part that is translated by "
        "itself, if `alignment` was true: [start, end], in Unicode code points. The end is not "
        "part of the word."
    ),
]


class WarningAnswer(BaseModel):
    """What was lost in a translation, or looks wrong in it."""

    model_config = ConfigDict(from_attributes=True)

    kind: str = Field(description=f"One of {', '.join(KINDS)}.")
    what: str = Field(description="What it is, such as `{name} is missing`.")


class OutputAnswer(BaseModel):
    """A translation of a line."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    score: Score = None
    alignment: Alignment = None
    words: Places = None
    parts: Places = None
    warnings: list[WarningAnswer] | None = Field(
        None,
        description="What was lost in the translation (kinds "
        f"{', '.join(LOSSES)}) or looks wrong in it, if anything.",
    )


class TranslationAnswer(OutputAnswer):
    """The best translation of a line and, if `n_best` was given, all of them, best first."""

    source_words: Places = None
    source_parts: Places = None
    protected_by: str | None = Field(
        None,
        description="How the protected spans of the line, such as tags, came into its "
        "translations, if it has any: by the `search`, by the word `alignment`, or by `cutting` "
        "the line at them.",
    )
    outputs: list[OutputAnswer] | None = None


class TranslateAnswer(BaseModel):
    model_config = example(
        model="demo",
        text="Wo ist der Bahnhof?\nIch habe Hunger.",
        translations=[{"text": "Wo ist der Bahnhof?"}, {"text": "Ich habe Hunger."}],
    )

    model: str
    text: str | None = Field(
        None, description="The whole translation, if the text of the request was a string."
    )
    translations: list[TranslationAnswer] = Field(description="One for each line, in order.")
    warnings: list[str] | None = Field(
        None,
        description="What is wrong with lines, if anything is: a sentence that was cut, unknown "
        "text, a translation that has reached its greatest length. At most 10.",
    )


class PartAnswer(BaseModel):
    """A sentence of a line, or a part of one that is too long."""

    start: int = Field(description="Its place in the line, in Unicode code points.")
    end: int
    text: str = Field(description="What to translate, as a line of its own.")
    before: str = Field(description="What stands before its translation in that of the line.")


class PartsAnswer(BaseModel):
    parts: list[list[PartAnswer]] = Field(description="Those of each line, in order.")


class AttentionAnswer(BaseModel):
    url: str = Field(
        description="The path of the page, such as /attention/NAME. It is kept for ten minutes."
    )


class ModelsAnswer(BaseModel):
    models: list[Card]


class HealthAnswer(BaseModel):
    status: str = Field(description="`ok` if every model can translate, or `loading`.")


class Problem(BaseModel):
    """What every answer with a status from 400 on holds."""

    detail: str = Field(description="What is wrong, where, and what to do.")


def split(text: str | list[str], most_lines: int) -> tuple[list[str], list[str]]:
    """The lines of a request's text, and what ends each of them.

    Raises:
        HTTPException: there are too many.
    """
    lines, ends = (text, [""] * len(text)) if isinstance(text, list) else lines_of(text)
    require_few(len(lines), most_lines)
    return lines, ends


def lines_of(text: str) -> tuple[list[str], list[str]]:
    """The lines of a text, and what ends each of them."""
    parts = _LINE_END.split(text)
    lines, ends = parts[::2], [*parts[1::2], ""]
    if len(lines) > 1 and not lines[-1]:  # Nothing follows the last line end.
        lines, ends = lines[:-1], ends[:-1]
    return lines, ends


def require_few(lines: int, most_lines: int) -> None:
    """
    Raises:
        HTTPException: there are too many lines.
    """
    if lines > most_lines:
        raise HTTPException(
            422,
            f"the request has too many lines; a request may have {most_lines:,} lines. Send it in "
            "several requests",
        )


def answer(
    query: TranslateQuery,
    model: str,
    ends: list[str],
    translations: list[Translation],
    warnings: list[str],
) -> str:
    """The answer to a request as JSON, given what `split` and the model made of it."""
    hidden: dict[str, Any] = {} if query.scores else {"score": True}
    if not query.alignment:
        hidden |= dict.fromkeys(WITH_ALIGNMENT, True)
    outputs = True if query.n_best is None else {"__all__": hidden}
    answers = [TranslationAnswer.model_validate(found) for found in translations]
    for own, found in zip(answers, translations, strict=True):
        own.parts = found.outputs[0].parts
        for output in [own] if query.n_best is None else [own, *(own.outputs or [])]:
            checked = map(WarningAnswer.model_validate, found.check(output.text))
            output.warnings = list(checked) or None
    whole = "".join(own.text + end for own, end in zip(answers, ends, strict=True))
    return TranslateAnswer(
        model=model,
        text=whole if isinstance(query.text, str) else None,
        translations=answers,
        warnings=warnings[:MOST_WARNINGS] or None,
    ).model_dump_json(
        exclude_none=True,
        exclude={"translations": {"__all__": hidden | {"outputs": outputs}}},
    )


# ---- Errors ----


def answer_to(request: Request, error: BaseException) -> Response:
    """The answer to a request that raised an error. It is JSON whose text says what is wrong,
    where, and what to do: `{"detail": TEXT}`, or `{"error": TEXT}` in the form of LibreTranslate.

    An error that nobody expected is reported on stderr, and answered with 503, because another try
    may succeed.
    """
    status, text, headers = _told(error)
    is_libre = getattr(request.state, "is_libre", False)
    if isinstance(error, RequestValidationError):
        is_libre = is_libre or dialect_of(error.body) == LIBRE
    if is_libre:
        # LibreTranslate has one status for all that is wrong with a request.
        return JSONResponse({"error": text}, 400 if status == 422 else status, headers)
    return JSONResponse({"detail": text}, status, headers)


def _told(error: BaseException) -> tuple[int, str, Mapping[str, str] | None]:
    """The status of the answer to an error, its text, and its headers."""
    if isinstance(error, RequestValidationError):
        return *_explained(error), None
    if isinstance(error, HTTPException):
        return error.status_code, _sentence(error), error.headers
    if isinstance(error, UsageError):
        return 422, str(error), None
    status, seconds = 503, 5
    if isinstance(error, Unavailable):
        status, seconds = error.status, error.retry_after
    if isinstance(error, UserError):
        text = str(error)
    elif isinstance(error, asyncio.CancelledError):
        text = "the service is stopping. Try again later"
    else:
        text = "an internal error; the log names it"
        _report(error)
    return status, text, {"Retry-After": str(seconds)}


def _sentence(error: HTTPException) -> str:
    """What Starlette and FastAPI say in two words ("Not Found"), in a sentence."""
    addresses = "/docs lists the addresses of the service and what they take"
    if error.detail == "Not Found":
        return f"there is nothing at this address. {addresses}"
    if error.status_code == 405:
        return f"this address does not take this method. {addresses}"
    if error.detail == "There was an error parsing the body":  # what FastAPI says of half a JSON
        return "the request is not JSON in UTF-8"
    return error.detail


def _explained(error: RequestValidationError) -> tuple[int, str]:
    """The status of the answer to a request that is not what its path expects, and its text."""
    items = error.errors()
    if items[0]["type"] == "json_invalid":
        return 400, f"the request is not JSON in UTF-8: {items[0]['ctx']['error']}"
    # Of what is neither a string nor a list of strings, the last error is about the list.
    return 422, ". ".join({_place(item)[:1]: _described(item) for item in items}.values())


def _place(item: Any) -> tuple[Any, ...]:
    """Where an error is, without "body" and the form of the request."""
    place = item["loc"][1:]
    return place[1:] if place[:1] in ((OWN,), (LIBRE,)) else place


def _described(item: Any) -> str:
    place = _place(item)
    if item["type"] == "value_error":  # of `Query`
        return str(item["ctx"]["error"])
    if not place or item["type"] in ("model_type", "model_attributes_type"):
        return "expected a JSON object"
    if item["type"] == "missing":
        return f"{place[0]}: missing"
    if place[0] in ("text", "q") and len(place) > 2:
        line = "; it is one line, without a line end" if place[0] == "text" else ""
        return f"{place[0]}[{place[2]}]: expected a string{line}"
    if place[0] in ("text", "q"):
        return f"{place[0]}: expected a string or a list of strings"
    if place[0] == "terms" and len(place) > 1:
        most = f"{MOST_COLUMNS} strings of at most {LONGEST_COLUMN} characters"
        return f"terms[{place[1]}]: expected a list of at most {most}"
    if place[0] == "terms":
        return f"terms: expected a list of at most {MOST_TERMS:,} terms, each a list of strings"
    return problems.describe({**item, "loc": place})


def _report(error: BaseException) -> None:
    """Prints where an error happened. Its message may hold text of a request, so that it is only
    printed for debugging."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {os.path.basename(place.filename)}, line {place.lineno}"
    say(f"internal error: {where}. TRANSFORMER_MT_DEBUG=1 shows more")
    if os.environ.get("TRANSFORMER_MT_DEBUG"):
        traceback.print_exception(error)

"""What requests and answers consist of, in JSON: their keys, how text becomes lines and lines text,
and what is answered to errors."""

from __future__ import annotations

import asyncio
import difflib
import math
import os
import re
import traceback
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from transformer_mt.config import problems
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

# A pair of numbers: a link between words, or the place of a word.
Pair = tuple[int, int]
Beam = Annotated[int, Field(ge=1)]
# With a length, pydantic refuses half of a character, which JSON can have, but no text.
Text = Annotated[str, Field(min_length=0)]
Line = Annotated[str, Field(pattern=r"^[^\r\n]*$")]
# A request is checked up to its first item that is wrong: one of 1 MB can have 500,000 of them.
Lines = Annotated[list[Line], Field(fail_fast=True)]


def _example(**values: Any) -> ConfigDict:
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
    model_config = _example(text="Where is the station?\nI am hungry.")

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


class PartsQuery(Query):
    model_config = _example(text=["Where is the station? I am hungry."])

    text: Lines = Field(description="Lines.")


class AttentionQuery(Query):
    model_config = _example(source="Where is the station?", target="Wo ist der Bahnhof?")

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


class OutputAnswer(BaseModel):
    """A translation of a line."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    score: Score = None
    alignment: Alignment = None
    words: Places = None
    parts: Places = None


class TranslationAnswer(OutputAnswer):
    """The best translation of a line and, if `n_best` was given, all of them, best first."""

    source_words: Places = None
    source_parts: Places = None
    outputs: list[OutputAnswer] | None = None


class TranslateAnswer(BaseModel):
    model_config = _example(
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
    if isinstance(text, list):
        lines, ends = text, [""] * len(text)
    else:
        parts = _LINE_END.split(text, most_lines)
        lines, ends = parts[::2], [*parts[1::2], ""]
        if len(lines) > 1 and not lines[-1]:  # Nothing follows the last line end.
            lines, ends = lines[:-1], ends[:-1]
    if len(lines) > most_lines:
        raise HTTPException(
            422,
            f"the request has too many lines; a request may have {most_lines:,} lines. Send it in "
            "several requests",
        )
    return lines, ends


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


def answer_to(request: Request | None, error: BaseException) -> Response:
    """The answer to a request that raised an error: JSON, `{"detail": TEXT}`, whose text says what
    is wrong, where, and what to do.

    An error that nobody expected is reported on stderr, and answered with 503, because another try
    may succeed.
    """
    if isinstance(error, RequestValidationError):
        status, detail = _explained(error)
        return JSONResponse({"detail": detail}, status)
    if isinstance(error, HTTPException):
        return JSONResponse({"detail": _sentence(error)}, error.status_code, error.headers)
    if isinstance(error, UsageError):
        return JSONResponse({"detail": str(error)}, 422)
    status, seconds = 503, 5
    if isinstance(error, Unavailable):
        status, seconds = error.status, error.retry_after
    if isinstance(error, UserError):
        detail = str(error)
    elif isinstance(error, asyncio.CancelledError):
        detail = "the service is stopping. Try again later"
    else:
        detail = "an internal error; the log names it"
        _report(error)
    return JSONResponse({"detail": detail}, status, {"Retry-After": str(seconds)})


def _sentence(error: HTTPException) -> str:
    """What Starlette and FastAPI say in two words ("Not Found"), in a sentence."""
    addresses = "/docs lists the addresses of the service and what they take"
    if error.detail == "Not Found":
        return f"there is nothing at this address. {addresses}"
    if error.status_code == 405:
        return f"this address does not take this method. {addresses}"
    return "the request is not JSON in UTF-8" if error.status_code == 400 else error.detail


def _explained(error: RequestValidationError) -> tuple[int, str]:
    """The status of the answer to a request that is not what its path expects, and its text."""
    items = error.errors()
    if items[0]["type"] == "json_invalid":
        return 400, f"the request is not JSON in UTF-8: {items[0]['ctx']['error']}"
    # Of what is neither a string nor a list of strings, the last error is about the list.
    return 422, ". ".join({item["loc"][1:2]: _described(item) for item in items}.values())


def _described(item: Any) -> str:
    place = item["loc"][1:]  # without "body"
    if item["type"] == "value_error":  # of `Query`
        return str(item["ctx"]["error"])
    if not place or item["type"] in ("model_type", "model_attributes_type"):
        return "expected a JSON object"
    if item["type"] == "missing":
        return f"{place[0]}: missing"
    if place[0] == "text" and len(place) > 2:
        return f"text[{place[2]}]: expected a string; it is one line, without a line end"
    if place[0] == "text":
        return "text: expected a string or a list of strings"
    return problems.describe({**item, "loc": place})


def _report(error: BaseException) -> None:
    """Prints where an error happened. Its message may hold text of a request, so that it is only
    printed for debugging."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {os.path.basename(place.filename)}, line {place.lineno}"
    say(f"internal error: {where}. TRANSFORMER_MT_DEBUG=1 shows more")
    if os.environ.get("TRANSFORMER_MT_DEBUG"):
        traceback.print_exception(error)

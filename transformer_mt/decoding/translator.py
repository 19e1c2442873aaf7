"""Text in, text out: one line for one line, whatever the line holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.assembly import build_model, load_weights
from transformer_mt.config import DecodingConfig
from transformer_mt.console import warn
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords, WordVocabulary
from transformer_mt.decoding.search import beam_search
from transformer_mt.files import byte_lines
from transformer_mt.model.transformer import DecoderCache, Transformer
from transformer_mt.model_directory import ModelDirectory

# Lines read before the first is put out: enough for batches of equal lengths.
WINDOW = 2_000
# Languages written without spaces: the parts of an over-long line are joined without one.
WITHOUT_SPACES = {"zh", "ja", "th", "lo", "km", "my"}


class Translator:
    """Translates lines with one model. Not safe for use from several threads at once."""

    def __init__(
        self,
        model: Transformer,
        subwords: Subwords,
        decoding: DecodingConfig,
        max_length: int,
        target_lang: str,
    ) -> None:
        """
        Args:
            max_length: of the source, in subwords; longer lines are translated in parts.
        """
        self._model = model
        self._source = subwords.source
        self._target = subwords.target
        self._decoding = decoding
        self._max_length = max_length
        language = re.split("[-_]", target_lang.lower())[0]  # of zh-CN, zh_Hant, ...
        self._glue = "" if language in WITHOUT_SPACES else " "

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        checkpoint: str | None = None,
        decoding: Callable[[DecodingConfig], DecodingConfig] = lambda config: config,
    ) -> Translator:
        """The translator of a model directory, on the device Paddle uses.

        Args:
            checkpoint: step_N, best or last; None is the best.
            decoding: makes the settings to use from those of the model's config.

        Raises:
            UserError: the directory or the checkpoint is missing or damaged.
        """
        directory = ModelDirectory(model_dir)
        config = directory.load_config()
        chosen = directory.checkpoint(checkpoint)
        subwords = directory.load_subwords()
        model = build_model(config.model, subwords)
        load_weights(chosen, model)
        return cls(
            model,
            subwords,
            decoding(config.decoding),
            config.data.max_length,
            config.data.target_lang,
        )

    def translate(
        self,
        lines: Iterable[str],
        finished: Callable[[int], object] = lambda count: None,
        window_size: int | None = None,
    ) -> Iterator[str]:
        """Yields one translation for each line, in order; an empty line gives an empty line.

        Args:
            finished: called with the number of lines that have just been translated.
            window_size: lines read before the first is put out; None is WINDOW. Any number of
                windows fits in memory.
        """
        iterator = iter(lines)
        first = 1
        while window := list(islice(iterator, window_size or WINDOW)):
            yield from self._translate_window(window, first, finished)
            first += len(window)

    def _translate_window(
        self, lines: list[str], first: int, finished: Callable[[int], object]
    ) -> list[str]:
        parts: list[list[int]] = []  # source ids
        owners: list[int] = []  # the line that each part belongs to
        for index, line in enumerate(lines):
            ids = self._source.encode(line) if line.strip() else []
            if len(ids) > self._max_length:
                number = -(-len(ids) // self._max_length)
                warn(
                    f"line {first + index}: {len(ids)} subwords, translated in {number} parts of "
                    f"at most {self._max_length}"
                )
            self._warn_of_unknown(ids, first + index)
            for start in range(0, len(ids), self._max_length):
                parts.append(ids[start : start + self._max_length])
                owners.append(index)
        finished(len(lines) - len(set(owners)))
        outputs: list[list[str]] = [[] for _ in lines]
        translated = self._translate_parts(parts, owners, finished)
        for owner, text in zip(owners, translated, strict=True):
            outputs[owner].append(text)
        # A vocabulary may hold characters that would end the line.
        return [re.sub(r"[\r\n]", " ", self._glue.join(texts)) for texts in outputs]

    def _translate_parts(
        self, parts: list[list[int]], owners: list[int], finished: Callable[[int], object]
    ) -> list[str]:
        """Translates the longest first, so that memory runs out at once or not at all."""
        texts = [""] * len(parts)
        left_of_line: dict[int, int] = {}
        for owner in owners:
            left_of_line[owner] = left_of_line.get(owner, 0) + 1
        order = sorted(range(len(parts)), key=lambda i: -len(parts[i]))
        start = 0
        while start < len(order):
            rows = max(1, self._decoding.batch_tokens // (len(parts[order[start]]) + 1))
            batch = order[start : start + rows]
            for index, ids in zip(batch, self._search([parts[i] for i in batch]), strict=True):
                texts[index] = self._target.decode(ids)
                left_of_line[owners[index]] -= 1
            finished(sum(left_of_line[owner] == 0 for owner in {owners[i] for i in batch}))
            start += rows
        return texts

    def _search(self, rows: list[list[int]]) -> list[list[int]]:
        """The ids of the best translation of each source sentence."""
        decoding = self._decoding
        source = paddle.to_tensor(encoded_rows(rows, self._source.pad, self._source.eos))
        lengths = np.array([len(row) for row in rows])
        max_lengths = lengths * decoding.max_length_ratio + decoding.max_length_extra
        was_training = self._model.training
        self._model.eval()
        try:
            with paddle.no_grad():
                hypotheses = beam_search(
                    _ModelStepper(self._model, source),
                    max_lengths.astype(np.int64) + 1,
                    bos=self._target.bos,
                    eos=self._target.eos,
                    forbidden=(self._target.pad, self._target.bos, self._target.unk),
                    beam_size=decoding.beam_size,
                    alpha=decoding.length_penalty,
                )
        finally:
            if was_training:
                self._model.train()
        return [hypothesis.ids for hypothesis in hypotheses]

    def _warn_of_unknown(self, ids: list[int], line: int) -> None:
        """Text without its BPE given to a model of BPE'd text is mostly unknown words."""
        if isinstance(self._source, WordVocabulary):
            unknown = ids.count(self._source.unk)
            if unknown > len(ids) // 2:
                warn(
                    f"line {line}: {unknown} of {len(ids)} tokens are not in the vocabulary; this "
                    "model reads tokenised text with its BPE applied"
                )


class _ModelStepper:
    """A batch of source sentences as the search sees it."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self._model = model
        self._cache: DecoderCache = model.start_cache(model.encode(source), source)

    def logits(self, ids: np.ndarray) -> Tensor:
        return self._model.decode_step(paddle.to_tensor(ids), self._cache)

    def reorder(self, index: np.ndarray) -> None:
        self._cache.reorder(paddle.to_tensor(index))


def input_lines(path: Path) -> Iterator[str]:
    """The lines of a file to translate. Bytes that are not UTF-8 become U+FFFD, with a warning:
    a bad line is no reason to lose the others."""
    return decoded(byte_lines(path), str(path))


def decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            warn(f"{name}, line {number}: not UTF-8; the bytes that are not became U+FFFD")
            text = line.decode("utf-8", errors="replace")
        yield text.removeprefix("\ufeff") if number == 1 else text

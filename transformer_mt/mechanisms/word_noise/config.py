"""The config section `word_noise`."""

from typing import Annotated, Any

from pydantic import Field

from transformer_mt.config.section import Probability, Problems, Section


class WordNoiseConfig(Section):
    """Word dropout and replacement: the model is trained on text in which some subwords are missing
    or wrong (Takase and Kiyono 2021, arXiv 2104.01853). It costs almost no time."""

    source_dropout: Probability = 0.0
    """The share of the source subwords whose embeddings are zero."""

    target_dropout: Probability = 0.0
    """The share of the target subwords whose embeddings are zero when the decoder reads them."""

    source_replacement: Probability = 0.0
    """The share of the source subwords that are replaced by random ones."""

    target_replacement: Probability = 0.0
    """The share of the target subwords that are replaced by random ones when the decoder reads
    them. The decoder is still trained to predict the true ones."""

    sentences: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the sentences that get noise. UniDrop leaves half of the sentences as they are
    (Wu et al. 2021, arXiv 2104.04946)."""

    @property
    def is_on(self) -> bool:
        """Whether any of the shares is above 0."""
        return any(
            (
                *(self.source_dropout, self.target_dropout),
                *(self.source_replacement, self.target_replacement),
            )
        )


def rules(config: Any) -> Problems:
    """
    - `word_noise` cannot be combined with `model.non_autoregressive`.
    """
    if config.word_noise.is_on and config.model.non_autoregressive:
        keys = [f"word_noise.{key}" for key, value in config.word_noise if value]
        message = "needs model.non_autoregressive: null, whose decoder reads masks"
        yield (keys[0], "model.non_autoregressive"), message

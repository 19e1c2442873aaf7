"""Multi30k for users of PaddleNLP. Importing this module imports PaddleNLP."""

from collections.abc import Iterator

from paddlenlp.datasets import DatasetBuilder, IterDataset, MapDataset

from transformer_mt.data.datasets.multi30k import NAMES, Multi30k, find


class Multi30kBuilder(DatasetBuilder):
    """`Multi30kBuilder(lazy=...).read_datasets(splits=["train"])` gives examples {"source",
    "target"}, English to German."""

    SPLITS = NAMES

    def _get_data(self, mode: str, **kwargs) -> list[str]:
        return [str(find(mode, lang, None)) for lang in Multi30k.languages]

    def read(self, filename: list[str], split: str = "train") -> MapDataset | IterDataset:
        """As PaddleNLP's, but a lazy dataset can be iterated more than once."""
        return IterDataset(lambda: self._read(filename)) if self.lazy else super().read(filename)

    def _read(self, filename: list[str], *args) -> Iterator[dict[str, str]]:
        return Multi30k.read(filename)

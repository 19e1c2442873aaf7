"""WMT14 English-German as PaddleNLP distributes it: BPE'd text, and the tokenised text of the same
sentences."""

from collections.abc import Iterator
from pathlib import Path

from transformer_mt.data.datasets import files
from transformer_mt.utils.errors import UserError

STEMS = {"train": "train.tok.clean", "dev": "newstest2013.tok", "test": "newstest2014.tok"}


class WMT14EnDe(files.Dataset):
    """The folders wmt14_ende_data_bpe (BPE'd text) and wmt14_ende_data (references) in `root`."""

    languages = ("en", "de")
    splits = ("train", "dev", "test")
    vocabulary_types = 33_708
    origin = "[WMT14](https://www.statmt.org/wmt14/), as PaddleNLP distributes it, with BPE applied"
    licence = "for research; its sources have their own terms"

    def find(
        self, root: str | None, name: str, value: str, languages: tuple[str, str]
    ) -> files.SplitFiles:
        corpus, stem = _root(root), STEMS[value]
        source, target = (
            _first_matching(corpus, f"{stem}.bpe.*.{lang}", f"data.{name}") for lang in languages
        )
        reference = None
        if "train" not in (name, value):
            names = [f"{stem}.{languages[1]}"]
            reference = files.first_existing(corpus / "wmt14_ende_data", names, f"data.{name}")
        return files.SplitFiles((source, target), reference)

    def vocabulary(self, root: str | None) -> Path:
        return _first_matching(_root(root), "vocab_all.bpe.*", "data.root")

    @staticmethod
    def read(data_files: list[str]) -> Iterator[dict[str, str]]:
        """Yields the same examples as PaddleNLP's own reader of this corpus, with two exceptions. A
        carriage return within a line does not end the line, because every later line would then be
        paired with the wrong translation. A pair that is empty on both sides is kept, because the
        tokenised references have a line for it.
        """
        for example in files.Dataset.read(data_files):
            yield {side: text.strip() for side, text in example.items()}


def _root(root: str | None) -> Path:
    """Returns the folder of the corpus. PaddleNLP downloads it if `root` is None."""
    if root is not None:
        return Path(root)
    if not (files.DATA_HOME / "WMT14ende").is_dir():
        files.require_data_home(files.DATA_HOME)
    paddlenlp_datasets = files.import_paddlenlp()
    from paddlenlp.datasets.wmt14ende import WMT14ende
    from paddlenlp.utils.env import DATA_HOME

    try:
        paddlenlp_datasets.load_dataset("wmt14ende", splits=["test"], lazy=True)
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"WMT14 could not be downloaded from {WMT14ende.URL}: {error}\nWhere there is no "
            "network, fetch and unpack that archive elsewhere and give data.root=FOLDER, the "
            "folder that holds wmt14_ende_data and wmt14_ende_data_bpe"
        ) from None
    return Path(DATA_HOME) / "WMT14ende" / "WMT14.en-de"


def _first_matching(root: Path, pattern: str, key: str) -> Path:
    folder = root / "wmt14_ende_data_bpe"
    names = sorted(path.name for path in folder.glob(pattern))
    return files.first_existing(folder, names or [pattern], key)

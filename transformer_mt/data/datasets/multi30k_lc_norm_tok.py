"""Multi30k in the form in which most papers train on it and score it: lower-cased, normalised and
tokenised with Moses. It is made of the raw text, as the corpus's own files in this form are
(`data/task1/tok/*.lc.norm.tok`; all 1,000 lines of test2016.de are equal)."""

from collections.abc import Iterator
from pathlib import Path

from transformer_mt.data.datasets.files import parts
from transformer_mt.data.datasets.multi30k import Multi30k
from transformer_mt.data.lc_norm_tok import lc_norm_tok


class Multi30kLcNormTok(Multi30k):
    """The files of Multi30k, whose lines are converted when they are read."""

    origin = f"{Multi30k.origin}, lower-cased, normalised and tokenised"
    is_lc_norm_tok = True

    @staticmethod
    def read(data_files: list[str]) -> Iterator[dict[str, str]]:
        for files in parts([Path(path) for path in data_files]):
            # train.en.gz is English.
            source, target = (lc_norm_tok(path.name.split(".")[1]) for path in files)
            for pair in Multi30k.read([str(path) for path in files]):
                yield {"source": source(pair["source"]), "target": target(pair["target"])}

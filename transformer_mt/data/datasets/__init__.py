"""The corpora that `data.dataset` can name. To add one, write a module in this folder and a line in
DATASETS, and name and describe it in config/text.py."""

from transformer_mt.data.datasets.files import Dataset, Files
from transformer_mt.data.datasets.multi30k import Multi30k, Multi30kLcNormTok
from transformer_mt.data.datasets.wmt14ende import WMT14EnDe

DATASETS: dict[str, Dataset] = {
    "files": Files(),
    "multi30k": Multi30k(),
    "multi30k_lc_norm_tok": Multi30kLcNormTok(),
    "wmt14ende": WMT14EnDe(),
}

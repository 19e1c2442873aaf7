"""CTranslate2 (https://github.com/OpenNMT/CTranslate2), which searches on a CPU much faster than
Paddle, and does not need it."""

from types import ModuleType

from transformer_mt.backends.backend import Backend
from transformer_mt.utils.errors import UsageError

# The key of an export's config.json that holds the number of its positions.
POSITIONS = "transformer_mt_positions"


BACKEND = Backend(
    title="CTranslate2",
    name="ctranslate2",
    export_format="ctranslate2",
    export_file="model.bin",
    quantizations=("int8", "int8_float32", "int16", "float16", "bfloat16"),
    only_on_cpu=True,
    runs_in_processes=False,  # it distributes each batch over threads of its own
    averages_segmentations=False,
    reasons={
        "copying": "CTranslate2 generates subwords, and can't copy them",
        "non_autoregressive": "CTranslate2 predicts one subword after another",
    },
)


def import_ctranslate2() -> ModuleType:
    """The package `ctranslate2`, which is optional.

    Raises:
        UsageError: it can't be imported.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise UsageError(
            f"CTranslate2 is needed, and can't be imported ({error}). Install it with: "
            "python -m pip install -r requirements-ctranslate2.txt"
        ) from None
    return ctranslate2

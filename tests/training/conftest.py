from tests.small_trainers import make_trainer, run_in, subwords  # noqa: F401

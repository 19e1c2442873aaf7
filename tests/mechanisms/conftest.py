"""The fixtures of these tests."""

from tests.reference_fixtures import normal, randomise, rng, seeded  # noqa: F401
from tests.small_trainers import run_in, subwords  # noqa: F401

"""The fixtures of these tests."""

from tests.reference_fixtures import normal, randomise, rng, seeded  # noqa: F401

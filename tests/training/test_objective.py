"""Terms of the objective: they can be combined, and count as much as the batch did."""

import numpy as np
import pytest

from tests.support import demo_pairs, make_config, prepared, train_subwords, wide_model
from transformer_mt.data.batches import collate
from transformer_mt.training.objective import Term
from transformer_mt.training.terms import make_objective

PAIRS = demo_pairs(40)


class Twice(Term):
    """Every row twice, as R-Drop reads a batch; its loss is a number."""

    def batch(self, batch, step):
        return batch.repeated(2)

    def loss(self, batch, cross_weights):
        return 20.0


class Constant(Term):
    def loss(self, batch, cross_weights):
        return 3.0


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS)


@pytest.mark.parametrize("guided", [{}, {"guided_attention": {"by": "diagonal"}}])
def test_terms_add_up(tmp_path, subwords, guided):
    """Without dropout a row has the same loss each time; sums of some hundred float32 terms in
    another order agree to 1e-5."""
    config = make_config(tmp_path, **guided)
    batch = collate(prepared(config, PAIRS, subwords).train, np.arange(8), subwords)
    objective = make_objective(config, wide_model(config, subwords), subwords)
    own = list(objective.terms)
    plain = [float(x) for x in objective.losses(batch, 1)]
    objective.terms = [*own, Constant(), Constant()]
    loss, nll = (float(x) for x in objective.losses(batch, 1))
    assert loss == pytest.approx(plain[0] + 6, rel=1e-6) and nll == plain[1]
    # Twice as many tokens, and all that is added to their loss, count half.
    objective.terms = [Twice(), *own, Constant()]
    loss, nll = (float(x) for x in objective.losses(batch, 1))
    assert loss == pytest.approx(plain[0] + 23 / 2, rel=1e-5)
    assert nll == pytest.approx(plain[1], rel=1e-5)
    # The dev set is measured without any.
    measured = [float(x) for x in objective.losses(batch)]
    assert measured[1] == plain[1] and measured[0] < loss

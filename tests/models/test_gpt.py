import numpy as np
import pytest

import dynbatch as db
from dynbatch.errors import ArgumentError
from dynbatch.models import GPT


def test_a_document_is_few_nodes_however_many_layers():
    lengths = (1, 7, 19)
    for layers in (1, 3):
        model = GPT(257, 20, width=8, layers=layers, heads=2, dropout=0.1)
        with db.Graph() as graph:
            for length in lengths:
                model.loss(graph, np.arange(length + 1))
            assert len(graph.nodes) <= 5 * len(lengths)


def test_with_rotary_places_order_counts_and_a_document_may_be_longer():
    model = GPT(9, 4, width=8, layers=2, heads=2, rotary=True)
    rng = np.random.default_rng(0)
    for parameter in model.parameters():
        parameter.assign(rng.standard_normal(parameter.shape))
    with db.Graph(grad=False) as graph:
        one, other = [model.logits(graph, ids)[-1] for ids in ([3, 5, 1, 2, 7], [5, 3, 1, 2, 7])]
        assert not np.allclose(*graph.values([one, other]), atol=1e-2)


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (4, "context is 4, of a text of 5 tokens: nothing is counted"),
        (9, "context is 9, of a text of 5 tokens"),
        (-1, "context is -1"),
        (1.5, "context is 1.5"),
    ],
)
def test_a_context_that_leaves_nothing_to_count_is_refused(context, said):
    model = GPT(9, 5, width=8, layers=1, heads=2)
    with db.Graph() as graph:
        assert graph.values([model.loss(graph, ids) for ids in ([], [3])]) == [0, 0]
        assert model.loss(graph, [3, 5, 1, 2, 7], context=3).item() > 0
        with pytest.raises(ArgumentError, match=f"GPT.loss: {said}"):
            model.loss(graph, [3, 5, 1, 2, 7], context=context)


def test_rotary_places_want_an_even_number_of_features_for_each_head():
    with pytest.raises(ArgumentError, match=r"rotary with 4 heads of 100 features(.|\n)*width=104"):
        GPT(9, 4, width=100, layers=1, heads=4, rotary=True)

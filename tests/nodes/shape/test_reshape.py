import numpy as np

import dynbatch as db
from dynbatch import nodes as F


def test_squeeze_drops_only_the_dimension_asked_for():
    with db.Graph() as graph:
        column = F.input(graph, [[2.0]])
        assert F.squeeze(column).shape == ()
        assert F.squeeze(column, dim=-1).shape == (1,)
        assert F.squeeze(F.input(graph, [[1.0, 2.0]]), dim=0).value.tolist() == [1, 2]
        sentence = F.input(graph, np.ones((3, 2)))
        assert F.squeeze(sentence, dim=0) is sentence


def test_unsqueeze_puts_the_new_dimension_where_torch_does():
    with db.Graph() as graph:
        vector = F.input(graph, [1.0, 2.0])
        assert F.unsqueeze(vector).shape == (1, 2)
        assert F.unsqueeze(vector, 1).shape == F.unsqueeze(vector, -1).shape == (2, 1)
        assert F.unsqueeze(F.input(graph, 3.0)).value.tolist() == [3]


def test_reshape_to_its_own_shape_makes_no_node():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 3)))
        assert F.reshape(x, (2, -1)) is x


def test_a_chain_of_reshapes_is_one_copy_a_batch():
    with db.Graph() as graph:
        made = [F.reshape(F.input(graph, np.ones((2, 3))), (3, 2)) for _ in range(8)]
        graph.forward()
        assert made[0].shape == (3, 2)
        assert graph.statistics.launches == 2  # the inputs, and the reshapes


def test_a_sentence_without_tokens_has_no_pairs_either():
    table = db.Parameter(np.arange(3.0)[:, None])

    def attend(graph, x):
        pairs = F.lookup(graph, table, np.arange(len(x) ** 2) % 3)
        return F.softmax(x @ x.T + F.reshape(pairs, (len(x), len(x)))) @ x

    db.testing.check_batching(attend, shapes=[[(n, 2)] for n in (3, 0, 1, 5)], parameters=[table])

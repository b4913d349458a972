import numpy as np

import dynbatch as db
from dynbatch.models import GPT


def test_a_document_is_few_nodes_however_many_layers():
    lengths = (1, 7, 19)
    for layers in (1, 3):
        model = GPT(257, 20, width=8, layers=layers, heads=2, dropout=0.1)
        with db.Graph() as graph:
            for length in lengths:
                model.loss(graph, np.arange(length + 1))
            assert len(graph.nodes) <= 5 * len(lengths)

"""`pipeline`: the gradients of one process, what travels, and errors of stages."""

import pickle

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, parallel
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DtypeError, ParallelError
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.row_sparse import RowSparse
from tests.parallel.ranks import count_messages, on_ranks

SENTENCES = [np.arange(length) % 7 for length in (3, 1, 12, 5, 2, 8, 4, 4, 1)]


class Tagger(models.Module):
    """In three parts, of which the first passes on two nodes and the second one."""

    def __init__(self, dtype):
        self.embed = models.Embedding(7, 6, rng=0)
        self.lstm = models.LSTM(6, 5, rng=1)
        self.middle = models.Linear(11, 6, rng=2)
        self.output = models.Linear(6, 4, rng=3)
        self.astype(dtype)

    def first(self, graph, words):
        x = self.embed(graph, words)
        return x, self.lstm(x)

    def second(self, graph, words, x, h):
        return F.tanh(self.middle(F.concat([x, h], dim=-1)))

    def third(self, graph, words, h):
        return F.cross_entropy(self.output(h), words % 4, reduction="sum") / 40.0

    def stages(self, count):
        """The model cut into stages."""

        def last_two(graph, words, *received):
            return self.third(graph, words, self.second(graph, words, *received))

        def whole(graph, words):
            return last_two(graph, words, *self.first(graph, words))

        return [[whole], [self.first, last_two], [self.first, self.second, self.third]][count - 1]


def gradients_of(model):
    return {
        name: np.asarray(grad if isinstance(grad := parameter.grad, RowSparse) else to_host(grad))
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def of_one_process(dtype, sentences=SENTENCES):
    model = Tagger(dtype)
    with db.Graph(dtype=dtype) as graph:
        loss = F.sum([model.stages(1)[0](graph, words) for words in sentences])
        graph.backward(loss)
        return float(loss.value), gradients_of(model)


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_stages_have_the_gradients_of_one_process(ranks, micro_batches, dtype, allowed):
    def do(communicator):
        model = Tagger(dtype)
        stage = model.stages(ranks)[communicator.rank]
        result = parallel.pipeline(
            communicator, stage, SENTENCES, micro_batches, [len(each) for each in SENTENCES],
            make_graph=lambda: db.Graph(dtype=dtype),
        )  # fmt: skip
        assert 0 < result.waited < result.seconds
        return result.loss, gradients_of(model)

    loss, wanted = of_one_process(dtype)
    given = on_ranks(ranks, do)
    together = {}
    for own_loss, gradients in given:
        np.testing.assert_allclose(own_loss, loss, rtol=allowed)
        assert together.keys().isdisjoint(gradients)  # each rank has those of its stage
        together |= gradients
    assert together.keys() == wanted.keys()
    largest = max(np.abs(each).max() for each in wanted.values())
    for name, gradient in wanted.items():
        np.testing.assert_allclose(together[name], gradient, rtol=0, atol=allowed * largest)


def test_three_messages_for_each_micro_batch_have_no_padding():
    graphs = [], []

    def do(communicator):
        def make_graph():
            own.append(db.Graph())
            open_at_once.append(sum(not graph._closed for graph in own))
            return own[-1]

        own, open_at_once = graphs[communicator.rank], []
        sent, packed = count_messages(communicator), []
        exchange = communicator.exchange
        communicator.exchange = lambda out, into: packed.append(out.get(1)) or exchange(out, into)
        stage = Tagger("float32").stages(2)[communicator.rank]
        parallel.pipeline(communicator, stage, SENTENCES, 4, make_graph=make_graph)
        return sent, packed[1::2], max(open_at_once)

    (sent, packed, most), (returned, _, most_of_last) = on_ranks(2, do)
    words = sum(map(len, SENTENCES))
    assert len(sent) == 4 * 2 + 1 and len(returned) == 4 + 1  # and the loss
    values = [pickle.loads(each).flat.nbytes for each in packed if each is not None]
    assert sum(values) == sum(returned[:-1]) == 4 * (6 + 5) * words
    assert sent[0:-1:2] == [8] * 4
    assert (most, most_of_last) == (2, 1)


@pytest.mark.parametrize("on_gpu", [0, 1])
def test_a_stage_may_be_on_a_gpu(on_gpu, cuda):
    def do(communicator):
        device = "cuda" if communicator.rank == on_gpu else "cpu"
        model = Tagger("float32").to(device)
        stage = model.stages(2)[communicator.rank]
        result = parallel.pipeline(
            communicator, stage, SENTENCES[:4], 2, make_graph=lambda: db.Graph(device=device)
        )
        return result.loss, gradients_of(model)

    loss, wanted = of_one_process("float32", SENTENCES[:4])
    (own_loss, first), (_, second) = on_ranks(2, do)
    np.testing.assert_allclose(own_loss, loss, rtol=1e-6)
    for name, gradient in {**first, **second}.items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-4, atol=1e-6)


def test_what_cannot_pass_is_refused():
    def run(stage, examples=SENTENCES, **more):
        return on_ranks(1, lambda one: parallel.pipeline(one, stage, examples, **more))

    with pytest.raises(DtypeError, match=r"the stage returned 2.0\.\n  rule: a node"):
        run(lambda graph, words: 2.0)
    with pytest.raises(ArgumentError, match="0 costs for 0 examples"):
        run(None, [])
    with pytest.raises(ArgumentError, match="1 costs for 9 examples"):
        run(None, costs=[1.0])


def test_an_error_of_a_stage_ends_the_others():
    told = []

    def do(communicator):
        def stage(graph, words, *received):
            if communicator.rank == 1 and len(words) == 12:
                raise ValueError("no such word")
            return Tagger("float32").stages(2)[communicator.rank](graph, words, *received)

        try:
            parallel.pipeline(communicator, stage, SENTENCES)
        except ParallelError as error:
            told.append(str(error))

    with pytest.raises(ValueError, match="no such word"):
        on_ranks(2, do)
    assert told == ["rank 1 failed: ValueError: no such word"]

"""Ranks with a GPU each do what ranks without one do: sums, optimizers, training, pipelines."""

from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim, parallel, random
from dynbatch import nodes as F
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.optim import sharding
from dynbatch.parallel import gradients
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from dynbatch.train import SentenceBatches, Trainer, read_metrics
from dynbatch.train.ranks import Ranks
from dynbatch.train.update import Update
from tests.cuda import devices
from tests.generation.tiny_models import tiny
from tests.optim.test_sharding import (
    ALGORITHMS,
    give_gradients,
    parameters_of,
    require_same,
    values_of,
)
from tests.parallel import test_pipeline
from tests.parallel.gpus import on_gpus, several_gpus
from tests.parallel.ranks import count_messages, on_ranks
from tests.parallel.test_gradients import given

pytestmark = pytest.mark.cuda


@pytest.fixture(params=["checked", "shuffled"])
def cp(request):
    with devices.device(request.param) as module, several_gpus():
        yield module


def moved(parameters):
    """The parameters on CuPy's current GPU, gradients too."""
    for each in parameters:
        each.to("cuda")
    return parameters


def gradients_of(parameters):
    found = {}
    for name, parameter in parameters.items():
        grad = parameter.grad
        if isinstance(grad, RowSparse):
            found[name] = grad.rows, to_host(grad.values)
        else:
            found[name] = None if grad is None else to_host(grad)
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_have_the_bits_of_sums_on_the_host(cp, size, monkeypatch):
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 64)

    def do(communicator, move=moved):
        own = given(communicator.rank)
        move(own.values())
        parallel.sum_gradients(communicator, own.values())
        return gradients_of(own)

    wanted = on_ranks(size, lambda communicator: do(communicator, list))
    for ours, theirs in zip(on_gpus(cp, size, do), wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for name, grad in theirs.items():
            if isinstance(grad, tuple):
                for found, each in zip(ours[name], grad, strict=True):
                    np.testing.assert_array_equal(found, each, name, strict=True)
            elif grad is None:
                assert ours[name] is None
            else:
                np.testing.assert_array_equal(ours[name], grad, name, strict=True)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_sharded_optimizer_has_the_bits_of_the_plain_one(cp, name, monkeypatch):
    monkeypatch.setattr(sharding, "JOINED_BYTES", 200)

    def trained(communicator, is_sharded):
        pairs = parameters_of()
        for _, each in pairs:
            each.replace(each.value.astype(np.float32))
        moved([each for _, each in pairs])
        optimizer = ALGORITHMS[name](pairs)
        if is_sharded:
            optimizer.shard(communicator)
        for step in range(4):
            give_gradients(pairs, step)
            optim.clip_grad_norm_(optimizer, 2.0)
            optimizer.step()
        return values_of(pairs), optimizer.state_dict()

    for sharded, plain in on_gpus(cp, 2, lambda one: (trained(one, True), trained(one, False))):
        require_same(sharded[0], plain[0])
        require_same(sharded[1], plain[1])


PROMPTS = [[3, 1, 2], [7], [4, 4]]
SENTENCES = test_pipeline.SENTENCES[:4]
EXAMPLES = [np.arange(1 + number * 7 % 11) % 5 for number in range(12)]


class Tagger(models.Module):
    def __init__(self):
        self.embed = models.Embedding(5, 6, rng=0)
        self.output = models.Linear(6, 3, rng=1)

    def loss(self, graph, words):
        return F.cross_entropy(self.output(self.embed(graph, words)), words % 3, reduction="sum")


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_trainer_makes_the_updates_of_ranks_without_gpus(cp, is_sharded, tmp_path):
    def trained(communicator, device):
        random.seed(0)
        model = Tagger().to(device)
        optimizer = optim.AdamW(optim.decay_groups(model, 0.1), lr=0.05)
        if is_sharded:
            optimizer.shard(communicator)
        Trainer(
            model, optimizer, lambda graph, model, words: model.loss(graph, words),
            SentenceBatches(EXAMPLES, batch_size=4), num_tokens=len, clip_norm=0.1, watch=2,
            average=optim.Average(model), checkpoint_path=tmp_path / device / "run.safetensors",
            metrics_path=tmp_path / device / "metrics.jsonl", communicator=communicator,
            show_progress=False,
        ).fit(2)  # fmt: skip
        return {name: to_host(each.value) for name, each in model.named_parameters()}

    wanted = on_ranks(2, lambda communicator: trained(communicator, "cpu"))
    for weights in on_gpus(cp, 2, lambda communicator: trained(communicator, "cuda")):
        for name, array in wanted[0].items():
            np.testing.assert_allclose(weights[name], array, rtol=1e-4, atol=1e-6)
    found, wanted = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("cuda", "cpu")]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for name in {"loss", "gradient_norm", "tokens", "metric"} & ours.keys():
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5)
        for name, statistics in ours.get("parameters", {}).items():
            for key, number in statistics.items():
                np.testing.assert_allclose(
                    number, theirs["parameters"][name][key], rtol=1e-3, atol=1e-6
                )


def test_ranks_agree_on_an_update_after_their_gpus_have_summed(cp):
    """A rank may end while a GPU waits for it; what that GPU then has is in no checkpoint."""

    class Noting(Ranks):
        def total(self, number):
            found.append(norm._copy._array is None)
            return number

    parameter, found = Parameter(np.ones(3, np.float32)).to("cuda"), []
    parameter.grad = cp.zeros(3, np.float32)
    norm = optim.clip_grad_norm_([parameter], 1.0)
    update = Update({}, [], norm, 1, Noting(None), None, 0.0)
    update.read()
    assert found == [True]


def test_predictions_are_spread_over_gpus(cp):
    def logits(model, graph, words):
        return model.output(model.embed(graph, words))

    def do(communicator):
        model = Tagger().to("cuda")
        return parallel.spread(
            communicator, EXAMPLES, lambda part: db.predict(model, partial(logits, model), part)
        )

    wanted = db.predict(model := Tagger(), partial(logits, model), EXAMPLES)
    for found in on_gpus(cp, 3, do):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_texts_are_spread_over_gpus(cp):
    def texts(results):
        return [result.tokens for (result,) in results]

    def do(communicator):
        model = tiny("gpt2").to("cuda")
        results = parallel.spread(
            communicator, PROMPTS, lambda part: db.generate(model, part, max_new_tokens=3)
        )
        return texts(results)

    wanted = texts(db.generate(tiny("gpt2"), PROMPTS, max_new_tokens=3))
    assert on_gpus(cp, 2, do) == [wanted] * 2


def test_stages_of_a_pipeline_have_a_gpu_each(cp):
    def do(communicator):
        model = test_pipeline.Tagger("float32").to("cuda")
        stage = model.stages(3)[communicator.rank]
        result = parallel.pipeline(
            communicator, stage, SENTENCES, 2, make_graph=lambda: db.Graph(device="cuda")
        )
        return result.loss, test_pipeline.gradients_of(model)

    loss, wanted = test_pipeline.of_one_process("float32", SENTENCES)
    found = on_gpus(cp, 3, do)
    np.testing.assert_allclose([own for own, _ in found], loss, rtol=1e-6)
    together = {name: grad for _, gradients in found for name, grad in gradients.items()}
    assert together.keys() == wanted.keys()
    for name, gradient in wanted.items():
        np.testing.assert_allclose(together[name], gradient, rtol=1e-4, atol=1e-6)


@contextmanager
def counting(counted, name, sent):
    """Note launches, uploads, and the bytes of each message, of what is done inside."""
    queue().flush()
    launches, uploads = queue().launches, queue().uploads
    sent.clear()
    yield
    assert not queue().waiting()  # CuPy may read what it has changed
    counted[name] = queue().launches - launches, queue().uploads - uploads, sent.copy()


DENSE = (20000, 24, 8)  # too many together for a round in which all send all they have
TABLE = (9, 3)


def part_of(length, rank, size):
    """The number of a rank's elements, of so many."""
    return length * (rank + 1) // size - length * rank // size


@pytest.mark.parametrize("size", [2, 3])
def test_what_is_launched_and_travels(cp, size):
    """A sum is packed, exchanged, added and distributed, each for all parameters of a dtype."""

    def do(communicator):
        noted = {}
        dense = moved([Parameter(np.zeros(each, np.float32)) for each in DENSE])
        tables = moved([Parameter(np.zeros(TABLE, np.float32)) for _ in range(2)])
        optimizer = optim.Adam(dense + tables).shard(communicator)
        sent = count_messages(communicator, "device")
        for number in (0, 1, 2):
            for each in dense:
                each.grad = cp.zeros(each.shape, np.float32)
            for each in tables[:number]:
                each.grad = RowSparse(np.array([1, 4]), cp.zeros((2, 3), np.float32), TABLE)
            with counting(noted, f"sum, {number} tables", sent):
                parallel.sum_gradients(communicator, optimizer)
            with counting(noted, f"step, {number} tables", sent):
                optimizer.step()
        return noted

    others = size - 1
    for rank, noted in enumerate(on_gpus(cp, size, do)):
        parts = [4 * part_of(sum(DENSE), each, size) for each in range(size)]
        own = parts.pop(rank)
        sums = [4 * sum(DENSE)] if size == 2 else [*parts, *[own] * others]
        for number in (0, 1, 2):
            rows = [number * 4 * 2 * 3] * others if number else []
            # Packed, added, distributed; of tables packed, two put in order, each added.
            launches, uploads = [(3, 2), (3 + 2, 2 + 2), (3 + 4, 2 + 2)][number]
            assert noted[f"sum, {number} tables"] == (launches, uploads, sums + rows)
            part = 4 * sum([part_of(n, rank, size) for n in [*DENSE, *[27] * number]])
            assert noted[f"step, {number} tables"] == (3, 3, [part] * others)

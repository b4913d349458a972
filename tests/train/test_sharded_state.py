"""A `Trainer` whose optimizer is sharded writes and resumes the checkpoints of a plain one."""

import numpy as np
from safetensors.numpy import load_file

from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.train import SentenceBatches, Trainer, load_checkpoint, save_checkpoint
from tests.parallel.ranks import on_ranks

EXAMPLES = [np.arange(1 + number * 7 % 11) % 5 for number in range(24)]


class Tagger(models.Module):
    def __init__(self):
        self.embed = models.Embedding(5, 6, rng=0)
        self.output = models.Linear(6, 3, rng=1)


def loss(graph, model, words):
    return F.cross_entropy(model.output(model.embed(graph, words)), words % 3, reduction="sum")


def trainer(communicator, path, is_sharded):
    model = Tagger()
    optimizer = optim.AdamW(optim.decay_groups(model, 0.1), lr=0.05)
    if is_sharded:
        optimizer.shard(communicator)
    return Trainer(
        model, optimizer, loss, SentenceBatches(EXAMPLES, batch_size=8), num_tokens=len,
        clip_norm=0.1, checkpoint_path=path, communicator=communicator, show_progress=False,
    )  # fmt: skip


def test_a_checkpoint_of_a_sharded_optimizer_is_that_of_a_plain_one(tmp_path):
    for name in ("plain", "sharded"):
        path = tmp_path / f"{name}.safetensors"
        on_ranks(2, lambda one, p=path, n=name: trainer(one, p, n == "sharded").fit(2))
    plain, sharded = (load_file(tmp_path / f"{name}.safetensors") for name in ("plain", "sharded"))
    assert plain.keys() == sharded.keys()
    for name, array in plain.items():
        np.testing.assert_array_equal(sharded[name], array, name)

    def resumed(communicator):
        run = trainer(communicator, tmp_path / "sharded.safetensors", is_sharded=True)
        assert run.resume()
        return run.optimizer.state_dict(), sum(
            slot.nbytes for each in run.optimizer._states for slot in each.slots.values()
        )

    ((whole, _),) = on_ranks(1, resumed)
    kept = 2 * sum(each.nbytes for name, each in whole.items() if name.endswith("gradient_sum"))
    for size in (1, 3):
        states = on_ranks(size, resumed)
        assert sum(nbytes for _, nbytes in states) == kept
        for state, _ in states:
            for name, array in whole.items():
                np.testing.assert_array_equal(state[name], array, name)


def test_all_ranks_save_a_sharded_optimizer_and_one_writes(tmp_path):
    """In a loop of one's own; before, rank 0 alone waited for the others' parts."""
    path = tmp_path / "model.safetensors"

    def do(communicator):
        model = Tagger()
        optimizer = optim.AdamW(model, lr=0.05).shard(communicator)
        for parameter in model.parameters():
            parameter.grad = np.ones_like(parameter.value)
        optimizer.step()
        save_checkpoint(path, model, optimizer)
        assert communicator.rank or path.exists()
        return optimizer.state_dict()

    states = on_ranks(3, do)
    model = Tagger()
    optimizer = optim.AdamW(model, lr=0.05)
    load_checkpoint(path, model, optimizer)
    for name, array in optimizer.state_dict().items():
        np.testing.assert_array_equal(states[2][name], array, name)

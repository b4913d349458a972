"""Work of kernels that may be joined meets item by item; the rest runs side by side."""

from functools import partial

from dynbatch.kernels.cuda.runtime.joined import Works, run_joined
from dynbatch.kernels.cuda.runtime.queue import queue


class Noted:
    """Work that notes who runs it."""

    def __init__(self, key, name, log):
        self.key, self.name, self.log = key, name, log

    def run(self, others=()):
        self.log.append(([each.name for each in (self, *others)], queue().label))


def kernel(log, name, *keys):
    works = Works()
    for number, key in enumerate(keys):
        works.call(lambda number=number: log.append((f"{name}{number} queues", queue().label)))
        works.then(Noted(key, f"{name}{number}", log))
    works.at_last(lambda: log.append((f"{name} ends", queue().label)))
    return works


def test_work_of_equal_keys_at_the_same_place_is_run_as_one(cuda):
    log = []
    kernels = [
        ("a", partial(kernel, log, "a", "rows", "steps")),
        ("b", partial(kernel, log, "b", "rows", "other steps", "rows")),
        ("c", partial(kernel, log, "c", "rows", "steps")),
    ]
    run_joined(queue(), kernels)
    assert log == [
        ("a0 queues", "a"), ("b0 queues", "b"), ("c0 queues", "c"),
        (["a0", "b0", "c0"], "a, and 2 more beside it"),
        ("a1 queues", "a"), ("b1 queues", "b"), ("c1 queues", "c"),
        (["a1", "c1"], "a, and 1 more beside it"), (["b1"], "b"),
        ("a ends", "a"), ("b2 queues", "b"), ("c ends", "c"),
        (["b2"], "b"),
        ("b ends", "b"),
    ]  # fmt: skip


def test_no_kernels_are_no_work(cuda):
    run_joined(queue(), [])
    assert not queue().waiting()

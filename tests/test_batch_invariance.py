"""A sentence's results and its inputs' gradients have the same bits alone and in any mini-batch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.kernels.c.runtime.library import reason
from dynbatch.kernels.runtime.precision import Rounding
from tests.marks import exhaustive
from tests.sentence_models import KINDS, WORDS, Build, Sentence

pytestmark = [
    pytest.mark.skipif(bool(reason()), reason="NumPy's products round by their size"),
    pytest.mark.usefixtures("same_threads"),
]

WATCHED = (1, 2, 9, 31)  # lengths of the sentences that are watched
OWN_WORDS = sum(WATCHED)  # only they use these; each word once, so a gradient is one row
MOST = 45  # words of a sentence beside them
COMPANIES = (1, 2, 4, 16, 30, 64, 200)
ROUNDINGS: dict[str, Rounding] = {
    "float32": {},
    "products in bfloat16": {"matmul": "bfloat16"},
    "values in bfloat16": {"precision": "bfloat16"},
    "values in bfloat16 alone": {"precision": "bfloat16", "matmul": "float32"},
}
Numbers = dict[str, bytes]


def results(build: Build, sentences: Sequence[np.ndarray], rounding: Rounding) -> list[Numbers]:
    """The bits of each sentence's value and loss, and of the gradients of what its model reads."""
    with db.Graph(seed=3, **rounding) as graph:
        each = [Sentence(graph, ids) for ids in sentences]
        if inspect.isgeneratorfunction(build):
            made = db.drive(graph, [build(sentence) for sentence in each])
        else:
            made = [build(sentence) for sentence in each]
        kept = [(y.keep(), loss.keep()) for y, loss in made]
        graph.backward(F.sum([loss for _, loss in kept]))
        found = [{"value": y.value.tobytes(), "loss": loss.value.tobytes()} for y, loss in kept]
        for numbers, sentence in zip(found, each, strict=True):
            for k, node in enumerate(sentence.inputs):
                numbers[f"gradient of input {k}"] = node.gradient.tobytes()
    for table in {table for sentence in each for table in sentence.tables}:
        gradient = table.weight.grad.dense()
        for numbers, sentence in zip(found, each, strict=True):
            numbers["gradient of words"] = gradient[sentence.ids].tobytes()
        table.weight.zero_grad()
    return found


def differing(
    name: str, companies: Sequence[int], threads: int, rounding: str = "float32"
) -> set[tuple[str, int, int]]:
    """Bits that differ from those alone on one thread: name, words and sentences beside it."""
    build, rng = KINDS[name](), np.random.default_rng(0)
    own = np.split(rng.permutation(OWN_WORDS), np.cumsum(WATCHED)[:-1])
    db.set_num_threads(1)
    alone = [results(build, [ids], ROUNDINGS[rounding])[0] for ids in own]
    db.set_num_threads(threads)
    found = set()
    for count in companies:
        for first in range(0, len(own), count):
            watched = range(first, min(first + count, len(own)))
            lengths = rng.integers(1, MOST, count - len(watched))
            everyone = [own[k] for k in watched]
            everyone += [rng.integers(OWN_WORDS, WORDS, n) for n in lengths]
            order = rng.permutation(count)
            numbers = results(build, [everyone[k] for k in order], ROUNDINGS[rounding])
            for k, place in enumerate(np.argsort(order)[: len(watched)], first):
                assert numbers[place].keys() == alone[k].keys()
                found |= {
                    (what, WATCHED[k], count)
                    for what, bits in numbers[place].items()
                    if bits != alone[k][what]
                }
    return found


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rounding", ["float32", *map(exhaustive, [*ROUNDINGS][1:])])
def test_a_sentence_has_the_same_bits_in_a_company_of_thirty(name: str, rounding: str) -> None:
    assert differing(name, [30], 2, rounding) == set()


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", KINDS)
def test_a_sentence_has_the_same_bits_in_every_company(
    name: str, rounding: str, threads: int
) -> None:
    assert differing(name, COMPANIES, threads, rounding) == set()


@pytest.mark.slow
def test_a_sentence_has_the_same_bits_in_200_companies_in_bfloat16() -> None:
    """Each of two to nine sentences, by all kinds of products: of maps, a scan and the loss."""
    assert differing("tagger", [*range(2, 10)] * 25, 2, "products in bfloat16") == set()


@pytest.mark.parametrize("name", ["transformer", "seq2seq"])
def test_values_in_16_bits_are_the_same_in_a_company(name: str) -> None:
    assert differing(name, [16], 2, "values in bfloat16") == set()

"""Arrays that a block is given: ids, targets, and what NumPy makes of them inside."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F

WORDS, TAGS, WIDTH = 20, 9, 4
LENGTHS = (3, 1, 7, 2, 7, 0, 12)


def parameter(*shape):
    return db.Parameter(np.random.default_rng(len(shape)).standard_normal(shape))


TABLE, OTHER, OUTPUT = parameter(WORDS, WIDTH), parameter(WORDS + 1, WIDTH), parameter(TAGS, WIDTH)
CHAIN = [parameter(TAGS, TAGS), parameter(TAGS), parameter(TAGS)]


def scores(graph, ids):
    return F.linear(F.tanh(F.lookup(graph, TABLE, ids)), OUTPUT)


def mean_loss(graph, ids, tags):
    return F.cross_entropy(scores(graph, ids), tags)


def summed_loss(graph, ids, tags):
    return F.cross_entropy(scores(graph, ids), tags, label_smoothing=0.1, reduction="sum")


def ignoring_loss(graph, ids, tags):
    return F.cross_entropy(scores(graph, ids), tags, ignore_index=3)


def smooth_loss(graph, ids, shares):
    return F.cross_entropy(scores(graph, ids), shares)


def nll_loss(graph, ids, tags):
    return F.nll_loss(F.log_softmax(scores(graph, ids)), tags)


def chain_loss(graph, ids, tags):
    return F.crf(scores(graph, ids), tags, *CHAIN)


def next_word_loss(graph, ids, tags):
    read = np.append([0], ids)
    x = F.lookup(graph, TABLE, read[:-1]) + F.lookup(graph, OTHER, np.flip(ids))
    return F.cross_entropy(F.linear(x, OUTPUT), np.concatenate((tags[1:], tags[:1])))


def clamped_loss(graph, ids, tags):
    return F.cross_entropy(scores(graph, np.minimum(ids, 5)), np.where(tags > 4, 4, tags))


FUNCTIONS = (
    mean_loss, summed_loss, ignoring_loss, smooth_loss, nll_loss, chain_loss, next_word_loss,
    clamped_loss,
)  # fmt: skip


def sentences(function, lengths=LENGTHS):
    generator = np.random.default_rng(0)
    for length in lengths:
        tags = generator.integers(0, TAGS, length)
        shares = generator.random((length, TAGS))
        yield generator.integers(0, WORDS, length), shares if function is smooth_loss else tags


class Losses:
    """Losses and the gradient of a table, and how often the function ran."""

    def __init__(self, function, examples, as_block=True):
        self.calls = 0

        def counted(*arguments):
            self.calls += 1
            return function(*arguments)

        called = db.block(counted) if as_block else counted
        TABLE.zero_grad()
        with db.Graph(dtype="float64") as graph:
            losses = [called(graph, *example).keep() for example in examples]
            self.nodes, self.programs = len(graph), {node.sig for node in losses}
            graph.backward(F.sum(losses))
            self.values = [float(loss.value) for loss in losses]
            self.notes = dict(graph.block_notes)
            self.explained = graph.explain()
        self.gradient = TABLE.grad.dense()

    def agrees_with(self, other):
        return np.allclose(self.values, other.values, rtol=1e-12, atol=1e-14) and np.allclose(
            self.gradient, other.gradient, rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_loss_is_traced_once_for_all_sentences_and_their_targets(function):
    examples = list(sentences(function))
    block, again = Losses(function, examples), Losses(function, examples * 3)
    assert block.agrees_with(Losses(function, examples, as_block=False))
    assert block.notes == {} and len(block.programs) == 1
    assert block.nodes == len(examples) and block.calls == again.calls


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_wrong_target_is_refused_where_the_block_is_called(function):
    (ids, tags), *_ = sentences(function, [3])
    wrong = -tags if function is smooth_loss else tags + np.array([0, 99, 0])
    if function is clamped_loss:
        wrong = tags - 99
    block = db.block(function)
    with db.Graph(dtype="float64") as graph:
        block(graph, ids, tags)
        with pytest.raises(db.errors.DynbatchError, match=r"target|probability") as caught:
            block(graph, ids, wrong)
        assert "test_given_arrays.py" in str(caught.value)
        with pytest.raises(db.errors.ShapeError, match=r"targets|probabilities|tokens"):
            block(graph, ids, tags[:-1])


def test_arrays_that_are_alike_in_the_first_sentence_are_not_mistaken_for_each_other():
    @db.block
    def both(graph, words, kinds):
        return F.lookup(graph, TABLE, words) + F.lookup(graph, OTHER, kinds)

    with db.Graph(dtype="float64") as graph:
        first, second = both(graph, [0, 0], [0, 0]), both(graph, [1, 2], [3, 4])
        assert np.array_equal(first.value, (TABLE.value + OTHER.value[:WORDS])[[0, 0]])
        assert np.array_equal(second.value, TABLE.value[[1, 2]] + OTHER.value[[3, 4]])


def test_a_label_is_not_mistaken_for_a_constant():
    @db.block
    def label_loss(x, label):
        return F.cross_entropy(F.linear(F.mean(x, dim=0), OUTPUT), label)

    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((3, WIDTH)))
        found = [label_loss(x, np.array([label])) for label in (0, 0, 3, 8)]
        wanted = [label_loss.__wrapped__(x, [label]) for label in (0, 0, 3, 8)]
        assert [float(a.value) for a in found] == [float(b.value) for b in wanted]
        assert len({node.sig for node in found}) == 1


def test_arrays_that_cannot_be_told_apart_leave_a_block_inlined_with_the_reason():
    single = parameter(1, WIDTH)

    @db.block
    def two_kinds(graph, a, b):
        return F.lookup(graph, single, a) + F.lookup(graph, single, b)

    with db.Graph(dtype="float64") as graph:
        value = two_kinds(graph, [0, 0], [0, 0]).value
        assert np.array_equal(value, 2 * single.value[[0, 0]])
        assert "two_kinds: 1 call inlined, since its arrays are alike" in graph.explain()


def test_a_cut_that_some_sentences_are_too_short_for_gives_what_the_function_gives():
    def later(graph, ids):
        return F.sum(F.lookup(graph, TABLE, ids[2:]))

    examples = [(ids,) for ids, _ in sentences(later)]
    assert Losses(later, examples).agrees_with(Losses(later, examples, as_block=False))


def test_ids_that_numpy_makes_fewer_of_give_what_the_function_gives():
    def distinct(graph, ids):
        return F.sum(F.lookup(graph, TABLE, np.unique(ids)))

    examples = [(ids,) for ids, _ in sentences(distinct)]
    assert Losses(distinct, examples).agrees_with(Losses(distinct, examples, as_block=False))


def test_a_list_that_is_joined_as_a_list_is_inlined_with_the_reason():
    def opened(graph, ids):
        return F.sum(F.lookup(graph, TABLE, [0] + ids))  # noqa: RUF005

    examples = [(ids.tolist(),) for ids, _ in sentences(opened)]
    block = Losses(opened, examples)
    assert block.agrees_with(Losses(opened, examples, as_block=False))
    assert "inlined, since it computes with a list" in block.explained


def test_a_block_that_looks_into_an_array_is_traced_again_with_the_reason():
    def weighted(graph, ids):
        return F.sum(F.lookup(graph, TABLE, ids)) * float(ids.sum())

    examples = [(ids,) for ids, _ in sentences(weighted)]
    block = Losses(weighted, examples)
    assert block.agrees_with(Losses(weighted, examples, as_block=False))
    assert "traced again, since it looks into its arrays" in block.explained


def test_what_a_block_writes_into_an_array_counts():
    def overwritten(graph, ids):
        ids = ids[:]
        ids[:1] = 7
        return F.sum(F.lookup(graph, TABLE, ids))

    def examples():
        return [(ids.copy(),) for ids, _ in sentences(overwritten)]

    assert Losses(overwritten, examples()).agrees_with(
        Losses(overwritten, examples(), as_block=False)
    )


def test_a_length_that_is_read_of_an_array_is_traced_at_each_length_once():
    def by_length(graph, ids):
        return F.sum(F.lookup(graph, TABLE, ids)) / (1 + len(ids))

    examples = [(ids,) for ids, _ in sentences(by_length)]
    block, again = Losses(by_length, examples), Losses(by_length, examples * 3)
    assert block.agrees_with(Losses(by_length, examples, as_block=False))
    assert block.notes == {} and block.calls == again.calls


def test_pairs_of_ids_are_traced_at_each_length_once():
    def pairs(graph, ids):
        rows = F.lookup(graph, TABLE, np.minimum.outer(ids, ids).ravel())
        return F.sum(F.tanh(rows)) + F.sum(F.lookup(graph, TABLE, ids.reshape(-1).clip(2, 5)))

    examples = [(ids,) for ids, _ in sentences(pairs)]
    block, again = Losses(pairs, examples), Losses(pairs, examples * 3)
    assert block.agrees_with(Losses(pairs, examples, as_block=False))
    assert block.notes == {} and block.calls == again.calls and len(block.programs) == 1


def test_ids_that_are_chosen_by_their_values_give_what_the_function_gives():
    def chosen(graph, ids):
        return F.sum(F.lookup(graph, TABLE, ids[ids > 9]))

    examples = [(ids,) for ids, _ in sentences(chosen, (7, 7, 3, 7, 7, 3))]
    assert len({(ids > 9).sum() for (ids,) in examples if len(ids) == 7}) > 1
    assert Losses(chosen, examples).agrees_with(Losses(chosen, examples, as_block=False))


def test_ids_that_are_made_otherwise_of_long_sentences_give_what_the_function_gives():
    def scaled(graph, ids):
        made = ids // 2 if len(ids) > 50 else ids // 3
        return F.sum(F.lookup(graph, TABLE, made))

    def paired(graph, ids):
        made = np.repeat(ids, 60) if len(ids) > 50 else np.minimum.outer(ids, ids).ravel()
        return F.sum(F.lookup(graph, TABLE, made))

    for function in (scaled, paired):
        examples = [(ids,) for ids, _ in sentences(function, (3, 60, 60, 4))]
        assert Losses(function, examples).agrees_with(Losses(function, examples, as_block=False))


def test_ids_that_begin_at_one_may_be_lessened():
    def lessened(graph, ids):
        return F.sum(F.lookup(graph, TABLE, ids - 1))

    examples = [(ids // 2 + 10,) for ids, _ in sentences(lessened)]
    block = Losses(lessened, examples)
    assert block.agrees_with(Losses(lessened, examples, as_block=False)) and block.notes == {}

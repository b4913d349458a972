"""Seq2Seq: a spelt-out PyTorch model, differences, batching, its options, its step."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ShapeError, VocabularyError
from dynbatch.testing import check_batching, check_gradient
from tests.marks import exhaustive

PAIRS = [([3, 4, 5, 6], [7, 3]), ([5], [4, 4, 4, 8, 3]), ([6, 3, 3, 3, 3, 3, 4], [])]
SIZES = {"source_vocab": 8, "target_vocab": 9, "embed": 5, "hidden": 6}


def small(**options):
    return models.Seq2Seq(**SIZES, **{"rng": 0, **options})


def train_loss(model, pairs):
    with db.Graph() as graph:
        loss = F.sum([model.loss(graph, source, target) for source, target in pairs])
        graph.backward(loss)
    return float(loss.value)


@pytest.mark.parametrize(
    ("layers", "attention", "smoothing"),
    [(1, "additive", 0.0), (2, "additive", 0.1), (1, "general", 0.0)],
)
def test_loss_and_gradients_equal_the_model_spelt_out_in_torch(layers, attention, smoothing):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    from tests.models.seq2seq_reference import Reference, renamed

    torch.manual_seed(0)
    theirs = Reference(**SIZES, layers=layers, attention=attention)
    for cell in theirs.cells:
        torch.nn.init.zeros_(cell.bias_hh)
    ours = small(layers=layers, attention=attention, label_smoothing=smoothing)
    own = dict(ours.named_parameters())
    values = renamed(dict(theirs.named_parameters()), SIZES["embed"])
    ours.load_state_dict({name: values[name] for name in own})

    expected = [theirs.loss(*pair, ours.begin, ours.end, smoothing) for pair in PAIRS]
    sum(expected).backward()
    with db.Graph() as graph:
        losses = [ours.loss(graph, source, target) for source, target in PAIRS]
        found = [float(loss.value) for loss in losses]
        graph.backward(F.sum(losses))
    assert np.allclose(found, [loss.item() for loss in expected], rtol=1e-5)
    used = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    # With general scores the reference never uses its query map and vector, nor have we any.
    blank = {name: p for name, p in theirs.named_parameters() if p.grad is None}
    gradients = renamed({**used, **blank}, SIZES["embed"])
    for name, parameter in own.items():
        gradient = parameter.grad
        gradient = gradient.dense() if hasattr(gradient, "dense") else gradient
        assert np.allclose(gradient, gradients[name], rtol=1e-5, atol=1e-5), name


@pytest.mark.parametrize(
    "options", [exhaustive({"layers": 2}), {"attention": "general", "bridge": False}]
)
@pytest.mark.parametrize("most", [2, exhaustive(12)])
def test_gradients_equal_differences(options, most):
    model = small(**options)
    check_gradient(lambda graph: model.loss(graph, *PAIRS[0]), parameters=model, most=most)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"layers": 2, "dropout": 0.4}, marks=pytest.mark.slow)]
)
def test_a_mini_batch_equals_its_pairs_alone(options):
    model = small(**options)
    examples = [*PAIRS, ([], [5, 5])]  # an empty source has nothing to attend to
    check_batching(model.loss, examples, parameters=model)


def test_the_loss_is_summed_over_the_target_and_its_end():
    model, (source, target) = small(), PAIRS[1]
    with db.Graph() as graph:
        total = float(model.loss(graph, source, target).value)
        mean = float(model.loss(graph, source, target, reduction="mean").value)
    assert mean == pytest.approx(total / (len(target) + 1), rel=1e-6)


def test_without_a_bridge_the_decoder_starts_from_zeros_and_has_fewer_parameters():
    model = small(bridge=False)
    assert not [name for name, _ in model.named_parameters() if "bridge" in name]
    with db.Graph() as graph:
        keys, values = model.encode(graph, [3, 4])
        (found,) = model.decode(graph, [7], keys, values).value
        zeros = [F.constant(graph, 0.0, (SIZES["hidden"],)) for _ in range(2)]
        (wanted,) = model.decode(graph, [7], *zeros, keys, values).value
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("most", [2, exhaustive(12)])
def test_tied_weights_are_one_parameter_with_both_gradients(most):
    model = models.Seq2Seq(8, 9, embed=6, hidden=6, tie_weights=True, rng=0)
    names = [name for name, _ in model.named_parameters()]
    assert "target_embedding.weight" in names and "output.weight" not in names
    check_gradient(lambda graph: model.loss(graph, *PAIRS[1]), parameters=model, most=most)
    # Unread words have a gradient too, from the softmax.
    train_loss(model, PAIRS[:1])
    assert np.all(np.any(model.output.weight.grad != 0, axis=1))


def test_tied_weights_of_different_widths_are_refused():
    with pytest.raises(ShapeError, match="embed=5, hidden=6"):
        small(tie_weights=True)


def test_label_smoothing_is_for_training():
    model = small(label_smoothing=0.3)
    plain = small()
    with db.Graph() as graph:
        smoothed, unsmoothed = model.loss(graph, *PAIRS[0]), plain.loss(graph, *PAIRS[0])
        assert abs(float(smoothed.value) - float(unsmoothed.value)) > 1e-3
        evaluated = model.eval().loss(graph, *PAIRS[0])
        assert float(evaluated.value) == pytest.approx(float(unsmoothed.value), rel=1e-6)


def test_dropout_changes_the_loss_while_training_alone():
    model = small(dropout=0.5)
    with db.Graph(seed=1) as graph, db.Graph(seed=2) as other:
        losses = [float(model.loss(g, *PAIRS[0]).value) for g in (graph, other)]
        model.eval()
        calm = [float(model.loss(g, *PAIRS[0]).value) for g in (graph, other)]
    assert losses[0] != losses[1]
    assert calm[0] == calm[1]


@pytest.mark.parametrize("layers", [1, 2])
def test_the_loss_is_that_of_the_predictions(layers):
    model = small(layers=layers).eval()
    with db.Graph(grad=False) as graph:
        for source, target in PAIRS:
            encoded = model.encode(graph, source)
            logits = model.predict(model.decode(graph, [model.start, *target], *encoded))
            log_probs = F.log_softmax(logits).value
            total = log_probs[range(len(target) + 1), [*target, model.end]].sum()
            assert -total == pytest.approx(float(model.loss(graph, source, target).value), rel=1e-6)


def test_a_pair_makes_one_node_for_its_loss_and_few_batches():
    model = small()
    with db.Graph() as graph:
        model.loss(graph, *PAIRS[0])
        assert len(graph) == 1 and not graph.block_notes
        graph.forward()
        # encoder: lookup, 2 scans, concat, 2 last h (ports); bridge: concat, 2 linear, tanh; keys,
        # values; decoder: lookup, scan; linear folded into cross-entropy
        assert graph.statistics.nodes == 15


@pytest.mark.exhaustive
def test_it_learns_to_reverse():
    model = models.Seq2Seq(8, 8, embed=16, hidden=32, rng=0)
    optimizer = optim.Adam(model, lr=0.01)
    rng = np.random.default_rng(0)
    sources = [rng.integers(2, 8, rng.integers(1, 6)) for _ in range(40)]
    pairs = [(source, source[::-1]) for source in sources]
    first = train_loss(model, pairs)
    for _ in range(120):
        optimizer.step()
        last = train_loss(model, pairs)
    assert last < first / 50


def test_an_id_outside_a_vocabulary_is_refused():
    model = small()
    with db.Graph() as graph:
        with pytest.raises(VocabularyError, match=r"lookup in .*id 8"):
            model.loss(graph, [8], [3])
        with pytest.raises(VocabularyError, match="id 9"):
            model.loss(graph, [3], [9])


def test_a_memory_limit_splits_a_mini_batch_whose_losses_are_one_node_each():
    model = small()

    def step(limit=None):
        with db.Graph() as graph:
            pairs = [([3, 4, 5, 6] * 5, [7, 3] * 6), ([5] * 9, [4, 8, 3] * 4), ([6] * 7, [2] * 15)]
            losses = [model.loss(graph, *pair) for pair in pairs]
            assert [graph.sentence(loss) for loss in losses] == [0, 1, 2]
            assert graph.sentence(losses[1] * 2.0) == 1
            total = F.sum(losses)
            graph.backward(total, memory_limit=limit)
            return graph.peak_bytes, graph.memory_use.saving, float(total.value)

    free, _, expected = step()
    limited, saving, found = step(int(free * 0.35))
    assert limited <= free * 0.35 and "micro-batches" in saving
    assert found == pytest.approx(expected, rel=1e-5)

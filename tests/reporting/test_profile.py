"""Floating-point operations against hand counts and PyTorch's, and the profile by node type."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.nodes.flops import Flops

LENGTHS = (3, 5)
TOKENS = sum(LENGTHS)


def floats(*shape):
    return np.full(shape, 0.5, "float32")


def by_type(build, lengths=LENGTHS, width=4):
    """Operations by node type of a step on sentences of one loss each; inputs get no gradient."""
    with db.Graph() as graph:
        losses = [build(F.input(graph, floats(n, width))) for n in lengths]
        graph.backward(F.mean(losses))
    return graph.flops().by_type


def test_a_linear_map_takes_2mnk_and_as_much_for_its_weights_gradient():
    first, second = models.Linear(4, 6), models.Linear(6, 2, bias=False)
    counts = by_type(lambda x: F.sum(second(F.tanh(first(x)))))
    a, b = 2 * TOKENS * 4 * 6, 2 * TOKENS * 6 * 2
    bias = TOKENS * 6
    assert counts["LinearMap"].forward == Flops(a + b, bias)
    assert counts["LinearMap"].backward == Flops(a + 2 * b, bias)  # dx of the second one alone
    assert counts["Tanh"] == (Flops(0, TOKENS * 6), Flops(0, TOKENS * 6))
    assert counts["Input"] == (Flops(), Flops())


def test_a_frozen_weight_has_no_gradient_to_count():
    first, second = models.Linear(4, 6), models.Linear(6, 2)
    for parameter in second.parameters():
        parameter.frozen = True
    counts = by_type(lambda x: F.sum(second(first(x))))
    a, b = 2 * TOKENS * 4 * 6, 2 * TOKENS * 6 * 2
    assert counts["LinearMap"].backward == Flops(a + b, TOKENS * 6)


def test_a_graph_without_backward_counts_forward_alone():
    linear = models.Linear(4, 6)
    with db.Graph() as graph:
        linear(F.input(graph, floats(3, 4)))
        graph.forward()
        flops = graph.flops()
    assert flops.backward == Flops() and flops.forward == Flops(2 * 3 * 4 * 6, 18)
    assert flops.total == flops.products + 18 == 2 * 3 * 4 * 6 + 18


def test_products_of_two_values_count_each_sentence_alone():
    linear = models.Linear(4, 6, bias=False)

    def build(x):
        y = linear(x)
        return F.sum(y @ F.transpose(y))  # (T, 6) by (6, T)

    counts = by_type(build)
    products = sum(2 * n * n * 6 for n in LENGTHS)
    assert counts["MatMul"] == (Flops(products), Flops(2 * products))
    assert counts["Transpose"].forward == Flops()


@pytest.mark.parametrize("lengths", [(3, 5), (1, 1)])
def test_attention_takes_two_products_and_four_for_its_gradients(lengths):
    attention = models.MultiHeadAttention(8, 2)
    counts = by_type(lambda x: F.sum(attention(x)), lengths, width=8)
    (kind,) = [name for name in counts if name.endswith("DotProductAttention")]
    pairs = sum(n * n for n in lengths)
    assert counts[kind].forward == Flops(2 * pairs * (8 + 8), 2 * pairs)
    assert counts[kind].backward == Flops(2 * 2 * pairs * (8 + 8), 2 * pairs)


def test_windows_and_a_linear_map_are_a_convolution():
    convolution = models.Linear(3 * 4, 6)
    counts = by_type(lambda x: F.sum(convolution(F.windows(x, 3, padding=2))))
    rows = sum(n + 2 for n in LENGTHS)
    assert "Windows" not in counts
    assert counts["LinearOfWindows"].forward == Flops(2 * rows * 3 * 4 * 6, rows * 6)


def test_an_lstm_counts_every_step_of_every_sentence():
    embed, lstm = models.Linear(4, 5), models.LSTM(5, 7)
    counts = by_type(lambda x: F.sum(lstm(embed(x))))
    a_token = 2 * (4 * 7 * 5 + 4 * 7 * 7)
    assert counts["Scan"].forward.products == TOKENS * a_token
    assert counts["Scan"].backward.products == 2 * TOKENS * a_token
    without_dx = by_type(lambda x: F.sum(lstm(x)), width=5)["Scan"].backward.products
    assert without_dx == TOKENS * (2 * a_token - 2 * 4 * 7 * 5)


@db.cell
def unit(child, p):
    return F.tanh(p(child) + child)


def test_calls_count_as_often_as_the_cell_is_called():
    linear = models.Linear(4, 4)

    def build(x):
        h = x[0]
        for _ in range(x.shape[0]):
            h = unit(h, linear)
        return F.sum(h)

    counts = by_type(build)
    product = 2 * TOKENS * 4 * 4
    assert counts["calls of unit"].forward == Flops(product, TOKENS * (4 + 4 + 4))
    assert counts["calls of unit"].backward.products == 2 * product


def test_attention_inside_a_cell_reads_its_own_sentences_memory():
    key, value = models.Linear(4, 4, bias=False), models.Linear(4, 6, bias=False)

    @db.cell
    def decode(x, state, p, memory):
        h = F.tanh(p(x) + F.attention(state, *memory)[:4])
        return h, h

    linear = models.Linear(4, 4, bias=False)
    steps = {3: 2, 5: 4}  # steps of a sentence, by its length

    def build(x):
        memory = key(x), value(x)
        ys, _ = db.scan(decode, x[: steps[len(x)]], 4, linear, memory=memory)
        return F.sum(ys)

    pairs = sum(steps[n] * n for n in LENGTHS)
    tokens = sum(steps.values())
    scan = by_type(build)["Scan"]
    attention = 2 * pairs * (4 + 6)
    assert scan.forward.products == 2 * tokens * 4 * 4 + attention
    assert scan.backward.products == 2 * tokens * 4 * 4 + 2 * attention


def test_a_loss_with_its_projection_counts_the_logits():
    project = models.Linear(4, 9)
    counts = by_type(lambda x: F.cross_entropy(project(x), np.zeros(len(x), int)))
    ((kind, flops),) = [item for item in counts.items() if "CrossEntropy" in item[0]]
    logits = TOKENS * 9
    assert kind == "LinearCrossEntropy +grad"
    assert flops == (Flops(2 * logits * 4, 2 * logits), Flops(2 * logits * 4, 2 * logits))


def test_what_a_memory_limit_computes_again_is_not_counted():
    layers = [models.Linear(16, 16) for _ in range(6)]

    def counted(limit):
        with db.Graph() as graph:
            x = F.input(graph, floats(64, 16))
            for layer in layers:
                x = F.tanh(layer(x))
            graph.backward(F.sum(x), memory_limit=limit)
        return graph.flops(), graph.peak_bytes, str(graph.memory_use.saving)

    whole, peak, _ = counted(None)
    limited, less, saving = counted(int(peak * 0.8))
    assert "recompute" in saving and less < peak
    assert (limited.forward, limited.backward) == (whole.forward, whole.backward)


def test_a_second_backward_counts_again():
    linear = models.Linear(4, 6)
    with db.Graph() as graph:
        x = linear(F.input(graph, floats(3, 4)).keep()).keep()
        graph.backward(F.sum(x))
        once = graph.flops().by_type["LinearMap"]
        graph.backward(F.sum(F.tanh(x)))
        twice = graph.flops().by_type["LinearMap"]
    assert twice == (once.forward, once.backward.times(2))


# Beside PyTorch ----------------------------------------------------------------------------------


def torch_products(torch, step):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # The fused kernels of attention compute scores once more in backward, and count them.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        step()
    return counter.get_total_flops()


def test_linear_maps_count_as_in_pytorch():
    torch = pytest.importorskip("torch")
    ours = [models.Linear(12, 20), models.Linear(20, 3)]
    theirs = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))
    with db.Graph() as graph:
        x = F.input(graph, floats(7, 12))
        graph.backward(F.sum(ours[1](F.tanh(ours[0](x)))))
    products = torch_products(torch, lambda: theirs(torch.ones(7, 12)).sum().backward())
    assert graph.flops().products == products


def test_a_transformer_layer_counts_as_in_pytorch():
    torch = pytest.importorskip("torch")
    batch, length = 3, 5
    embed = models.Linear(8, 16)
    layer = models.TransformerEncoder(1, 16, 2, 32, dropout=0.0)
    with db.Graph() as graph:
        xs = [embed(F.input(graph, floats(length, 8))) for _ in range(batch)]
        graph.backward(F.mean([F.sum(layer(x)) for x in xs]))
    theirs = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    before = torch.nn.Linear(8, 16)
    products = torch_products(
        torch, lambda: theirs(before(torch.ones(batch, length, 8))).sum().backward()
    )
    assert graph.flops().products == products


# The profile -------------------------------------------------------------------------------------


def test_a_profile_adds_up_batches_and_outlives_the_graph():
    linear = models.Linear(4, 6)
    with db.Graph() as graph:
        for n in LENGTHS:
            F.tanh(F.tanh(linear(F.input(graph, floats(n, 4)))))
        graph.forward()
        inside = graph.profile()
    profile = graph.profile()
    assert profile == inside
    rows = {row.kind: row for row in profile.rows}
    assert [row.share for row in profile.rows] == sorted(r.share for r in profile.rows)[::-1]
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    tanh, input_, map_ = rows["Tanh"], rows["Input"], rows["LinearMap"]
    assert (tanh.batches, tanh.nodes, tanh.rows) == (2, 4, 2 * TOKENS)
    assert tanh.flops == Flops(0, 2 * TOKENS * 6) and tanh.bytes == 4 * 2 * 2 * TOKENS * 6
    assert input_.bytes == 2 * 4 * TOKENS * 4 and input_.flops_per_second == 0
    assert map_.bytes == 4 * (TOKENS * 4 + TOKENS * 6 + 4 * 6 + 6)
    seconds = map_.seconds + map_.seconds_backward
    assert map_.flops_per_second == pytest.approx(map_.flops.total / seconds)


def test_the_table_of_a_profile_has_a_line_for_each_type_and_one_for_the_others():
    with db.Graph() as graph:
        x = F.input(graph, floats(3, 4))
        for f in (F.tanh, F.exp, F.relu, F.abs, F.sigmoid, F.silu, F.gelu, F.log, F.softmax):
            f(x)
        graph.forward()
    head, *lines = str(graph.profile()).splitlines()
    assert head.split()[-3:] == ["share", "GFLOP/s", "MB"]
    assert len(lines) == 9 and lines[-1].startswith("2 others ")
    assert {len(line) for line in [head, *lines]} == {len(head)} and len(head) == 80


def test_explain_has_operations_a_second_of_each_batch():
    linear = models.Linear(256, 256)
    with db.Graph() as graph:
        linear(F.input(graph, floats(512, 256)))
        graph.forward()
    lines = graph.explain().splitlines()
    rows = lines[next(k for k, line in enumerate(lines) if line.endswith(" GFLOP/s")) + 1 :][:2]
    of_map = graph.profile().rows
    rate = next(row.flops_per_second for row in of_map if row.kind == "LinearMap")
    assert [float(row.split()[-1]) for row in rows] == [0.0, float(f"{rate / 1e9:.1f}")]

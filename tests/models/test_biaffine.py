import numpy as np

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.testing import check_batching, check_gradient
from tests.torch_parity import assert_equals_torch

D, K = 3, 2


def test_arcs_are_a_bilinear_form_with_a_score_of_each_head():
    arcs = models.BiaffineArcs(D)

    def build(d, h, weight, bias):
        arcs.weight, arcs.bias = weight, bias
        return arcs(d, h)

    def reference(d, h, weight, bias):
        return h.new_tensor(0) + d @ weight.T @ h.T + h @ bias

    sentences = [[(4, D), (5, D)], [(1, D), (2, D)], [(2, D), (7, D)]]
    assert_equals_torch(build, reference, sentences, [(D, D), (D,)])


def test_labels_are_a_bilinear_form_each_and_a_linear_one():
    labels = models.BiaffineLabels(D, K)

    def build(d, h, bilinear, linear, bias):
        labels.bilinear.weight, labels.linear.weight, labels.linear.bias = bilinear, linear, bias
        return labels(d, h)

    def reference(d, h, bilinear, linear, bias):
        torch = __import__("torch")
        products = torch.einsum("td,kde,te->tk", h, bilinear.reshape(K, D, D), d)
        return products + torch.cat([d, h], -1) @ linear.T + bias

    shapes = [(K * D, D), (K, 2 * D), (K,)]
    assert_equals_torch(build, reference, [[(n, D)] * 2 for n in (4, 1, 0)], shapes)


def parser(dtype="float64"):
    made = models.BiaffineParser(4, num_labels=K, arcs=3, labels=2, rng=0).astype(dtype)
    made.arc_scores.weight.assign(np.random.default_rng(1).standard_normal((3, 3)))
    return made


def test_the_loss_of_heads_and_labels_batches_over_lengths():
    made, rng = parser(), np.random.default_rng(2)
    sentences = [
        (rng.standard_normal((n, 4)), rng.integers(0, n + 1, n), rng.integers(0, K, n))
        for n in (3, 1, 5, 3)
    ]
    check_batching(
        lambda graph, *sentence: made.loss(*sentence), sentences, parameters=made.parameters()
    )
    states, heads, labels = sentences[0]
    check_gradient(
        lambda graph, x: made.loss(x, heads, labels), inputs=[states], parameters=made.parameters()
    )


def test_the_loss_is_that_of_arcs_and_of_labels_at_the_right_heads():
    made, rng = parser("float32"), np.random.default_rng(3)
    heads, labels = np.array([2, 0, 2]), np.array([1, 0, 1])
    with db.Graph() as graph:
        states = F.input(graph, rng.standard_normal((3, 4)))
        arcs, names = made.arcs(states).value, made.labels(states, heads).value
        loss = float(made.loss(states, heads, labels).value)
    expected = sum(
        [
            np.log(np.exp(row).sum()) - row[right]
            for scores, answers in ((arcs, heads), (names, labels))
            for row, right in zip(scores, answers, strict=True)
        ]
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_trees_that_the_words_tell_are_learned():
    """The head of a small number is the next larger one, of the largest the root."""
    rng = np.random.default_rng(4)
    embed, made = models.Embedding(8, 16, rng=0), models.BiaffineParser(16, K, 24, 12, rng=1)
    optimizer = optim.Adam([*embed.parameters(), *made.parameters()], lr=0.03)

    def sentences(count):
        for length in rng.integers(1, 7, count).tolist():
            words = rng.permutation(8)[:length]
            order = np.argsort(words)
            heads = np.zeros(length, np.int64)
            heads[order[:-1]] = order[1:] + 1
            yield words, heads, words % K

    for _ in range(50):
        with db.Graph() as graph:
            losses = [made.loss(embed(graph, w), heads, k) for w, heads, k in sentences(12)]
            graph.backward(F.mean(losses))
        optimizer.step()
    right = []
    with db.Graph(grad=False) as graph:
        for words, heads, names in sentences(40):
            states = embed(graph, words)
            found = models.maximum_spanning_tree(made.arcs(states).value)
            labels = made.labels(states, found).value.argmax(axis=1)
            right += [*(found == heads), *(labels == names)]
    assert np.mean(right) > 0.97

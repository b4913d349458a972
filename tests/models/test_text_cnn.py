import numpy as np

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.nodes.operation import signature_type
from dynbatch.testing import check_batching
from tests.torch_parity import assert_equals_torch


def test_it_equals_convolutions_and_maxima_of_pytorch():
    model = models.TextCNN(3, num_classes=2, sizes=(2, 4), filters=5, dropout=0.0)
    names = [layer for layer in (*model.filters, model.project)]
    shapes = [p.shape for layer in names for p in (layer.weight, layer.bias)]

    def build(x, *parameters):
        for layer, weight, bias in zip(names, parameters[::2], parameters[1::2], strict=True):
            layer.weight, layer.bias = weight, bias
        return model(x)

    def reference(x, *parameters):
        torch = __import__("torch")
        found = []
        for size, w, b in zip(model.sizes, parameters[::2], parameters[1::2], strict=False):
            kernel = w.reshape(5, size, 3).transpose(1, 2)
            y = torch.nn.functional.conv1d(x.T[None], kernel, b, padding=size - 1)
            found.append(y[0].relu().max(1).values)
        return parameters[-2] @ torch.cat(found) + parameters[-1]

    assert_equals_torch(build, reference, [(6, 3), (1, 3), (3, 3)], shapes)


def test_sentences_of_all_lengths_batch():
    model = models.TextCNN(3, num_classes=2, filters=4, dropout=0.0, rng=0).astype("float64")
    rng = np.random.default_rng(0)
    sentences = [(rng.standard_normal((n, 3)),) for n in (5, 0, 1, 2, 9)]
    check_batching(lambda graph, x: model(x), sentences, parameters=model.parameters())
    with db.Graph(dtype="float64", grad=False) as graph:
        for (x,) in sentences:
            model(F.input(graph, x))
        graph.forward()
        (plan,) = graph.plans
    kinds = [signature_type(step.signature).__name__ for step in plan.steps]
    assert kinds.count("LinearOfWindows") == 3 and kinds.count("LinearMap") == 1  # for each size


def test_a_phrase_is_found_wherever_it_stands():
    """The class is whether token 1 comes right before token 2."""
    rng = np.random.default_rng(1)
    embed, model = models.Embedding(6, 8, rng=0), models.TextCNN(8, 2, (2, 3), 12, 0.0, rng=1)
    optimizer = optim.Adam([*embed.parameters(), *model.parameters()], lr=0.01)

    def sentences(count):
        for length in rng.integers(2, 12, count).tolist():
            words = rng.integers(0, 6, length)
            if rng.random() < 0.4:
                place = rng.integers(0, length - 1)
                words[place : place + 2] = 1, 2
            yield words, int(((words[:-1] == 1) & (words[1:] == 2)).any())

    for _ in range(80):
        with db.Graph() as graph:
            losses = [
                F.cross_entropy(model(embed(graph, w)), answer) for w, answer in sentences(24)
            ]
            graph.backward(F.mean(losses))
        optimizer.step()
    with db.Graph(grad=False) as graph:
        pairs = [(model(embed(graph, w)), answer) for w, answer in sentences(200)]
        right = [int(scores.value.argmax()) == answer for scores, answer in pairs]
    assert np.mean(right) > 0.95

"""Wrong arguments: each an error of the library that says what is wrong, the rule and the fix."""

import copy
import inspect
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

import dynbatch as db
from dynbatch import errors, models, optim
from dynbatch import nodes as F
from dynbatch.arguments import interval
from dynbatch.errors import ArgumentError
from dynbatch.optim.clipping import clip_grad_norm_, clip_grad_value_
from dynbatch.train import SentenceBatches, Trainer
from tests.optim.settings import OF_PROBABILITIES, SETTINGS


class Wrong(NamedTuple):
    """A call that is refused, what its message begins with, and pieces of rule and fix."""

    call: Any
    begins: str
    pieces: tuple[str, ...]
    error: type[Exception] = ArgumentError


def refusal(wrong):
    with pytest.raises(wrong.error) as caught:
        wrong.call()
    message = str(caught.value)
    assert message.startswith(wrong.begins), message
    for piece in ("\n  rule: ", "\n  fix:  ", *wrong.pieces):
        assert piece in message, message
    assert f"made at {__file__}" in message
    return message


def cases(*wrongs):
    return pytest.mark.parametrize("wrong", wrongs, ids=lambda wrong: wrong.begins[:60])


# Models -------------------------------------------------------------------------------------------

SIZED = {
    models.LSTM: ("input_size", "hidden_size", "layers"),
    models.GRU: ("input_size", "hidden_size", "layers"),
    models.Linear: ("in_features", "out_features"),
    models.Embedding: ("num_embeddings", "dim"),
    models.LayerNorm: ("features",),
    models.BatchNorm: ("features",),
    models.BinaryTreeLSTM: ("input_size", "hidden_size"),
    models.ChildSumTreeLSTM: ("input_size", "hidden_size"),
    models.AdditiveAttention: ("query_size", "key_size", "hidden"),
    models.GeneralAttention: ("query_size", "key_size"),
    models.BiaffineArcs: ("features",),
    models.BiaffineLabels: ("features", "num_labels"),
    models.BiaffineParser: ("states", "num_labels", "arcs", "labels"),
    models.CRF: ("num_tags",),
    models.SemiCRF: ("num_labels", "longest"),
    models.GPT: ("num_tokens", "longest", "width", "layers", "heads"),
    models.TransformerTranslation: ("source_vocab", "target_vocab", "hidden", "layers", "heads"),
    models.TextCNN: ("input_size", "num_classes", "filters"),
    models.CausalConv1d: ("features", "kernel"),
    models.GatedDeltaNet: ("dim", "heads", "kernel"),
    models.Mamba2: ("dim", "heads", "state", "expand", "groups", "kernel"),
    models.Seq2Seq: ("source_vocab", "target_vocab", "embed", "hidden", "layers"),
    models.RMSNorm: ("features",),
    models.MultiHeadAttention: ("dim", "heads"),
    models.FeedForward: ("dim", "hidden"),
    models.TransformerEncoderLayer: ("dim", "heads"),
    models.TransformerDecoderLayer: ("dim", "heads"),
    models.TransformerEncoder: ("layers", "dim", "heads"),
    models.TransformerDecoder: ("layers", "dim", "heads"),
    models.EmbeddingBag: ("num_embeddings", "dim"),
    models.Conv1d: ("in_channels", "out_channels", "kernel_size", "groups"),
    models.Transformer: ("dim", "heads", "encoder_layers", "decoder_layers"),
}
FROM_DATA = {
    (models.Linear, "in_features"), (models.LSTM, "input_size"), (models.GRU, "input_size"),
    (models.Conv1d, "in_channels"),
}  # fmt: skip
"""Sizes that may be None: they are those of the first input."""
WITHOUT_SIZES = {
    models.Dropout, models.DotAttention, models.Attention, models.Module, models.Flatten,
    models.Sequential,
    models.Conv2d, models.ConvTranspose2d, models.MaxPool2d, models.AvgPool2d,  # may be pairs
}  # fmt: skip


def test_every_model_is_in_the_table():
    kinds = {
        kind
        for kind in vars(models).values()
        if inspect.isclass(kind) and issubclass(kind, models.Module)
    }
    assert kinds == SIZED.keys() | WITHOUT_SIZES


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in SIZED.items() for name in names]
)
def test_sizes_are_integers_above_0(kind, name):
    right = dict.fromkeys(SIZED[kind], 2)
    kind(**dict.fromkeys(SIZED[kind], np.int64(2)))
    values = (0, -1, 2.0, 2.5, "2", None, True, [2])
    for value in values if (kind, name) not in FROM_DATA else (*values[:5], *values[6:]):
        message = refusal(Wrong(
            lambda value=value: kind(**(right | {name: value})),
            f"{kind.__name__}: {name} is {value!r}.", (f"an integer, {name} >= 1",),
        ))  # fmt: skip
        says = {"2": f"give {name}=2, without quotes", 2.0: f"give {name}=2; of a quotient"}
        assert says.get(value if value.__hash__ else None, "give") in message


@cases(
    Wrong(lambda: models.LSTM(2, 3, num_layers=2), "LSTM: there is no argument 'num_layers'", (
        "its arguments are input_size, hidden_size, layers", "layers= is its name here")),
    Wrong(lambda: models.LSTM(2, 3, batch_first=True), "LSTM: there is no argument 'batch_first'", (
        "a call takes one sentence", "leave it out")),
    Wrong(lambda: models.GRU(2, hidden=3), "GRU: there is no argument 'hidden'", (
        "hidden_size= is",)),
    Wrong(lambda: models.GRU(in_features=2, hidden_size=3), "GRU: there is no argument", (
        "input_size= is",)),
    Wrong(lambda: models.LSTM(2, 3, bias=False), "LSTM: there is no argument 'bias'", (
        "always has its biases",)),
    Wrong(lambda: models.LSTM(2, 3, bidirectonal=True), "LSTM: there is no argument", (
        "bidirectional= may be meant",)),
    Wrong(lambda: models.Linear(input_size=2, out_features=3), "Linear: there is no argument", (
        "in_features= is",)),
    Wrong(lambda: models.Linear(2, 3, device="cuda"), "Linear: there is no argument 'device'", (
        'model.to("cuda")',)),
    Wrong(lambda: models.Embedding(5, embedding_dim=3), "Embedding: there is no argument", (
        "dim= is",)),
    Wrong(lambda: models.Embedding(5, 3, padding_idx=0), "Embedding: there is no argument", (
        "nothing is padded",)),
    Wrong(lambda: models.LayerNorm(normalized_shape=4), "LayerNorm: there is no argument", (
        "features= is",)),
    Wrong(lambda: models.Dropout(rate=0.5), "Dropout: there is no argument 'rate'", ("p= is",)),
    Wrong(lambda: models.CRF(num_labels=3), "CRF: there is no argument 'num_labels'", (
        "num_tags= is",)),
    Wrong(lambda: models.Seq2Seq(5, 5, hidden_size=4, emb_dim=4), "Seq2Seq: there is no argument", (
        "hidden= is",)),
    Wrong(lambda: models.Seq2Seq(vocab_size=9, embed=4, hidden=4), "Seq2Seq: there is no argument",
        ("source_vocab= or target_vocab= is",)),
    Wrong(lambda: models.TextCNN(4, 2, kernel_sizes=(2, 3)), "TextCNN: there is no argument", (
        "sizes= is",)),
    Wrong(lambda: models.BinaryTreeLSTM(4, 2, qqq=1), "BinaryTreeLSTM: there is no argument 'qqq'",
        ("its arguments are input_size, hidden_size, rng", "leave it out")),
)  # fmt: skip
def test_names_of_pytorch_are_answered_with_ours(wrong):
    refusal(wrong)


def test_a_model_of_the_users_takes_its_own_names():
    class Own(models.LSTM):
        def __init__(self, num_layers, **rest):
            super().__init__(2, 3, layers=num_layers, **rest)

    assert Own(num_layers=2, bidirectional=True).layers == 2
    with pytest.raises(TypeError, match="missing 1 required"):
        Own()
    bare = type("Bare", (models.Module,), {})
    refusal(Wrong(lambda: bare(size=2), "Bare: arguments are given", ("leave them out",)))
    refusal(Wrong(lambda: bare(2), "Bare: arguments are given", ("leave them out",)))


@cases(
    Wrong(lambda: models.Dropout(2.0), "Dropout: p is 2.0.", ("0 <= p <= 1",)),
    Wrong(lambda: models.Dropout("0.5"), "Dropout: p is '0.5'.", ("give p=0.5, without quotes",)),
    Wrong(lambda: models.Dropout(True), "Dropout: p is True.", ("a switch was given in",)),
    Wrong(lambda: models.LSTM(2, 3, dropout=-0.1), "LSTM: dropout is -0.1.", ()),
    Wrong(lambda: models.LSTM(2, 3, 1, True, True), "LSTM: dropout is True.", ("by its name",)),
    Wrong(lambda: models.LSTM(2, 3, 1, 0.5), "LSTM: bidirectional is 0.5.", ("True or False",)),
    Wrong(lambda: models.Linear(2, 3, "no"), "Linear: bias is 'no'.", ("True or False",)),
    Wrong(lambda: models.Linear(2, 3, rng="0"), "rng: initial values", ("a seed >= 0",)),
    Wrong(lambda: models.Embedding(2, 3, scale="1"), "Embedding: scale is '1'.", ("scale >= 0",)),
    Wrong(lambda: models.LayerNorm(2, eps=-1), "LayerNorm: eps is -1.", ("eps >= 0",)),
    Wrong(lambda: models.DotAttention("x"), "DotAttention: scale is 'x'.", ("a number",)),
    Wrong(lambda: models.TextCNN(2, 3, sizes=4), "TextCNN: sizes is 4.", ("sizes=(3, 4, 5)",)),
    Wrong(lambda: models.TextCNN(2, 3, sizes=()), "TextCNN: sizes is ().", ()),
    Wrong(lambda: models.TextCNN(2, 3, sizes=(3, 0)), "TextCNN: sizes[1] is 0.", ()),
    Wrong(lambda: models.Seq2Seq(5, 5, 4, 4, attention="dot"), "Seq2Seq: attention is 'dot'.", (
        "'additive' or 'general'",)),
    Wrong(lambda: models.Seq2Seq(5, 5, 4, 4, label_smoothing=1), "Seq2Seq: label_smoothing", (
        "label_smoothing < 1",)),
    Wrong(lambda: models.Seq2Seq(5, 5, 4, 4, end="</s>"), "Seq2Seq: end is '</s>'.", ("end >= 0",)),
)  # fmt: skip
def test_other_settings_of_models(wrong):
    refusal(wrong)


def test_calls_without_a_graph_or_with_one_node():
    embed, crf = models.Embedding(5, 2), models.CRF(3)
    refusal(Wrong(lambda: embed([1, 2]), "Embedding: called with ids alone.", (
        "embed(graph, ids)",)))  # fmt: skip
    refusal(Wrong(lambda: embed([1, 2], None), "Embedding: called with a list as its graph.", ()))
    with db.Graph() as graph:
        emissions = F.input(graph, np.zeros((2, 3)))
        refusal(Wrong(lambda: crf.decode(emissions), "CRF.decode: given one node, Input #0.", (
            "crf.decode([emissions])[0]",)))  # fmt: skip
        assert crf.decode([emissions])[0].shape == (2,)


@pytest.mark.parametrize("p", [2.0, -0.1, float("nan"), "0.5", True, None])
def test_a_rate_of_dropout_is_a_probability(p):
    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        refusal(Wrong(lambda: F.dropout(x, p), f"dropout: p is {p!r}.", ("0 <= p <= 1",)))
        assert F.dropout(x, np.float32(0.5)).p == 0.5


# Optimizers ---------------------------------------------------------------------------------------


def one():
    return [db.Parameter(np.ones(2))]


OPTIMIZERS = tuple(
    dict.fromkeys([getattr(optim, name) for name, _ in [*SETTINGS, *OF_PROBABILITIES]])
)
NO_NUMBERS = ("0.1", None, True, float("nan"), [0.1], np.ones(2), 1j)
SETTINGS = [
    (kind, name)
    for kind in OPTIMIZERS
    for name, default in inspect.signature(kind).parameters.items()
    if isinstance(default.default, float)
]


@pytest.mark.parametrize(("kind", "name"), SETTINGS)
def test_settings_of_optimizers_are_numbers(kind, name):
    for value in NO_NUMBERS:
        refusal(Wrong(
            lambda value=value: kind(one(), **{name: value}),
            f"{kind.__name__}: {name} is {value!r}.", ("a number",),
        ))  # fmt: skip
    kind(one(), **{name: np.float32(0.25)})


def test_the_rate_is_a_number_whenever_it_is_set():
    optimizer = optim.Adam(one())
    with pytest.raises(ArgumentError, match=r"Adam: lr is '0\.1'(?s:.*)give lr=0\.1, without quot"):
        optimizer.lr = "0.1"
    optimizer.lr = np.float64(0.5)
    assert optimizer.lr == 0.5 and type(optimizer.lr) is float


SCHEDULED = optim.SGD(one(), lr=0.4)


@cases(
    Wrong(lambda: optim.SGD(one(), nesterov="yes"), "SGD: nesterov is 'yes'.", ("True or False",)),
    Wrong(lambda: optim.SGD(one(), nesterov=True), "SGD: nesterov with momentum=0.0", (
        "nesterov takes momentum > 0",)),
    Wrong(lambda: optim.SGD(one(), momentum=3.0), "SGD: momentum is 3.0.", ("momentum < 1",)),
    Wrong(lambda: optim.RMSprop(one(), momentum=1), "RMSprop: momentum is 1.", ("momentum < 1",)),
    Wrong(lambda: optim.RMSprop(one(), centered=1), "RMSprop: centered is 1.", ()),
    Wrong(lambda: optim.Adam(one(), betas=0.9), "Adam: betas is 0.9.", ("betas=(0.9, 0.999)",)),
    Wrong(lambda: optim.AdamW(one(), betas=(0.9,)), "AdamW: betas is (0.9,).", ("a pair",)),
    Wrong(lambda: optim.Adam(one(), betas=(0.9, 1.0)), "Adam: betas[1] is 1.0.", ("< 1",)),
    Wrong(lambda: optim.Adam(one(), betas="09"), "Adam: betas is '09'.", ()),
    Wrong(lambda: optim.Adam([]), "Adam: there are no parameters", ("build it before",)),
    Wrong(lambda: optim.SGD(one()[0], lr=0.1), "SGD: parameters is a Parameter.", ("[parameter]",)),
    Wrong(lambda: optim.Adam(None, lr=0.1), "Adam: parameters is None.", ("optim.Adam(model)",)),
    Wrong(lambda: optim.Adam(models.CRF), "Adam: parameters is the class CRF.", ()),
    Wrong(lambda: clip_grad_norm_(3, 1.0), "clip_grad_norm_: parameters is 3.", ()),
    Wrong(lambda: clip_grad_value_(3, 1.0), "clip_grad_value_: parameters is 3.", ()),
    Wrong(lambda: optim.Adam(one(), momentum=0.9), "Adam: there is no argument 'momentum'", (
        "its arguments are parameters, lr, betas", "betas= is")),
    Wrong(lambda: optim.SGD(one(), learning_rate=0.9), "SGD: there is no argument", ("lr= is",)),
    Wrong(lambda: optim.Adam(one(), fused=True), "Adam: there is no argument", ("leave it out",)),
    Wrong(lambda: optim.Adam(one()).load_state_dict([1]), "Adam: the state is a list.", (
        "what state_dict() returned",)),
    Wrong(lambda: models.Linear(2, 2).load_state_dict([1]), "Linear: the state is a list.", ()),
    Wrong(lambda: optim.Constant(0.1), "Constant: optimizer is a float.", ("optim.Adam(model)",)),
    Wrong(lambda: optim.LinearWarmup(SCHEDULED, "10"), "LinearWarmup: warmup_steps is '10'.", (
        "warmup_steps=10, without quotes",)),
    Wrong(lambda: optim.InverseSqrt(SCHEDULED, 0), "InverseSqrt: warmup_steps is 0.", (">= 1",)),
    Wrong(lambda: optim.Cosine(SCHEDULED, 5, 5), "Cosine: total_steps is 5.", ("> 5",)),
    Wrong(lambda: optim.Cosine(SCHEDULED, None), "Cosine: total_steps is None.", ()),
    Wrong(lambda: optim.Cosine(SCHEDULED, 5, min_lr="0"), "Cosine: min_lr is '0'.", ()),
    Wrong(lambda: optim.Plateau(SCHEDULED, factor=1.0), "Plateau: factor is 1.0.", (
        "0 < factor < 1",)),
    Wrong(lambda: optim.Plateau(SCHEDULED, patience="3"), "Plateau: patience is '3'.", ()),
    Wrong(lambda: optim.Plateau(SCHEDULED, cooldown=0.5), "Plateau: cooldown is 0.5.", (">= 0",)),
    Wrong(lambda: optim.Plateau(SCHEDULED, higher_is_better="max"), "Plateau: higher_is_", ()),
    Wrong(lambda: optim.Plateau(SCHEDULED).step("0.5"), "Plateau.step: metric is '0.5'.", ()),
    Wrong(lambda: clip_grad_norm_(one(), "1"), "clip_grad_norm_: max_norm is '1'.", (
        "max_norm=1, without quotes",)),
    Wrong(lambda: clip_grad_norm_(one(), -1), "clip_grad_norm_: max_norm is -1.", (">= 0",)),
    Wrong(lambda: clip_grad_value_(one(), None), "clip_grad_value_: clip_value is None.", ()),
)  # fmt: skip
def test_other_settings_of_optimizers_and_schedules(wrong):
    refusal(wrong)
    assert SCHEDULED.lr == 0.4


# Parameters, threads, training --------------------------------------------------------------------


def weight():
    return db.Parameter(np.ones((2, 3), np.float32), "w")


def set_value(value):
    weight().value = value


@cases(
    Wrong(lambda: set_value(np.ones((3, 2), np.float32)), "Parameter 'w': its value cannot become "
        "an array (3, 2).", ("(2, 3)", "parameter.assign(", "new Parameter"), errors.ShapeError),
    Wrong(lambda: set_value(np.ones((2, 3))), "Parameter 'w': its value cannot become an array of "
        "float64.", ("a float32 array (2, 3) on the cpu",), errors.DtypeError),
    Wrong(lambda: set_value([[1.0] * 3] * 2), "Parameter 'w': its value cannot become a list.", (),
        errors.DtypeError),
    Wrong(lambda: set_value(None), "Parameter 'w': its value cannot become a NoneType.", (),
        errors.DtypeError),
    Wrong(lambda: weight().assign(np.ones(3)), "Parameter 'w': values (3,) for a parameter (2, 3).",
        ("np.broadcast_to(values, (2, 3))",), errors.ShapeError),
    Wrong(lambda: db.Parameter(np.arange(3)), "Parameter 'parameter': float32 or float64 expected, "
        "got int64.", ("values.astype(np.float32)",), errors.DtypeError),
    Wrong(lambda: db.Parameter([1, 2]), "Parameter 'parameter': float32 or float64 expected, got "
        "int64.", ("values.astype(np.float32)",), errors.DtypeError),
    Wrong(lambda: db.Parameter("weight"), "Parameter 'parameter': float32 or float64 expected, got "
        "a str.", ("np.array(numbers, np.float32)",), errors.DtypeError),
    Wrong(lambda: db.Parameter({"W": 1}), "Parameter 'parameter': float32 or float64 expected, got "
        "a dict.", (), errors.DtypeError),
    Wrong(lambda: db.Parameter([[1.0], [1.0, 2.0]]), "Parameter 'parameter': float32 or float64 "
        "expected, got a list that does not make an array", (), errors.DtypeError),
    Wrong(lambda: db.Parameter(np.ones((2, 0))), "Parameter 'parameter': its shape is (2, 0).",
        ("a quotient, as width // heads, is 0",), errors.ShapeError),
)  # fmt: skip
def test_what_a_parameter_cannot_hold(wrong):
    refusal(wrong)


def test_a_value_may_be_another_array_of_its_kind():
    parameter = weight()
    parameter.value = other = np.full((2, 3), 7, np.float32)
    assert parameter.value is other
    parameter.value += 1
    assert parameter.value is other and other[0, 0] == 8
    parameter.value = parameter.value * 2
    assert parameter.numpy()[0, 0] == 16


def test_a_value_stays_on_its_device(cuda):
    array = cuda.asarray(np.ones((2, 3), np.float32))
    with pytest.raises(errors.BackendError, match=r"cannot become an array on the cuda(?s:.*)cpu"):
        set_value(array)


@pytest.mark.parametrize("count", [1.5, 0, -1, True, "2", None])
def test_threads_are_counted_by_integers(same_threads, count):
    before = db.num_threads()
    refusal(Wrong(lambda: db.set_num_threads(count), f"set_num_threads: count is {count!r}.", (
        "an integer, count >= 1",)))  # fmt: skip
    assert db.num_threads() == before
    db.set_num_threads(np.int64(2))
    assert db.num_threads() == 2


class TorchLike:
    """An object that is to NumPy as a dtype of PyTorch is: nothing that it knows."""

    def __repr__(self):
        return "torch.float64"


def limited(memory_limit):
    with db.Graph() as graph:
        graph.backward(F.sum(F.input(graph, [1.0]).keep()), memory_limit)


@pytest.mark.parametrize("objects", [1.5, 0, True, "a"])
def test_new_objects_are_counted_by_integers(objects):
    refusal(Wrong(lambda: db.set_gc_threshold(objects), f"set_gc_threshold: objects is {objects!r}",
        ("an integer, objects >= 1",)))  # fmt: skip


@pytest.mark.parametrize("value", [1.5, -1, True, "a", None])
def test_a_seed_of_the_process_is_an_integer(value):
    before = db.random.get_state()
    refusal(Wrong(lambda: db.seed(value), f"seed: value is {value!r}", ("an integer, value >= 0",)))
    assert db.random.get_state() == before


@cases(
    Wrong(lambda: db.Graph(check="yes"), "Graph: check is 'yes'.", ("True or False",)),
    Wrong(lambda: db.Graph(guard=1), "Graph: guard is 1.", ("True or False",)),
    Wrong(lambda: db.Graph(grad=None), "Graph: grad is None.", ("True or False",)),
    Wrong(lambda: db.Graph(seed="a"), "Graph: seed is 'a'.", ("an integer",)),
    Wrong(lambda: db.Graph(dtype="foo"), "Graph: dtype is 'foo'.", ('dtype="float32"',),
        errors.DtypeError),
    Wrong(lambda: db.Graph(dtype=TorchLike()), "Graph: dtype is torch.float64.", (
        'dtype="float64"',), errors.DtypeError),
    Wrong(lambda: db.Graph(dtype=None), "Graph: dtype is None.", (), errors.DtypeError),
    Wrong(lambda: models.Linear(2, 2).astype("foo"), "Linear: dtype is 'foo'.", (),
        errors.DtypeError),
    Wrong(lambda: db.Graph(foo=1), "Graph: there is no argument 'foo'", ("its arguments are dev",)),
    Wrong(lambda: db.Graph(requires_grad=False), "Graph: there is no argument", ("grad= is",)),
    Wrong(lambda: db.Graph(policy="x"), "Graph: policy is 'x'.", ("by_agenda",)),
    Wrong(lambda: db.Graph(policy=["x"]), "Graph: policy is ['x'].", ()),
    Wrong(lambda: F.input(3, [1.0]), "input: graph is 3.", ("comes first", "F.input(graph, …)")),
    Wrong(lambda: F.input(db.Graph, [1.0]), "input: graph is the class Graph.", ()),
    Wrong(lambda: F.constant(None, 1.0), "constant: graph is None.", ("F.constant(graph, …)",)),
    Wrong(lambda: F.lookup(3, db.Parameter([[1.0]]), [0]), "lookup: graph is 3.", ()),
    Wrong(lambda: F.parameter(None, db.Parameter(np.ones(2))), "parameter: graph is None.", ()),
    Wrong(lambda: Trainer(foo=1), "Trainer: there is no argument 'foo'.", ("model, opt",)),
    Wrong(lambda: Trainer(max_grad_norm=1.0), "Trainer: there is no", ("clip_norm= is",)),
    Wrong(lambda: db.Graph(pool=3), "Graph: pool is 3.", ("dynbatch.memory.Pool",)),
    Wrong(lambda: db.Graph().values(3), "values: nodes is 3.", ("graph.values([x, y])",)),
    Wrong(lambda: db.Graph().to_dot(sentence="a"), "to_dot: sentence is 'a'.", ("an integer",)),
    Wrong(lambda: db.Graph().to_dot(sentence=5), "to_dot: sentence is 5.", ("the graph has 0",)),
    Wrong(lambda: limited("lots"), "memory_limit: 'lots' is not a number of", ('"2GiB"',)),
    Wrong(lambda: limited(-1), "memory_limit: -1 is not a number of bytes.", ()),
    Wrong(lambda: limited(0), "memory_limit: 0 is not a number of bytes.", ()),
    Wrong(lambda: limited(True), "memory_limit: True is not a number of bytes.", ()),
    Wrong(lambda: pickle.dumps(db.Graph()), "Graph(0 nodes", ("store values",), errors.DtypeError),
    Wrong(lambda: copy.copy(db.Graph()), "Graph(0 nodes", (), errors.DtypeError),
    Wrong(lambda: copy.deepcopy([db.Graph()]), "Graph(0 nodes", (), errors.DtypeError),
    Wrong(lambda: db.Graph(seed=1.5), "Graph: seed is 1.5.", ("an integer",)),
)  # fmt: skip
def test_settings_of_graphs(wrong):
    refusal(wrong)
    assert db.Graph(seed=np.int64(-1)).seed == 2**32 - 1


def test_batches_of_a_trainer_know_their_epochs():
    model = models.Linear(2, 2)
    optimizer = optim.SGD(model)
    for batches, kind in (([[1, 2]], "a list"), (iter([]), "a list_iterator"), (None, "None")):
        refusal(Wrong(
            lambda batches=batches: Trainer(model, optimizer, lambda *_: None, batches),
            f"Trainer: batches is {kind}.", ("epoch(n)", "SentenceBatches(examples"),
        ))  # fmt: skip
    Trainer(model, optimizer, lambda *_: None, SentenceBatches([1, 2], 2))


def trainer(**other):
    model = models.Linear(2, 2)
    settings = {
        "model": model, "optimizer": optim.SGD(model), "loss_function": lambda *_: None,
        "batches": SentenceBatches([1, 2], 2),
    }  # fmt: skip
    return Trainer(**settings | other)


@cases(
    Wrong(lambda: trainer(model=None), "Trainer: model is None.", ("models.Module",)),
    Wrong(lambda: trainer(model=models.CRF), "Trainer: model is the class CRF.", ("CRF(…)",)),
    Wrong(lambda: trainer(optimizer=None), "Trainer: optimizer is None.", ("optim.Adam(",)),
    Wrong(lambda: trainer(loss_function=None), "Trainer: loss_function is None.", (
        "loss_function(graph, model, example)",)),
    Wrong(lambda: trainer(loss_function=lambda graph: None), "Trainer: loss_function takes", (
        "loss_function=lambda graph, model, example: …",)),
    Wrong(lambda: trainer(schedule=3), "Trainer: schedule is 3.", ("optim.Cosine(",)),
    Wrong(lambda: trainer(num_tokens=3), "Trainer: num_tokens is 3.", ("num_tokens(example)",)),
    Wrong(lambda: trainer(validate=3), "Trainer: validate is 3.", ("validate(model)",)),
    Wrong(lambda: trainer(make_graph=db.Graph()), "Trainer: make_graph is a Graph.", ()),
    Wrong(lambda: trainer(memory_every=0), "Trainer: memory_every is 0.", (">= 1",)),
    Wrong(lambda: trainer(memory_every=None), "Trainer: memory_every is None.", (">= 1",)),
    Wrong(lambda: trainer(checkpoint_every="9"), "Trainer: checkpoint_every is '9'.", ()),
    Wrong(lambda: trainer(clip_norm="5"), "Trainer: clip_norm is '5'.", ("clip_norm=5",)),
    Wrong(lambda: trainer(higher_is_better="yes"), "Trainer: higher_is_better is 'yes'.", ()),
)  # fmt: skip
def test_settings_of_a_trainer(wrong):
    refusal(wrong)


@pytest.mark.parametrize(
    ("decoded", "error", "says"),
    [
        (np.ones((2, 3)), errors.DtypeError, "CRF.decode: a node expected, got ndarray"),
        ([1], errors.DtypeError, "CRF.decode: a node expected, got int"),
        (None, ArgumentError, "CRF.decode: emissions is None"),
    ],
)
def test_emissions_are_a_list_of_nodes(decoded, error, says):
    with pytest.raises(error, match=says):
        models.CRF(3).decode(decoded)


def state(init):
    with db.Graph() as graph:
        db.initial_state(graph, init)


@cases(
    Wrong(lambda: db.stack(None), "stack: results is None.", ("db.stack([h1, h2])",)),
    Wrong(lambda: db.total(3), "total: results is 3.", ("db.total([",)),
    Wrong(lambda: db.initial_state(3, 3), "initial_state: a graph expected, got int.", (
        "initial_state(graph, …)",), errors.DtypeError),
    Wrong(lambda: state(-1), "initial_state: -1 is not an initial state.", (), errors.ShapeError),
    Wrong(lambda: state([0.0, 0.0]), "initial_state: [0.0, 0.0] is not", (
        "init=2 for zeros; F.input(graph, [0.0, 0.0])",), errors.ShapeError),
    Wrong(lambda: state([2, 2]), "initial_state: [2, 2] is not", ("init=(2, 2)",),
        errors.ShapeError),
)  # fmt: skip
def test_states_and_results_of_cells(wrong):
    refusal(wrong)


@pytest.mark.parametrize("init", [(2, 2), (2,)])
def test_a_tuple_for_a_state_of_one_part_is_answered_with_its_width(init):
    @db.cell
    def add(x, h, params):
        return x, h + x

    with db.Graph() as graph, pytest.raises(errors.DtypeError) as caught:
        db.scan(add, F.input(graph, np.ones((3, 2))), init=init)
    said = f"init: {init} is given; with init=2 the cell's next state has its widths"
    assert said in str(caught.value)


def test_intervals_hold_what_mathematics_says():
    assert [interval("[0, 1)").holds(x) for x in (0, 0.5, 1, -1, float("nan"))] == [
        True, True, False, False, False
    ]  # fmt: skip
    assert [interval("(0, inf]").holds(x) for x in (0, 1, float("inf"))] == [False, True, True]
    assert interval("(-inf, inf)").rule("x") == "a number that is finite"
    assert interval("(-inf, 2]").rule("x") == "a number, x <= 2"

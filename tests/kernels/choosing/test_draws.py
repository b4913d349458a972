"""Cut distributions, and tokens drawn from them."""

import numpy as np
import pytest

from dynbatch.kernels.choosing.draws import cut_rows, draw_rows

CUT = [0.7, 40, 0.9, 0.01]


def expected(row, temperature, top_k, top_p, min_p):
    """One row, sorted as a whole."""
    row = row / temperature
    order = np.argsort(-row, kind="stable")
    kept = np.ones(row.size, bool)
    if top_k:
        kept &= row >= row[order[min(int(top_k), row.size) - 1]]
    weights = np.exp(np.where(kept, row, -np.inf) - row.max())
    if top_p < 1:
        before = np.cumsum(weights[order]) - weights[order]
        kept[order[max(1, int((before < top_p * weights.sum()).sum())) :]] = False
    kept &= weights >= min_p
    return np.where(kept, row, -np.inf)


@pytest.mark.parametrize("seed", range(40))
def test_each_row_is_cut_as_if_it_was_sorted(seed):
    rng = np.random.default_rng(seed)
    temperatures, top_ks = rng.choice([0.5, 1.0, 1.7], 5), rng.choice([0, 1, 7, 5000], 5)
    top_ps, min_ps = rng.choice([1.0, 0.95, 0.5, 0.01], 5), rng.choice([0.0, 0.05, 0.4], 5)
    cuts = np.stack([temperatures, top_ks, top_ps, min_ps], axis=1)
    logits = rng.normal(size=(5, int(rng.choice([4, 300, 3000])))) * rng.choice([0.1, 1, 6])
    if seed % 4 == 0:
        logits = np.round(logits)  # equal ones: the first of them stay
    found = logits.copy()
    cut_rows(found, cuts)
    for row, cut, result in zip(logits, cuts, found, strict=True):
        np.testing.assert_allclose(result, expected(row, *cut), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 500)).astype(dtype)
    together, cuts, uniforms = logits.copy(), np.tile(CUT, (6, 1)), rng.random(6)
    cut_rows(together, cuts)
    drawn = np.empty(6, np.int64)
    draw_rows(together, uniforms, drawn)
    for k in range(6):
        alone, one = logits[k : k + 1].copy(), np.empty(1, np.int64)
        cut_rows(alone, cuts[:1])
        draw_rows(alone, uniforms[k : k + 1], one)
        assert alone.tobytes() == together[k : k + 1].tobytes() and one[0] == drawn[k]


def test_what_was_cut_off_is_never_drawn_and_minus_one_takes_the_most_probable():
    row = np.array([-np.inf, 0.0, -np.inf, 3.0, 3.0, -np.inf])
    uniforms = np.array([0.0, np.nextafter(1, 0), -1.0])
    drawn = np.empty(3, np.int64)
    draw_rows(np.stack([row] * 3), uniforms, drawn)
    assert drawn.tolist() == [1, 4, 3]

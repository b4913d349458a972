"""`compare_padding` measures what runs; estimates and sums agree with it."""

from __future__ import annotations

import json
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.padding import Comparison, LanguageModel, PaddingError, Tagger
from dynbatch.padding.forms import (
    CAUSES,
    FORMS,
    PADDED_BUCKETED,
    PADDED_BY_TOKENS,
    PADDED_RANDOM,
    UNPADDED_BY_TOKENS,
    UNPADDED_RANDOM,
)
from dynbatch.padding.measure import Stepper

WORDS = 30


def pairs(count: int = 48) -> list[Any]:
    rng = np.random.default_rng(0)
    lengths = rng.geometric(0.2, size=(count, 2))
    return [(rng.integers(WORDS, size=n), rng.integers(WORDS, size=m)) for n, m in lengths]


def seq2seq() -> models.Seq2Seq:
    return models.Seq2Seq(WORDS, 200, 16, 16, rng=0)


@cache
def found() -> Comparison:
    model = seq2seq()
    return db.memory.compare_padding(
        model, model.loss, pairs(32), batch_size=8, num_batches=4, batch_sizes=(4, 8)
    )


def test_unpadded_batches_hold_less_than_padded_ones() -> None:
    forms = found().forms
    assert tuple(forms) == FORMS
    assert forms[UNPADDED_RANDOM].peak_bytes < forms[PADDED_RANDOM].peak_bytes
    assert 1 == forms[UNPADDED_RANDOM].cells_a_token < forms[PADDED_BUCKETED].cells_a_token
    assert forms[PADDED_BUCKETED].cells_a_token < forms[PADDED_RANDOM].cells_a_token
    own, other = forms[UNPADDED_RANDOM].peak_bytes, forms[PADDED_RANDOM].peak_bytes
    assert found().saved() == 1 - own / other


def test_causes_sum_to_the_peak_and_the_chain_ends_at_the_unpadded_batch() -> None:
    for form in found().forms.values():
        assert sum(form.by_cause.values()) == form.peak_bytes
        assert max([size for _, size in form.stages]) <= form.peak_bytes
        assert 0 < form.mean_bytes <= form.peak_bytes
        assert 0 < (form.value_bytes or 0) < form.peak_bytes
        assert form.requested_bytes is not None and form.reserved_bytes is not None
        arena = form.peak_bytes - form.by_cause["index tables"]
        assert arena == form.requested_bytes <= form.reserved_bytes
    assert tuple([cause.name for cause in found().causes]) == CAUSES
    left = found().without - sum([cause.in_chain for cause in found().causes[:-1]])
    assert 0 < left <= found().forms[UNPADDED_RANDOM].peak_bytes
    assert found().causes[-1].in_chain < left
    assert all([cause.alone > 0 and cause.in_chain > 0 for cause in found().causes])
    assert found().causes[0].alone == found().causes[0].in_chain


def test_curves_reach_what_was_measured() -> None:
    curves = dict(found().by_batch_size)
    by_tokens = curves.pop(PADDED_BY_TOKENS)  # batches of about the same size, none the largest
    assert by_tokens[4] < by_tokens[8]
    assert by_tokens[8] == pytest.approx(found().forms[PADDED_BY_TOKENS].peak_bytes, rel=0.05)
    for name, curve in curves.items():
        assert curve[4] < curve[8] == found().forms[name].peak_bytes


def test_the_table_tells_the_curves_in_its_columns() -> None:
    _, _, below = str(found()).partition("peak by sentences of a batch, MB\n")
    four, eight, *_ = below.splitlines()
    assert len(four.split()) == len(eight.split()) == len(found().by_batch_size) + 1
    assert eight.split()[0] == "8"


def test_what_was_traced_holds_the_arena_and_the_gradients() -> None:
    for form in found().forms.values():
        assert form.traced_bytes is not None and form.gradient_bytes
        assert form.traced_bytes > form.peak_bytes


def test_what_forms_hold_is_a_step_s_alone_with_the_gradients_that_are_always_dense() -> None:
    class Scores(models.Module):
        def __init__(self) -> None:
            self.map = models.Linear(4, 2_000, rng=0)

        def loss(self, graph: db.Graph, xs: Any) -> db.Node:
            h = F.input(graph, xs)
            for _ in range(6):  # values that backward does not need, but that can be read
                h = F.reshape(h + 1.0, (-1, 4)) * 0.5
            return F.mean(F.relu(self.map(h)))

    model = Scores()
    xs = [np.ones((n, 4), np.float32) for n in (3, 9, 5, 7)]
    found = db.memory.compare_padding(model, model.loss, xs, 2, num_batches=2, batch_sizes=())
    for form in found.forms.values():
        assert form.requested_bytes == form.peak_bytes - form.by_cause["index tables"]
        assert form.gradient_bytes == 4 * 2_000 * 5 and form.traced_bytes is not None
        assert form.traced_bytes >= form.requested_bytes + form.gradient_bytes


def test_a_very_long_sentence_is_trained_on_once_in_each_form_and_not_traced(monkeypatch) -> None:
    monkeypatch.setattr("dynbatch.padding.measured_models.MOST_TRACED", 60)
    trained: list[int] = []
    train = Stepper.train

    def counted(stepper: Stepper, examples: Any) -> Any:
        trained.append(max([len(example[0]) for example in examples]))
        return train(stepper, examples)

    monkeypatch.setattr(Stepper, "train", counted)
    model = LanguageModel(WORDS, embed=4, hidden=4)
    lines = [np.arange(n) % WORDS for n in (5, 7, 3, 61, 4, 6)]
    found = db.memory.compare_padding(model, model.loss, lines, batch_size=2, batch_sizes=())
    assert trained.count(61) == len(FORMS)
    assert [form.traced_bytes for form in found.forms.values()] == [None] * len(FORMS)
    assert "traced" not in str(found)


def test_batches_by_tokens_hold_no_more_than_so_many_sentences_on_average() -> None:
    lengths = [sum(map(len, pair)) for pair in pairs(32)]
    form = found().forms[PADDED_BY_TOKENS]
    assert found().batch_tokens == -(-8 * sum(lengths) // 32)
    assert 1 < form.cells_a_token < found().forms[PADDED_RANDOM].cells_a_token
    assert form.peak_bytes < found().forms[PADDED_BUCKETED].peak_bytes
    unpadded = found().forms[UNPADDED_BY_TOKENS]
    assert unpadded.cells_a_token == 1
    assert unpadded.peak_bytes < form.peak_bytes
    less = 1 - unpadded.peak_bytes / form.peak_bytes
    _, _, after = str(found()).partition("unpadded, by tokens: memory at the peak\n")
    assert after.startswith(f"  {less:.0%} less than padded, by tokens\n")
    assert PADDED_BY_TOKENS in found().as_json()["saved"]  # type: ignore[operator]


@pytest.mark.usefixtures("short_search")
def test_a_memory_limit_tells_what_fits_and_what_the_rest_costs() -> None:
    model = LanguageModel(WORDS, 8, 16, rng=0)
    lines = [words for words, _ in pairs(32)]
    compare = partial(
        db.memory.compare_padding,
        model, model.loss, lines, batch_size=8, num_batches=1, batch_sizes=(),
    )  # fmt: skip
    whole = compare(memory_limit="1 GB").limited
    assert [one.name for one in whole] == list(FORMS)
    for one in whole:
        assert one.fitting == one.batches and one.peak_bytes == one.whole_bytes
        assert not one.saving and one.recompute_share == 0
    found = compare(memory_limit=whole[0].whole_bytes // 2)
    tight = {one.name: one for one in found.limited}[PADDED_RANDOM]
    assert tight.fitting < tight.batches and tight.peak_bytes is not None
    assert tight.peak_bytes <= whole[0].whole_bytes // 2 < tight.whole_bytes
    assert tight.saving in " ".join(str(found).split()) and "MB of arena" in str(found)
    low = compare(memory_limit=100).limited[0]
    assert low.peak_bytes is None and low.least_bytes is not None and low.least_bytes > 100
    assert "cannot keep the limit" in " ".join(str(low).split())
    with pytest.raises(db.errors.ArgumentError, match="memory_limit: 'much' is not"):
        compare(memory_limit="much")


def test_values_in_bfloat16_take_less_and_compute_the_same_loss_in_both_forms() -> None:
    model = models.Seq2Seq(WORDS, 200, 64, 64, rng=0)
    adam, peaks = db.optim.Adam(model, 0.0), []
    for precision in ("float32", "bfloat16"):
        step = Stepper(model.loss, lambda: None, adam, "float32", 0, precision=precision)
        peaks.append(step.plan(pairs(8)).use.peak_bytes)
    assert peaks[1] < peaks[0]
    small, words = LanguageModel(WORDS, 8, 8, rng=0), [words for words, _ in pairs(4)]
    compare = partial(db.memory.compare_padding, small, small.loss, words, 4, batch_sizes=())
    short = compare(num_batches=1, precision="bfloat16")
    assert "values in bfloat16" in short.title and "compute the same loss" in short.note
    with pytest.raises(db.errors.ArgumentError, match="precision is 'half'"):
        compare(precision="half")


def test_both_forms_compute_the_same_loss() -> None:
    padded, unpadded = found().losses
    assert padded == pytest.approx(unpadded, rel=1e-5)
    assert "the same loss" in found().note


def test_model_is_as_it_was() -> None:
    model = Tagger(WORDS, 5, embed=4, hidden=4, rng=0)
    before = model.state_dict()
    sentences = [(words, words % 5) for words, _ in pairs(8)]
    db.memory.compare_padding(
        model, model.loss, sentences, batch_size=4, num_batches=1, batch_sizes=()
    )
    assert model.training
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        np.testing.assert_array_equal(parameter.value, before[name])


def test_table_names_forms_causes_and_savings() -> None:
    text = str(found())
    saved = f"{found().saved():.0%} less than padded, random"
    for part in (saved, "no padding", "chunked loss", "reused memory", "kept for backward", "Seq2"):
        assert part in text
    assert not re.search(r"nan|None|  \n", text)
    assert max(map(len, text.splitlines())) <= 100


def test_json_has_every_number(tmp_path: Path) -> None:
    found().to_json(tmp_path / "a.json")
    read = json.loads((tmp_path / "a.json").read_text())
    assert read["forms"][PADDED_RANDOM]["peak_bytes"] == found().forms[PADDED_RANDOM].peak_bytes
    assert read["saved"][PADDED_RANDOM] == pytest.approx(found().saved(), abs=1e-4)


def test_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found().picture(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_model_that_reads_its_padding_is_noted() -> None:
    class Bag(models.Module):
        def __init__(self) -> None:
            self.embedding = models.Embedding(WORDS, 4, rng=0)
            self.output = models.Linear(4, 3, rng=0)

        def loss(self, graph: db.Graph, words: Any) -> db.Node:
            return F.cross_entropy(self.output(F.mean(self.embedding(graph, words), dim=0)), [1])

    model = Bag()
    sentences = [words for words, _ in pairs(8)]
    read = db.memory.compare_padding(
        model, model.loss, sentences, batch_size=4, num_batches=1, batch_sizes=()
    )
    assert read.note.startswith("NOTE") and "reads" in read.note


def test_what_cannot_be_measured_says_why() -> None:
    model = LanguageModel(WORDS, 4, 4, rng=0)
    compare = db.memory.compare_padding
    with pytest.raises(PaddingError, match="3 sentences for batches of 4"):
        compare(model, model.loss, [[1]] * 3, batch_size=4)
    with pytest.raises(PaddingError, match="no sentence has a token"):
        compare(model, model.loss, [[]] * 3, batch_size=2)
    with pytest.raises(PaddingError, match=r"example 1: .* no sequence of tokens"):
        compare(model, model.loss, [[1], [[2], 3]], batch_size=2)
    with pytest.raises(PaddingError, match="example 1 has 2 sequences, the first 1"):
        compare(model, model.loss, [([1],), ([1], [2])], batch_size=2)

    def reads_its_target(graph: db.Graph, words: Any, tags: Any) -> db.Node:
        return F.sum(model.embedding(graph, tags))

    with pytest.raises(PaddingError, match=r"does not run on padded sentences: .*id -100"):
        compare(model, reads_its_target, [([1], [2]), ([1, 2], [2, 2])], batch_size=2)


@pytest.mark.parametrize(
    "number",
    [{"batch_size": 0}, {"batch_size": True}, {"num_batches": 0}, {"batch_sizes": (8, 0)}],
)
def test_numbers_of_batches_and_sentences_are_1_or_more(number: Any) -> None:
    model = LanguageModel(WORDS, 4, 4, rng=0)
    with pytest.raises(PaddingError, match=f"{next(iter(number))} of (0|True)"):
        db.memory.compare_padding(model, model.loss, [[1]] * 3, **{"batch_size": 2, **number})


@pytest.mark.parametrize(
    ("pad", "said"),
    [
        (lambda example, longest: example, r"pad returned sequences of \[1\] tok.*does not pad"),
        (lambda example, longest: 3, "pad returned a int"),
        ("zeros", "pad is 'zeros', not a function"),
    ],
)
def test_function_that_does_not_pad_is_an_error(pad: Any, said: str) -> None:
    model = LanguageModel(WORDS, 4, 4, rng=0)
    sentences = [[1] * n for n in (1, 3, 2)]
    with pytest.raises(PaddingError, match=f"(?s){said}"):
        db.memory.compare_padding(model, model.loss, sentences, batch_size=3, pad=pad)


def test_padded_batch_that_does_not_fit_is_not_taken_for_one_that_cannot_be_padded(
    monkeypatch: Any,
) -> None:
    model = LanguageModel(WORDS, 4, 4, rng=0)
    monkeypatch.setattr(
        "dynbatch.padding.measure.Pool", lambda: db.memory.Pool(limit_bytes=100_000)
    )
    with pytest.raises(db.errors.OutOfMemory) as error:
        db.memory.compare_padding(model, model.loss, [[1]] * 7 + [[1] * 200], batch_size=8)
    assert "smaller mini-batch" in str(error.value) and "pad=" not in str(error.value)


def test_a_loss_of_another_form_is_told_how_it_is_called() -> None:
    model = LanguageModel(WORDS, 4, 4, rng=0)
    compare = db.memory.compare_padding
    lines = [np.arange(n) % WORDS for n in (3, 5)]
    with pytest.raises(PaddingError, match=r"example 0, \(ndarray\): missing .*'targets'"):
        compare(model, lambda graph, words, targets: None, lines, batch_size=2)
    with pytest.raises(PaddingError, match="loss is a LanguageModel, not a function"):
        compare(model, model, lines, batch_size=2)  # type: ignore[arg-type]

    def of_a_trainer(graph: db.Graph, model: Any, example: Any) -> db.Node:
        return model.loss(graph, *example)

    with pytest.raises(AttributeError) as raised:
        compare(model, of_a_trainer, [(line, line) for line in lines], batch_size=2)
    assert "calls loss(graph, *example)" in raised.value.__notes__[0]


def test_batch_sizes_and_names_of_forms_that_are_none_are_refused() -> None:
    model = LanguageModel(WORDS, 4, 4, rng=0)
    with pytest.raises(db.errors.ArgumentError, match=r"batch_sizes is 8.*\n.*\n.*=\[32\]"):
        db.memory.compare_padding(model, model.loss, [[1]] * 3, batch_sizes=8)  # type: ignore[arg-type]
    with pytest.raises(
        db.errors.ArgumentError, match=r"'padded' is not a form.*\n.*'padded, random'"
    ):
        found().saved("padded")

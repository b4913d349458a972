"""A translator: what it is scored by, and the units of a file's tokens."""

import pytest

from dynbatch.errors import CheckpointError
from dynbatch.tasks.task import Parts
from dynbatch.tasks.translation.settings import TranslationSettings
from dynbatch.tasks.translation.translator import Translator
from dynbatch.text import ParallelText, Vocabulary
from dynbatch.train import read_checkpoint, save_checkpoint


@pytest.fixture
def translator():
    sizes = {"embed": 8, "hidden": 16}
    return Translator(sizes, Vocabulary("abc"), Vocabulary("xy"), "words", "words", 5)


def test_a_task_shows_its_name_and_size(translator):
    size = translator.model.num_parameters()
    assert repr(translator) == f"Translator(translation, {size:,} parameters)"


def test_targets_are_scored_against_their_references(translator):
    translator.model.output.bias.value[translator.model.end] = 1e4  # it says nothing at all
    texts = [ParallelText("a b", ("x", "")), ParallelText("c", ("x y",))]
    assert translator.written(texts) == [(), ()]
    assert translator.evaluate(texts) == {"token error rate": 1.0, "sequence error rate": 0.5}


def test_every_reference_makes_a_pair_of_ids_without_marks():
    texts = [ParallelText("b a", ("x", "x y")), ParallelText("a", ("y",))]
    settings = TranslationSettings(embed=4, hidden=4, source_units="words", target_units="words")
    translator = Translator.begin(Parts(texts, [], []), settings)
    pairs = translator.examples(texts)
    assert [translator.source.decode(pair.source) for pair in pairs] == [["b", "a"]] * 2 + [["a"]]
    assert [translator.target.decode(pair.target) for pair in pairs] == [["x"], ["x", "y"], ["y"]]
    assert [pair.num_tokens for pair in pairs] == [3, 4, 2]


def test_vocabularies_count_tokens_of_both_sides_apart():
    texts = [ParallelText("b a", ("x", "x y")), ParallelText("a", ("y",))]
    units = {"source_units": "words", "target_units": "words"}
    settings = TranslationSettings(embed=4, hidden=4, min_count=2, **units)
    translator = Translator.begin(Parts(texts, [], []), settings)
    assert translator.source.tokens[3:] == ["a"]
    assert translator.target.tokens[3:] == ["x", "y"]
    assert translator.unknown(texts) == 2 / 9  # b, read twice


def test_targets_that_cannot_be_written_are_counted():
    known = [ParallelText("one two", ("a b",)), ParallelText("two one", ("b a",))]
    units = {"source_units": "words", "target_units": "words"}
    settings = TranslationSettings(embed=4, hidden=4, **units)
    translator = Translator.begin(Parts(known, [], []), settings)
    assert translator.tokens(known) == ["2 different words in sources, 2 words in targets"]
    _, lacking = translator.tokens([*known, ParallelText("one", ("a c",))])
    assert lacking.startswith("33% of the targets") and "--target-units characters" in lacking


@pytest.mark.parametrize("units", ["words", "characters"])
def test_a_test_of_words_is_told_with_the_scores_that_are_known(units, monkeypatch):
    given = []

    def scores(found, references):
        given.append((found, references))
        return {"BLEU": 12.34, "chrF": 56.78}

    monkeypatch.setattr("dynbatch.tasks.translation.translator.translation_scores", scores)
    sizes = {"embed": 8, "hidden": 16}
    made = Translator(sizes, Vocabulary("abc"), Vocabulary("xy"), "words", units, 5)
    made.model.output.bias.value[made.model.end] = 1e4  # it says nothing at all
    told = made.report(Parts([], [], [ParallelText("a b", ("x", "y"))]))
    assert told.startswith("token error rate 100.00%, 0 of 1 sequences exact")
    assert told.endswith(", BLEU 12.3, chrF 56.8") == (units == "words")
    assert given == [([""], [("x", "y")])] * (units == "words")


def test_a_description_that_makes_no_model_is_refused_with_one_fix(tmp_path):
    sizes = {"hidden": 8, "layers": 1, "heads": 2}
    words = Vocabulary("abc"), Vocabulary("xy"), "words", "words", 5
    translator = Translator(sizes, *words, kind="transformer")
    description = translator.description()
    description["sizes"] = {**description["sizes"], "heads": 3}
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, translator.model, extra={"description": description})
    with pytest.raises(
        CheckpointError, match="damaged: its description of the model has"
    ) as caught:
        Translator.described(read_checkpoint(path))
    said = str(caught.value)
    assert "3 heads for 8 features" in said and said.count("fix:") == 1

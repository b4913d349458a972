"""Settings of generation: their ranges, and generation_config.json."""

import json

import pytest

from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.generation.config import GenerationConfig


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("max_new_tokens", 0, "max_new_tokens >= 1"),
        ("temperature", 0.0, "temperature > 0"),
        ("top_p", 0.0, "0 < top_p <= 1"),
        ("min_p", 1.5, "0 <= min_p <= 1"),
        ("top_k", -1, "top_k >= 0"),
        ("repetition_penalty", 0, "repetition_penalty > 0"),
        ("eos_token_id", (3, -1), "eos_token_id >= 0"),
        ("early_stopping", "soon", "never"),
        ("stop_strings", ("",), "not empty"),
        ("do_sample", 1, "True or False"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(field, value, rule):
    with pytest.raises(ArgumentError) as raised:
        GenerationConfig(**{field: value})
    assert field in str(raised.value) and rule in str(raised.value)


@pytest.mark.parametrize("field", ["max_new_tokens", "top_k", "suppress_tokens", "stop_strings"])
def test_none_is_refused_where_it_has_no_meaning(field):
    with pytest.raises(ArgumentError, match=f"{field} is None"):
        GenerationConfig(**{field: None})


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ArgumentError, match="do_sample with num_beams=3"):
        GenerationConfig(do_sample=True, num_beams=3)
    with pytest.raises(ArgumentError, match="2 results of 1 beams"):
        GenerationConfig(num_return_sequences=2)


def test_one_id_and_one_text_count_as_lists_of_it():
    config = GenerationConfig(eos_token_id=7, stop_strings="\n")
    assert config.eos_token_id == (7,) and config.stop_strings == ("\n",)


def test_the_greatest_length_is_the_least_of_all_bounds():
    config = GenerationConfig(max_new_tokens=20, max_length=30, min_length=12, min_new_tokens=4)
    assert [config.limit(n) for n in (3, 15, 29)] == [20, 15, 1]
    assert config.limit(3, positions=9) == 6
    assert [config.least(n) for n in (3, 9, 50)] == [9, 4, 4]


def test_a_file_of_transformers_is_read(tmp_path):
    given = {
        "bos_token_id": 0, "eos_token_id": [1, 2], "bad_words_ids": [[58100]], "num_beams": 4,
        "forced_eos_token_id": 0, "max_length": 512, "transformers_version": "4.2",
        "typical_p": 1.0, "top_p": None,
    }  # fmt: skip
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    config = GenerationConfig.from_pretrained(tmp_path, max_new_tokens=9)
    assert config.eos_token_id == (1, 2) and config.bad_words_ids == ((58100,),)
    assert (config.num_beams, config.forced_eos_token_id) == (4, (0,))
    assert (config.max_length, config.max_new_tokens, config.top_p) == (None, 9, 1.0)
    config = GenerationConfig.from_pretrained(tmp_path)
    assert (config.max_length, config.limit(500), config.limit(3)) == (512, 12, 509)


def test_a_change_takes_the_bound_of_a_file_away():
    given = {"max_length": 12}
    assert GenerationConfig.from_dict(given, max_length=None) == GenerationConfig()


def test_a_folder_without_the_file_gives_the_defaults(tmp_path):
    assert GenerationConfig.from_pretrained(tmp_path) == GenerationConfig()


def test_a_temperature_of_zero_is_refused_with_the_way_to_take_the_most_probable():
    with pytest.raises(
        ArgumentError, match=r"temperature is 0\.(.|\n)*do_sample=False, or --greedy"
    ):
        GenerationConfig(do_sample=True, temperature=0)


def test_a_change_of_how_to_draw_is_refused_where_nothing_is_drawn():
    with pytest.raises(ArgumentError, match=r"top_k=5 without do_sample=True"):
        GenerationConfig().changed(top_k=5)
    with pytest.raises(ArgumentError, match=r"temperature=0\.5 without do_sample=True"):
        GenerationConfig(do_sample=True).changed(temperature=0.5, do_sample=False)
    assert GenerationConfig(do_sample=True).changed(top_k=5).top_k == 5
    assert not GenerationConfig(do_sample=True, top_k=5).changed(do_sample=False).do_sample


def test_a_field_of_another_name_is_answered_by_ours():
    for given, fix in (
        ({"max_tokens": 5}, "max_new_tokens= is its name here"),
        ({"stop": "."}, "stop_strings= is its name here"),
        ({"tempreature": 1.0}, "temperature= may be meant"),
    ):
        with pytest.raises(ArgumentError, match=fix):
            GenerationConfig(**given)
        with pytest.raises(ArgumentError, match=fix):
            GenerationConfig().changed(**given)


def test_a_way_of_choosing_that_is_not_here_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"typical_p = 0\.5"):
        GenerationConfig.from_dict({"typical_p": 0.5})


@pytest.mark.parametrize("text", ["[]", "{", '"top_k"'])
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"generation_config\.json: not (a JSON object|JSON)"):
        GenerationConfig.from_pretrained(tmp_path)


def test_what_has_no_effect_here_is_left_out_and_what_nobody_knows_is_named():
    given = {"use_cache": True, "is_assistant": False, "num_beam_groups": 1, "top_k": 5}
    assert GenerationConfig.from_dict(given) == GenerationConfig(top_k=5)
    with pytest.warns(UserWarning, match="magic = 3 is not known here"):
        assert GenerationConfig.from_dict({"magic": 3}) == GenerationConfig()


def test_an_older_folder_says_in_its_config_how_to_generate(tmp_path):
    given = {"vocab_size": 9, "eos_token_id": 2, "num_beams": 3, "max_length": 7, "num_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(given))
    config = GenerationConfig.from_pretrained(tmp_path)
    assert (config.eos_token_id, config.num_beams, config.max_length) == ((2,), 3, 7)
    (tmp_path / "config.json").write_text(json.dumps({**given, "typical_p": 0.5}))
    with pytest.raises(ArgumentError, match=r"typical_p = 0\.5"):
        GenerationConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("words", [((),), ((3,), ()), [[]], 5, None])
def test_bad_words_are_lists_of_one_id_or_more(words):
    with pytest.raises(ArgumentError, match="bad_words_ids"):
        GenerationConfig(bad_words_ids=words)


def test_texts_that_stop_are_a_list():
    with pytest.raises(ArgumentError, match="stop_strings is 5"):
        GenerationConfig(stop_strings=5)


def test_a_temperature_by_which_logits_would_be_infinite_is_refused():
    with pytest.raises(ArgumentError, match="temperature >= 1e-30"):
        GenerationConfig(do_sample=True, temperature=1e-40)

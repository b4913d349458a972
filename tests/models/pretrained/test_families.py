"""All families: batched as one by one, trained, and read by `transformers` when written."""

import json
import random
import shutil

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import CheckpointError
from dynbatch.models import pretrained
from dynbatch.testing.precision import dense_gradient
from tests.marks import quick
from tests.models.pretrained import fixtures

FAMILIES = {
    "bert": pretrained.BertForMaskedWords,
    "bert-untied": pretrained.BertForMaskedWords,
    "bert-encoder-bfloat16": pretrained.Bert,
    "bert-of-2018": pretrained.BertForMaskedWords,
    "bert-classes": pretrained.BertForClassification,
    "bert-token-classes": pretrained.BertForTokens,
    "roberta": pretrained.RobertaForMaskedWords,
    "roberta-untied": pretrained.RobertaForMaskedWords,
    "roberta-classes-bfloat16": pretrained.RobertaForClassification,
    "roberta-of-2019": pretrained.RobertaForMaskedWords,
    "gpt2": pretrained.GPT2,
    "gpt2-bfloat16": pretrained.GPT2,
    "gpt2-untied": pretrained.GPT2,
    "gpt2-of-2019": pretrained.GPT2,
    "llama": pretrained.Llama,
    "llama-head-dim": pretrained.Llama,
    "llama-tied-bfloat16": pretrained.Llama,
    "distilbert": pretrained.DistilBertForMaskedWords,
    "mpnet": pretrained.MPNetForMaskedWords,
    "modernbert": pretrained.ModernBertForMaskedWords,
    "bart": pretrained.Bart,
    "mbart": pretrained.MBart,
    "mistral": pretrained.Mistral,
    "qwen2": pretrained.Qwen2,
    "qwen3": pretrained.Qwen3,
    "qwen3-next": pretrained.Qwen3Next,
    "gemma2": pretrained.Gemma2,
    "gemma3": pretrained.Gemma3,
    "marian": pretrained.Marian,
    "marian-bfloat16": pretrained.Marian,
    "marian-of-2020": pretrained.Marian,
    "t5": pretrained.T5,
    "t5-unscaled": pretrained.T5,
    "t5-of-2021": pretrained.T5,
    "t5-v1_1": pretrained.T5,
    "t5-v1_1-bfloat16": pretrained.T5,
}
TRAINED = [name for name in FAMILIES if (fixtures.FOLDER / name / "gradients.safetensors").exists()]


def read(name):
    return FAMILIES[name].from_pretrained(fixtures.FOLDER / name)


def values(graph, model, sentence):
    """The model's logits for a sentence of a fixture, or of a bare encoder the last values."""
    names = ("input_ids", "token_type_ids", "decoder_input_ids")
    given = [sentence[name] for name in names if name in sentence]
    return model.logits(graph, *given) if "logits" in sentence else model(graph, *given)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_of_all_lengths_gives_what_transformers_gives_for_each_sentence(name):
    model, sentences = read(name), fixtures.sentences(name)
    with db.Graph() as graph:
        together = [values(graph, model, sentence) for sentence in sentences]
        graph.forward()
        together = [node.value for node in together]
    for found, sentence in zip(together, sentences, strict=True):
        with db.Graph() as graph:
            alone = values(graph, model, sentence).value
        expected = sentence.get("logits", sentence["hidden"])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
        np.testing.assert_allclose(found, alone, rtol=0, atol=2e-5)


def summed(graph, model, sentences):
    """The cross-entropy at the labels of all sentences."""
    losses = [
        F.cross_entropy(values(graph, model, one), one["labels"], reduction="sum")
        for one in sentences
    ]
    return F.sum(losses)


@pytest.mark.parametrize("name", TRAINED)
def test_a_few_steps_of_adam_with_dropout_lower_the_loss(name):
    model, sentences = read(name), fixtures.sentences(name)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    for seed in range(6):
        with db.Graph(seed=seed) as graph:
            graph.backward(summed(graph, model.train(), sentences))
        optimizer.step()
    with db.Graph(grad=False) as graph:
        assert float(summed(graph, model.eval(), sentences)) < 0.9 * fixtures.loss(name)


ATTENTION_DROPOUT = {
    "bert": "attention_probs_dropout_prob",
    "roberta": "attention_probs_dropout_prob",
    "gpt2": "attn_pdrop",
    "llama": "attention_dropout",
    "marian": "attention_dropout",
    "t5": "dropout_rate",
}


@pytest.mark.parametrize("name", ATTENTION_DROPOUT)
def test_config_json_gives_the_dropout_of_all_attention(name):
    changes = {ATTENTION_DROPOUT[name]: 0.25}
    model = FAMILIES[name].from_pretrained(fixtures.FOLDER / name, **changes)
    found = [m.dropout for m in model.modules() if isinstance(m, models.MultiHeadAttention)]
    assert len(found) >= 2 and set(found) == {0.25}


@pytest.mark.parametrize("name", quick(["llama", "t5-v1_1"], TRAINED))
def test_a_gpu_gives_the_same_by_as_many_launches_for_any_number_of_sentences(name, cuda):
    def step(device, times):
        model = read(name).to(device)
        with db.Graph(device) as graph:
            loss = summed(graph, model, fixtures.sentences(name) * times)
            graph.backward(loss)
            parameters = [p for p in model.to("cpu").parameters() if p.grad is not None]
            return float(loss), [dense_gradient(p) for p in parameters], graph.statistics.launches

    loss, gradients, launches = step("cuda", 1)
    expected_loss, expected, _ = step("cpu", 1)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for found, gradient in zip(gradients, expected, strict=True):
        largest = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-4 * largest)
    assert step("cuda", 3)[2] == launches


@pytest.mark.parametrize("name", TRAINED)
def test_a_sentence_is_ten_nodes_at_most_and_no_block_is_inlined(name):
    model, sentences = read(name).train(), fixtures.sentences(name)
    with db.Graph(seed=0) as graph:
        graph.backward(summed(graph, model, sentences))
        assert len(graph) <= 10 * len(sentences) + 1
        assert "inlined" not in graph.explain()


def refusals(name, folder, changes):
    """The number of changes of config.json whose folder is refused; the others load."""
    count, path = 0, folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes:
        path.write_text(json.dumps({**config, key: value}))
        try:
            FAMILIES[name].from_pretrained(folder)
        except CheckpointError:
            count += 1
    return count


WRONG = (
    0, -1, 1, 3, 7, 10**6, 10**18, 2**70, 1.5, -0.5, 1e308, 1e-30, None, True, False, "", "gelu",
    [], [1], {}, {"a": 1}, {"rope_type": "yarn", "factor": 2},
)  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_a_wrong_setting_is_a_clear_error_or_does_no_harm(name, tmp_path):
    shutil.copytree(fixtures.FOLDER / name, tmp_path, dirs_exist_ok=True)
    keys = sorted(json.loads((tmp_path / "config.json").read_text()))
    chosen = random.Random(0)
    changes = [(chosen.choice(keys), chosen.choice(WRONG)) for _ in range(40)]
    assert 8 < refusals(name, tmp_path, changes) < 40


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TRAINED)
def test_any_wrong_setting_is_a_clear_error_or_does_no_harm(name, tmp_path):
    shutil.copytree(fixtures.FOLDER / name, tmp_path, dirs_exist_ok=True)
    keys = sorted(json.loads((tmp_path / "config.json").read_text()))
    assert refusals(name, tmp_path, [(key, value) for key in keys for value in WRONG]) > 100


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_reads_what_is_written_with_no_name_missing_or_left_over(
    name, dtype, tmp_path
):
    reason = "reads our files with transformers, which is not installed"
    transformers = pytest.importorskip("transformers", reason=reason)
    torch = pytest.importorskip("torch", reason=reason)
    model = read(name)
    model.save_pretrained(tmp_path, dtype=dtype, max_shard_size="16KB")
    model = type(model).from_pretrained(tmp_path)
    kind = getattr(transformers, model.architecture)
    theirs, report = kind.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    assert not any(report.values()), report
    for sentence in fixtures.sentences(name):
        given = {key: torch.tensor(x)[None] for key, x in sentence.items() if key.endswith("_ids")}
        with torch.no_grad():
            result = theirs.eval()(**given)
        expected = result["logits" if "logits" in sentence else "last_hidden_state"][0].numpy()
        with db.Graph() as graph:
            found = values(graph, model, sentence).value
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)

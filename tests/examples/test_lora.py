"""The LoRA example: it learns a text with few numbers, goes on where it stopped, and is merged."""

import re
from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch.models.pretrained import Llama, LlamaConfig, load_adapter, load_pretrained
from examples.lora.train import main
from tests.examples.stopped import after_its_first_save

pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture
def model(tmp_path):
    """A folder of a Llama that knows nothing, whose tokens are letters."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / "model"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=16,
        num_hidden_layers=1,
        initializer_range=0.5,
        others={"eos_token_id": 15},
        **sizes,
    )
    Llama(config, rng=0).save_pretrained(folder)
    letters = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({x: k for k, x in enumerate("ab0123456?")}, unk_token="?")
    )
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    letters.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["ab" * (3 + k % 20) + str(k % 7) for k in range(60)]))
    return str(path)


def test_it_learns_and_is_merged_and_a_stopped_run_ends_with_the_same_bits(
    model, text, tmp_path, capsys
):
    options = [model, text, "--max-tokens", "200", "--lr", "0.03", "--dropout", "0.1"]
    whole, cut, merged = [str(tmp_path / name) for name in ("whole", "cut", "merged")]
    main([*options, "--adapter", whole, "--merged", merged])
    bits = [float(x) for x in re.findall(r"([\d.]+) bits per byte", capsys.readouterr().out)]
    assert len(bits) == 4 and bits[-1] < 0.7 * bits[0]

    with after_its_first_save():
        main([*options, "--adapter", cut])
    main([*options, "--adapter", cut, "--resume"])
    files = [Path(each, "adapter_model.safetensors").read_bytes() for each in (whole, cut)]
    assert files[0] == files[1]

    adapted, plain = load_pretrained(model), load_pretrained(merged)
    load_adapter(adapted, whole)
    with db.Graph() as graph:
        one, other = [each.logits(graph, [0, 1, 0, 5]) for each in (adapted, plain)]
        np.testing.assert_allclose(one.value, other.value, atol=1e-5)

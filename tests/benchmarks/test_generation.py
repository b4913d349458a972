"""The benchmark of generation, on tiny sizes."""

import sys
from types import SimpleNamespace

import pytest

import dynbatch as db
from benchmarks import generation
from dynbatch.models.pretrained import GPT2, GPT2Config

TINY = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50}


def options(*arguments):
    small = ["--rounds", "1", "--tokens", "2", "--prompt", "4", "--threads", "1"]
    more = ["--shortest", "2", "--longest", "9", "--sentences", "6", "--beside", "4"]
    found = generation.parse([*arguments, *small, *more, "--hidden", "8", "--words", "20"])
    found.sizes = TINY
    return found


def test_each_part_gives_its_rates_and_ratios_on_tiny_sizes():
    found = generation.run(options("one", "seq2seq", "price"))
    assert found["one"]["tokens_per_second"] > 0 and found["one"]["ratio"] > 0
    assert found["one"]["bfloat16"]["ratio"] > 0
    assert found["seq2seq"]["tokens"] > 6 and found["seq2seq"]["us_per_token"] > 0
    assert set(found["price"]) == {"prompts", "tokens"}
    text = generation.as_text(found)
    assert all([f"\n{name}  " in text for name in ("one", "seq2seq", "price")])
    assert any([line.startswith("processor") for line in found["kernels"]])


def test_transformers_generates_the_same_tokens():
    pytest.importorskip("transformers", minversion="5")
    found = generation.run(options("many"))["many"]
    assert found["same_results"] == found["results"] == generation.PROMPTS


def test_a_device_generates_beside_a_peer_that_lies_there_too(cuda, monkeypatch):
    """The peer is dynbatch on the CPU, prompt by prompt: transformers may not be installed."""

    class Peer:
        versions = "dynbatch, one by one"

        def __init__(self, sizes, threads, seed, device):
            assert device == "cuda"
            self.model = GPT2(GPT2Config(**sizes)).eval()

        def save(self, folder):
            self.model.save_pretrained(folder)

        def generate(self, prompts, lengths):
            pairs = zip(prompts, lengths, strict=True)
            return [
                db.generate(self.model, [p], min_new_tokens=n, max_new_tokens=n)[0][0].tokens
                for p, n in pairs
            ]

    module = SimpleNamespace(TransformersGPT2=Peer)
    monkeypatch.setitem(sys.modules, "benchmarks.peers.transformers_gpt2", module)
    wanted = options("many", "--device", "cuda")
    wanted.longest = 40  # so that there are as many sentences in some steps one after the other
    found = generation.run(wanted)
    assert found["many"]["results"] == generation.PROMPTS and found["many"]["ratio"] > 0
    text = generation.as_text(found)
    assert "dynbatch, one by one" in text and "as CUDA graphs" in text
    replayed = found["many"]["replayed"]
    assert replayed["same_results"] == generation.PROMPTS
    assert int(replayed["steps"].split(" steps replayed, of ")[0]) > 15


def test_a_missing_peer_and_an_unknown_part_are_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "benchmarks.peers.transformers_gpt2", None)
    found = generation.run(options("many"))
    assert "pip install" in generation.as_text(found)
    with pytest.raises(SystemExit):
        generation.parse(["none"])
    assert "no such part: none" in capsys.readouterr().err

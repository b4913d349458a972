"""The Transformer of the seq2seq example: its loss, its search, and a run of it."""

import shutil

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.train import load_checkpoint, read_checkpoint, read_metrics, save_checkpoint
from examples.seq2seq.options import TRANSFORMER, parse
from examples.seq2seq.train import main
from examples.seq2seq.transformer import TransformerTranslation, padded_pair
from examples.seq2seq.translator import Translator

pytestmark = pytest.mark.usefixtures("same_threads")

SMALL = ["--model", "transformer", "--hidden", "8", "--heads", "2", "--layers", "1", "--quiet"]
SMALL += ["--max-tokens", "100"]
SOURCES = [[3, 4, 5, 6], [3], [], [5, 5]]


def made(seed=0):
    model = TransformerTranslation(7, 6, 8, layers=2, heads=2, dropout=0.0, rng=seed)
    rng = np.random.default_rng(seed)
    for parameter in [p for p in model.parameters() if len(p.shape) == 2]:  # so that they differ
        parameter.assign(rng.normal(0, 1, parameter.shape))
    return model.eval()


def found_by(model, **options):
    return db.generate(model, SOURCES, max_new_tokens=7, eos_token_id=model.end, **options)


@pytest.mark.parametrize("seed", range(4))
def test_the_score_of_what_is_found_is_its_loss(seed):
    model = made(seed)
    for source, (found,) in zip(SOURCES, found_by(model), strict=True):
        with db.Graph(grad=False) as graph:
            read = model.opened(np.array(found.tokens[:-1], np.int64))
            states = model.decode(graph, read, model.encode(graph, source))
            loss = F.cross_entropy(model.predict(states), found.tokens, reduction="sum")
            assert -found.score == pytest.approx(float(loss.value), rel=1e-4, abs=1e-4)


def test_a_beam_finds_at_least_as_good():
    model = made()
    greedy, wide = found_by(model), found_by(model, num_beams=4, length_penalty=0.0)
    assert len({best.tokens for (best,) in greedy}) > 1
    for (one,), (best,) in zip(greedy, wide, strict=True):
        assert best.score >= one.score - 1e-5


def test_the_padded_loss_is_the_loss():
    model = made().astype("float64")
    pairs = [([3, 4], [2]), ([5], [3, 4, 5]), ([3, 3, 3], []), ([], [4])]
    with db.Graph(dtype="float64") as graph:
        own = [model.loss(graph, *pair) for pair in pairs]
        padded = [model.padded_loss(graph, *padded_pair(pair, (3, 3))) for pair in pairs]
        for one, other in zip(own, padded, strict=True):
            assert float(one.value) == pytest.approx(float(other.value), rel=1e-12)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A file of words to copy, and a run that is done."""
    folder = tmp_path_factory.mktemp("transformer")
    rng = np.random.default_rng(0)
    words = sorted({" ".join(rng.choice(list("abc"), rng.integers(1, 6))) for _ in range(120)})
    path = folder / "copy.tsv"
    path.write_text("".join(f"{word}\t{word.upper()}\n" for word in words))
    given = ["--data", str(path), "--output", str(folder / "run"), "--epochs", "2"]
    assert main([*given, *SMALL]) == 0
    return folder / "run"


def test_a_run_is_saved_and_translates_as_it_did(run):
    checkpoint = run / "model.safetensors"
    info = read_checkpoint(checkpoint)
    assert info.extra["translator"]["model"] == "transformer"
    assert info.extra["translator"]["max_length"] == 5 + 10  # places it saw, and a few
    translator = Translator.load(checkpoint)
    again = Translator.described(info)
    load_checkpoint(checkpoint, again.model)
    sources = [("a", "b"), ("c",)]
    assert [one.tokens for (one,) in translator.translate(sources)] == [
        one.tokens for (one,) in again.translate(sources)
    ]
    records = [r for r in read_metrics(run / "metrics.jsonl") if "padded_bytes" in r]
    assert records and all(r["padded_bytes"] > 0 for r in records)


def test_a_run_goes_on_without_being_told_its_settings(run, tmp_path, capsys):
    output = str(shutil.copytree(run, tmp_path / "run"))
    assert main(["--output", output, "--resume", "--epochs", "3", "--quiet"]) == 0
    assert read_checkpoint(f"{output}/model.safetensors").epoch == 3
    assert main(["--output", output, "--resume", "--model", "lstm"]) == 1
    assert "the run has --model transformer, not lstm" in capsys.readouterr().err


def test_words_of_a_file_are_also_scored_by_bleu(run, capsys):
    assert main(["--output", str(run), "--resume", "--quiet"]) == 0
    assert "BLEU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hidden": 10**15}, "for 'model/source_embedding.weight'"),
        ({"layers": 7}, "7 layers where 1 were saved"),
        ({"heads": 3}, "heads"),
        ({"heads": "x"}, "'x' for 'heads'"),
    ],
)
def test_a_damaged_description_is_refused(run, tmp_path, changed, says):
    info = read_checkpoint(run / "model.safetensors")
    translator = Translator.described(info)
    translator.sizes = {**translator.sizes, **changed}
    path = tmp_path / "damaged.safetensors"
    save_checkpoint(path, translator.model, extra={"translator": translator.description()})
    with pytest.raises(db.errors.CheckpointError, match="damaged") as error:
        Translator.load(path)
    assert says in str(error.value)


def test_a_transformer_has_settings_of_its_own_and_none_of_an_lstm(capsys):
    settings = parse(["--model", "transformer", "--lr", "0.5"]).settings
    assert {**TRANSFORMER, "lr": 0.5}.items() <= {
        name: getattr(settings, name) for name in TRANSFORMER
    }.items()
    assert parse([]).settings.max_tokens is None
    for flags in (["--embed", "3"], ["--attention", "general"], ["--demo"]):
        with pytest.raises(SystemExit):
            parse(["--model", "transformer", *flags])
        assert f"{flags[0]} is of --model lstm" in capsys.readouterr().err


def test_a_pair_is_few_nodes_however_many_layers():
    pairs = [([3, 4], [2]), ([5], [3, 4, 5]), ([3, 3, 3], [])]
    for layers in (1, 3):
        model = TransformerTranslation(7, 6, 8, layers=layers, heads=2)
        with db.Graph() as graph:
            for pair in pairs:
                model.loss(graph, *pair)
            assert len(graph.nodes) <= 5 * len(pairs)

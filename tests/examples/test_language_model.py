"""The language model: every byte predicted once, by document, and a run that learns and goes on."""

import re

import numpy as np
import pytest

import dynbatch as db
from dynbatch.errors import DataError
from dynbatch.models import Linear
from dynbatch.text import ByteTokenizer, CharacterTokenizer
from dynbatch.train import read_checkpoint, save_checkpoint
from examples.corpora import fortunes, shakespeare
from examples.corpora.brown import cache_folder
from examples.language_model.data import (
    Piece,
    decode,
    documents,
    encode,
    load,
    pieces,
    split,
)
from examples.language_model.generate import LOADER
from examples.language_model.generate import load as load_run
from examples.language_model.generate import main as generate
from examples.language_model.model import LanguageModel, padded_piece, sample
from examples.language_model.train import main

BYTES, MARK = ByteTokenizer(), 256

pytestmark = pytest.mark.usefixtures("same_threads")

SMALL = ["--width", "16", "--layers", "1", "--heads", "2", "--max-tokens", "200", "--quiet"]
SMALL += ["--sample-length", "20"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["ab" * (3 + k % 40) + str(k % 7) for k in range(80)]))
    return str(path)


def made(longest=20):
    return LanguageModel(257, longest, width=8, layers=2, heads=2)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 17])
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_every_token_of_a_cut_document_is_predicted_once_with_context(length, overlap):
    ids = (
        encode(BYTES, "x" * length)
        if length < 2
        else encode(BYTES, "".join(map(chr, range(40, 40 + length))))
    )
    found = list(pieces(ids, 4, overlap))
    predicted = [piece.ids[1 + piece.context :] for piece in found]
    assert np.concatenate(predicted).tolist() == ids[1:].tolist()
    assert [piece.num_predicted for piece in found] == [part.size for part in predicted]
    assert all(piece.ids.size <= 5 for piece in found)
    assert [piece.context for piece in found] == [0, *[overlap] * (len(found) - 1)]


def test_a_piece_counts_only_what_no_piece_before_it_has():
    model = made()
    ids = encode(BYTES, "an old joke")
    with db.Graph(grad=False) as graph:
        whole, first, rest = graph.values(
            [model.loss(graph, p) for p in (Piece(ids, 0), Piece(ids[:6], 0), Piece(ids, 5))]
        )
    assert whole == pytest.approx(first + rest, rel=1e-5) and rest > 0


def test_documents_stand_between_marks_and_come_back():
    for tokenizer, length in ((BYTES, 9), (CharacterTokenizer("naïve\n"), 8)):
        ids = encode(tokenizer, "naïve\n")
        assert ids[0] == ids[-1] == len(tokenizer) and len(ids) == length
        assert decode(tokenizer, ids[1:-1].tolist()) == "naïve\n"
    assert decode(BYTES, list(b"\x1b[2J\xff")) == "�[2J�"  # nothing that a terminal would obey


def test_equal_documents_are_on_one_side():
    texts = [f"document {k}" for k in range(50)] * 2
    known, held = split(texts)
    assert not set(known) & set(held) and len(known) + len(held) == 100


def test_a_text_that_cannot_be_read_or_split_says_why(tmp_path, capsys):
    path = tmp_path / "x.txt"
    path.write_text("One document.")
    with pytest.raises(DataError, match="has 1 documents, of which 0 would be held out"):
        split(load(str(path)))
    path.write_bytes(b"abc\xff")
    with pytest.raises(DataError, match=r"byte 4 is not UTF-8[^$]*iconv"):
        load(str(path))
    assert main([str(tmp_path / "none.txt")]) == 1
    assert "rule: fortunes, shakespeare, or a file of text" in capsys.readouterr().err


def test_pieces_that_would_overlap_whole_are_refused(text, tmp_path, capsys):
    run = ["--output", str(tmp_path / "run"), "--longest", "16", "--overlap", "16"]
    assert main([text, *run]) == 1
    assert "rule: --overlap is below --longest\n  fix:  --overlap 4" in capsys.readouterr().err


def test_sampling_draws_from_the_distribution_and_ends_at_the_mark():
    model = made()
    rng = np.random.default_rng(0)
    for parameter in model.parameters():
        parameter.assign(np.zeros(parameter.shape))
    model.places.weight.value[:, 0] = 1e4  # whatever the tokens, the features of a row are
    model.encoder.norm.weight.value[0] = 7**-0.5  # (√7, …) normalised, and so (1, 0, …),
    model.tokens.weight.value[:, 0] = -100  # and these the log-probabilities
    model.tokens.weight.value[[97, 98, MARK], 0] = np.log([0.6, 0.2, 0.2])
    found = sample(model, 150, 8, rng)
    tokens = np.concatenate(found)
    assert set(tokens.tolist()) == {97, 98} and max(map(len, found)) == 8
    assert np.mean(tokens == 97) == pytest.approx(0.75, abs=0.06)
    assert np.mean([len(ids) == 0 for ids in found]) == pytest.approx(0.2, abs=0.09)


def test_a_model_learns_a_text_and_shows_what_it_makes_up(text, tmp_path, capsys):
    run = ["--output", str(tmp_path / "run"), "--epochs", "3", "--lr", "0.02", "--samples", "4"]
    assert main([text, *SMALL, *run]) == 0
    printed = capsys.readouterr().out
    bits = [float(x) for x in re.findall(r"validation: ([\d.]+) bits per byte", printed)]
    assert "saved; " in printed.splitlines()[-1]  # memory beside that of padded batches
    assert len(bits) == 3 and bits[-1] < 0.6 < bits[0]  # letters alone would be 1.2 bits
    assert re.search(r"(ab){4,}", printed.split("validation")[-1]), printed


def test_bits_of_characters_are_told_by_bytes_too(tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["é" * (3 + k % 40) for k in range(80)]))
    found = []
    for more in ([], ["--characters"]):
        run = ["--output", str(tmp_path / f"run{len(more)}"), "--epochs", "1", "--lr", "1e-9"]
        assert main([str(path), *SMALL, *run, *more]) == 0
        found += re.findall(r"([\d.]+) bits per byte", capsys.readouterr().out)
    bytes_apiece, characters_apiece = map(float, found)  # of a model that knows nothing
    assert bytes_apiece == pytest.approx(np.log2(257) * 1.03, rel=0.02)
    assert 0.4 < characters_apiece < 0.6  # a bit a character of two bytes, and the mark


def test_a_run_that_was_stopped_ends_with_the_same_bits_and_samples(text, tmp_path, capsys):
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    given = [text, *SMALL, "--longest", "32", "--overlap", "8", "--dropout", "0.1"]
    given += ["--samples", "1"]
    assert main([*given, "--output", whole, "--epochs", "2"]) == 0
    last = capsys.readouterr().out.split("validation")[-1].split("Memory")[0]
    stopped = pytest.MonkeyPatch()
    with stopped.context() as patch:
        count = iter(range(1000))
        original = LanguageModel.loss

        def interrupted(model, graph, piece):
            if next(count) == 130:
                raise KeyboardInterrupt
            return original(model, graph, piece)

        patch.setattr(LanguageModel, "loss", interrupted)
        assert main([*given, "--output", cut, "--epochs", "2"]) == 130
    assert main([*given, "--output", cut, "--epochs", "2", "--resume"]) == 0
    assert capsys.readouterr().out.split("validation")[-1].split("Memory")[0] == last
    tensors = [read_checkpoint(f"{path}/model.safetensors") for path in (whole, cut)]
    assert tensors[0].step == tensors[1].step > 10
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]


@pytest.mark.parametrize("kind", [[], ["--characters"]])
def test_a_run_writes_on(text, tmp_path, capsys, kind):
    run = str(tmp_path / "run")
    assert main([text, *SMALL, *kind, "--output", run, "--epochs", "1", "--lr", "0.02"]) == 0
    capsys.readouterr()
    assert generate([run, "", "ab", "-n", "2", "--seed", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    model, tokenizer, config = load_run(tmp_path / "run" / "model.safetensors")
    prompts = [tokenizer.encode(prompt) for prompt in ("", "ab")]
    results = db.generate(model, prompts, config, num_return_sequences=2, seed=4)
    found = [one.tokens for of_prompt in results for one in of_prompt]
    assert lines == [tokenizer.decode([k for k in ids if k != model.mark]) for ids in found]


def test_a_checkpoint_of_another_program_is_refused(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, Linear(2, 2), extra={"loader": LOADER})
    assert generate([str(path), "x"]) == 1
    assert "a checkpoint, but not of this example" in capsys.readouterr().err


def test_fortunes_are_split_at_lines_of_one_percent_sign(tmp_path):
    folder = tmp_path / "usr/share/games/fortunes"
    folder.mkdir(parents=True)
    (folder / "law").write_text("One.\n%\n%\nTwo: 5%\n%\nlines.\n%\n")
    (folder / "law.dat").write_bytes(b"\xff")
    (folder / "ethnic").write_text("Not read.\n")
    found = fortunes.load(tmp_path)
    assert [(each.text, each.topic) for each in found] == [
        (text, "law") for text in ("One.", "Two: 5%", "lines.")
    ]
    with pytest.raises(DataError, match=r"no fortunes below it[^$]*apt-get download fortunes"):
        fortunes.load(folder)


def test_shakespeare_is_as_long_as_its_page_says(tmp_path):
    path = cache_folder() / shakespeare.ARCHIVE
    if not path.exists():
        pytest.skip(f"not fetched: {shakespeare.ARCHIVE}")
    text = shakespeare.load()
    assert (len(text), len(set(text))) == (1_113_302, 77)
    assert len(documents(text)) > 8_000
    other = tmp_path / "other.tar.gz"
    other.write_bytes(b"x")
    with pytest.raises(DataError, match=r"not shakespeare-0\.6\.tar\.gz, by its SHA-256"):
        shakespeare.load(other)


def test_a_document_is_few_nodes_however_many_layers():
    lengths = (1, 7, 19)
    for layers in (1, 3):
        model = LanguageModel(257, 20, width=8, layers=layers, heads=2, dropout=0.1)
        with db.Graph() as graph:
            for length in lengths:
                model.loss(graph, Piece(np.arange(length + 1), 0))
            assert len(graph.nodes) <= 5 * len(lengths)


def test_the_padded_loss_is_the_loss():
    model = made().astype("float64")
    given = [Piece(np.arange(9), 0), Piece(np.arange(5, 18), 4), Piece(np.arange(2), 0)]
    with db.Graph(dtype="float64", grad=False) as graph:
        padded = [
            model.padded_loss(graph, *padded_piece((piece.ids, piece.context), (20,)))
            for piece in given
        ]
        own = graph.values([model.loss(graph, piece) for piece in given])
        assert np.array(graph.values(padded)) == pytest.approx(np.array(own), rel=1e-12)

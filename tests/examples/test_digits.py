"""The digits example: reading the table, images of their own sizes, and that it learns."""

import gzip
import re
import zipfile

import numpy as np
import pytest

from dynbatch import Graph
from dynbatch.errors import DataError
from examples.corpora import digits
from examples.corpora.digits import Digit, cropped, digits_of, drawn, resized
from examples.corpora.fetching import cache_folder
from examples.digits.train import DigitReader, main, padding


def made_up(count, seed=0):
    """Bars and frames on 8 × 8 pixels, labelled by their form."""
    rng = np.random.default_rng(seed)
    found = []
    for label in rng.integers(0, 3, count).tolist():
        image = np.zeros((8, 8), np.float32)
        if label == 0:
            image[:, 3:5] = 1
        elif label == 1:
            image[3:5] = 1
        else:
            image[1:7, 1:7] = 1
            image[3:5, 3:5] = 0
        found.append(Digit(image * rng.uniform(0.7, 1, (8, 8)).astype(np.float32), label))
    return found


def test_a_table_is_read():
    table = ",".join(["0"] * 10 + ["16"] * 3 + ["8"] * 51 + ["7"]) + "\n"
    (digit,) = digits_of(table)
    assert digit.label == 7
    assert digit.image.shape == (8, 8) and digit.image.dtype == np.float32
    assert digit.image[1].tolist() == [0, 0, 1, 1, 1, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("line", ["1,2,3", ",".join(["0"] * 63 + ["17", "3"]), "0," * 64 + "10"])
def test_a_line_of_other_numbers_is_refused(line):
    with pytest.raises(DataError, match="64 numbers from 0 to 16"):
        digits_of(line)


def test_another_archive_is_refused_and_says_how_to_get_the_right_one(tmp_path):
    path = tmp_path / "other.whl"
    with pytest.raises(DataError, match="cannot be read"):
        digits.load(path)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(digits.MEMBER, gzip.compress(b"0,1\n"))
    with pytest.raises(DataError, match="pip download --no-deps"):
        digits.load(path)


def test_the_digits_of_the_package():
    path = cache_folder() / digits.ARCHIVE.name
    if not path.exists():
        pytest.skip("scikit-learn's wheel is not in the cache folder")
    found = digits.load(path)
    assert len(found) == 1797
    assert np.bincount([digit.label for digit in found]).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip


def test_images_are_cropped_to_their_ink_and_brought_to_any_size():
    image = np.zeros((8, 8), np.float32)
    image[2:5, 3:5] = [[1, 2], [3, 4], [5, 6]]
    ink = cropped(image)
    assert ink.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert np.array_equal(resized(ink, 3, 2), ink)
    assert resized(ink, 6, 2)[:, 0].tolist() == [1, 1.5, 2.5, 3.5, 4.5, 5]
    assert cropped(np.zeros((8, 8))).shape == (8, 8)


def test_each_image_has_a_size_of_its_own_which_follows_from_its_generator():
    once, again = [
        [drawn(digit, np.random.default_rng(k)).image for k, digit in enumerate(made_up(40))]
        for _ in range(2)
    ]
    assert len({image.shape for image in once}) > 15
    assert all([np.array_equal(*pair) for pair in zip(once, again, strict=True)])


def test_pixels_of_padding_are_counted():
    batch = [Digit(np.zeros(shape), 0) for shape in [(2, 6), (4, 3), (1, 1)]]
    assert padding([batch, [Digit(np.zeros((5, 5)), 0)]]) == pytest.approx(1 - 50 / 97)


def test_in_evaluation_an_image_is_read_alone_as_beside_others():
    reader = DigitReader(4, 0.5).eval()
    images = [drawn(digit, np.random.default_rng(7)).image for digit in made_up(5)]
    with Graph() as graph:
        together = graph.values(reader.scores(graph, images))
        alone = [reader.scores(graph, [image])[0].value for image in images]
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


def test_forms_are_learned_whoever_draws_the_images(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(digits, "load", lambda path: made_up(120))
    sizes = ["--channels", "4", "--dropout", "0", "--epochs", "4", "--batch-size", "8"]
    command = [*sizes, "--lr", "0.02", "--checkpoint", str(tmp_path / "run")]
    main(command)
    printed = capsys.readouterr().out
    assert float(re.findall(r"([\d.]+)% right", printed)[-1]) > 90, printed
    assert re.search(r"\d+% padding, saved here", printed)
    main([*command, "--workers", "0"])
    assert capsys.readouterr().out == printed

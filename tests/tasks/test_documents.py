"""Documents in tokens: every token predicted once."""

import numpy as np
import pytest

from dynbatch.tasks.documents import DocumentTokenizer, pieces

BYTES = DocumentTokenizer(None)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 17])
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_every_token_of_a_cut_document_is_predicted_once_with_context(length, overlap):
    ids = (
        BYTES.whole("x" * length)
        if length < 2
        else BYTES.whole("".join(map(chr, range(40, 40 + length))))
    )
    found = list(pieces(ids, 4, overlap))
    predicted = [piece.ids[1 + piece.context :] for piece in found]
    assert np.concatenate(predicted).tolist() == ids[1:].tolist()
    assert [piece.num_predicted for piece in found] == [part.size for part in predicted]
    assert all(piece.ids.size <= 5 for piece in found)
    assert [piece.context for piece in found] == [0, *[overlap] * (len(found) - 1)]


@pytest.mark.parametrize(("characters", "length"), [(None, 9), ("naïve\n", 8)])
def test_documents_stand_between_marks_and_come_back(characters, length):
    tokenizer = DocumentTokenizer(characters)
    ids = tokenizer.whole("naïve\n")
    assert ids[0] == ids[-1] == tokenizer.mark == len(tokenizer) - 1 and len(ids) == length
    assert tokenizer.decode(ids) == "naïve\n"
    assert tokenizer.encode("naïve\n").tolist() == ids[:-1].tolist()

"""The drawings of the pages are those that their script draws."""

import pytest

from docs.images import draw


@pytest.mark.parametrize("name", draw.DRAWN)
def test_a_stored_drawing_is_what_the_script_draws(name):
    picture = draw.DRAWN[name]()
    assert (draw.FOLDER / f"{name}.svg").read_text("utf-8") == picture.svg
    assert picture.description

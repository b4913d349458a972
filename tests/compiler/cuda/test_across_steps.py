"""The last products of a step of backward with the group that the next step begins with."""

import pytest

from tests.compiler.cuda.test_fused_product import device_cell, kinds
from tests.compiler.test_differentiate import compiled


def test_a_decoder_makes_its_last_products_with_the_next_step():
    back = device_cell().backward
    first, *middle, last = back.few
    assert back.items_of_few(goes_on=False, is_followed=False) == back.few
    assert back.items_of_few(goes_on=False, is_followed=True) == [first, *middle]
    assert back.items_of_few(goes_on=True, is_followed=True) == [back.across, *middle]
    assert back.items_of_few(goes_on=True, is_followed=False) == [back.across, *middle, last]


def test_an_lstm_is_one_launch_a_step_of_backward():
    back = compiled("lstm").on_device.backward
    assert kinds(back.few) == ["group", "1-1"]
    assert back.items_of_few(goes_on=True, is_followed=True) == [back.across]


def test_what_nothing_else_reads_is_not_stored():
    """The gradient of h is read by the group alone, that of c is made by the group."""
    back = compiled("lstm").on_device.backward
    assert len(back.across.tile_lanes) == 1
    assert "C0" not in back.across.stores and "N0" not in back.across.stores


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("gru", True),  # adds the product to what the group of the step behind has made
        ("layer_norm_lstm", True),  # an own kernel between group and product
        ("rms_norm_rnn", False),  # ends with an own kernel
        ("lstm_of_joined_input", False),  # ends with the gradient of a token, too
        ("sliced_token", False),  # has no product
    ],
)
def test_it_is_there_where_gradients_of_states_are_last_and_a_group_first(name, is_there):
    assert (compiled(name).on_device.backward.across is not None) == is_there

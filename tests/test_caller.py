import dataclasses

import pytest

from dynbatch.caller import caller, users_frame
from dynbatch.errors import ArgumentError
from dynbatch.generation.config import GenerationConfig


def test_the_users_line_is_the_innermost_outside_dynbatch():
    where = caller()
    assert where.startswith(f"{__file__}:") and where.endswith(" in " + here())
    frame, inside = users_frame()
    assert frame.f_code.co_name == here() and inside == 0


def test_the_rule_of_a_node_type_is_not_the_users_line():
    def infer_shape():
        return caller()

    assert infer_shape().endswith(" in test_the_rule_of_a_node_type_is_not_the_users_line")


def here():
    return "test_the_users_line_is_the_innermost_outside_dynbatch"


def test_replacing_a_field_of_a_dataclass_names_the_users_line():
    with pytest.raises(ArgumentError) as raised:
        dataclasses.replace(GenerationConfig(), top_p=2)
    assert f"made at {__file__}:" in str(raised.value)

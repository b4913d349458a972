"""`Module`: which parameters are found, what they are called, how a model is printed."""

import numpy as np

import dynbatch as db
from dynbatch import models


def vector(size=2):
    return db.Parameter(np.zeros(size, np.float32))


class Mixed(models.Module):
    def __init__(self):
        self.scale = vector()
        self.gates = [vector(3), vector(4)]
        self.heads = {"tags": models.Linear(2, 5), "scale": vector(6)}
        self.again = self.scale


def test_parameters_in_lists_and_dictionaries_are_found():
    shapes = {name: parameter.shape for name, parameter in Mixed().named_parameters()}
    assert shapes == {
        "scale": (2,),
        "gates.0": (3,),
        "gates.1": (4,),
        "heads.scale": (6,),
        "heads.tags.weight": (5, 2),
        "heads.tags.bias": (5,),
    }
    one, other = Mixed(), Mixed()
    one.gates[1].value += 7
    other.load_state_dict(one.state_dict())
    assert other.gates[1].value.tolist() == [7] * 4


def test_an_attribute_names_a_parameter_that_has_no_name_yet():
    own = db.Parameter(np.zeros(2, np.float32), "mine")
    linear = models.Linear(2, 2)
    linear.extra = own
    assert (linear.weight.name, linear.bias.name, own.name) == ("weight", "bias", "mine")


def test_a_model_prints_as_its_tree_with_shapes_and_renames_nothing():
    model = Mixed()
    model.heads["tags"].bias.frozen = True
    assert repr(model) == (
        "Mixed, 30 parameters: scale (2,), gates.0 (3,), gates.1 (4,), heads.scale (6,), "
        "again (2,)\n"
        "  heads.tags Linear: weight (5, 2), bias (5,) frozen"
    )
    assert model.heads["tags"].weight.name == "weight"

import copy
import pickle

import pytest

from dynbatch import optim
from dynbatch.kernels import binary
from dynbatch.kernels.scalar.function import FUNCTIONS, every_function
from dynbatch.kernels.unary import activations
from dynbatch.parameter import Parameter

UPDATES = [value.update for value in vars(optim).values() if hasattr(value, "update")]
UPDATES = [update for update in UPDATES if not callable(update)]
NAMED = {repr(each): each for each in [*FUNCTIONS.values(), *binary.FUNCTIONS.values(), *UPDATES]}


@pytest.mark.parametrize("definition", NAMED.values(), ids=NAMED)
def test_copies_and_pickles_are_the_object_itself(definition):
    assert copy.copy(definition) is copy.deepcopy(definition) is definition
    assert pickle.loads(pickle.dumps(definition)) is definition


def test_copies_are_the_object_itself_where_no_module_has_it():
    for definition in [activations.gelu.forms["tanh"], *every_function()]:
        assert copy.deepcopy([definition])[0] is definition


def test_a_rule_equals_its_copy_and_its_pickle():
    rule = optim.RMSprop([Parameter([1.0])], momentum=0.9).rule(3)
    assert len(UPDATES) > 10
    assert copy.deepcopy(rule) == rule == pickle.loads(pickle.dumps(rule))

from dynbatch.attributes import attributes_of


class Slotted:
    __slots__ = ("a", "b")


class Both(Slotted):
    def __init__(self):
        self.a, self.c = 1, 3


def test_slots_and_the_dict_are_read_and_what_is_not_set_is_left_out():
    assert attributes_of(Both()) == {"c": 3, "a": 1}
    assert attributes_of(Slotted()) == {}
    assert attributes_of(1) == {}

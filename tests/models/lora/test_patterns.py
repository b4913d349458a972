"""Regular expressions of configurations: those of `re`, without what takes years."""

import random
import re

import pytest

from dynbatch.errors import ArgumentError
from dynbatch.models import LoraConfig
from dynbatch.models.lora.config import is_meant
from dynbatch.models.lora.patterns import Unbounded, is_full_match

LETTERS = [
    "a", "b", ".", r"\.", "[ab]", "[^a]", "[a-c1]", r"\d", r"\W", r"[\w.]", "^", "$", r"\b", r"\B",
]  # fmt: skip
COUNTS = ["*", "+", "?", "{2}", "{0,3}", "{1,}", "*?", "{2,3}", "{3,}"]


def drawn(rng, depth=0):
    kind = rng.random()
    if depth > 3 or kind < 0.35:
        return rng.choice(LETTERS)
    first = drawn(rng, depth + 1)
    if kind < 0.5:
        return first + drawn(rng, depth + 1)
    if kind < 0.65:
        return f"(?:{first}|{drawn(rng, depth + 1)})"
    if kind < 0.9:
        return f"({first}){rng.choice(COUNTS)}"
    return f"{rng.choice(['(?=', '(?!'])}{first}){drawn(rng, depth + 1)}"


def test_random_expressions_stand_for_what_re_says():
    rng, counts = random.Random(0), [0, 0]
    for _ in range(600):
        pattern = drawn(rng)
        try:
            expected = re.compile(pattern)
        except re.error:
            continue
        for _ in range(4):
            name = "".join(rng.choice("ab.1\nc") for _ in range(rng.randrange(7)))
            is_match = is_full_match(pattern, name)
            assert is_match == bool(expected.fullmatch(name)), (pattern, name)
            counts[is_match] += 1
    assert min(counts) > 100


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|aa)+c", "(.*)*x", ".*" * 12 + "x", "(a{0,1000}){0,1000}b"]
)
def test_an_expression_that_re_would_not_end_with_ends(pattern):
    assert not is_meant(pattern, "a" * 200) and is_meant(pattern, "aab") == (pattern[-1] == "b")


def test_members_of_classes_count_as_parts():
    members = "".join([chr(0x4E00 + 2 * k) for k in range(2000)])
    assert is_full_match(f"[{members}a]*", "a" * 20)
    with pytest.raises(Unbounded, match="too many parts"):
        is_full_match(f"([{members}a]*b?)*c", "a" * 60)


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?i)a", "(?<=a)b", "a++"])
def test_parts_that_are_not_matched_in_bounded_time_are_refused(pattern):
    with pytest.raises(Unbounded):
        is_full_match(pattern, "ab")
    with pytest.raises(ArgumentError, match="not a regular expression for names"):
        LoraConfig(target_modules=pattern)

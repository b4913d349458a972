"""Pages of keys and values: lent, shared, given back."""

import numpy as np
import pytest

from dynbatch.blocks.resumed import CacheSlot, SlotKind
from dynbatch.errors import OutOfMemory
from dynbatch.generation.pages import ROWS, Caches, History
from dynbatch.generation.step_rows import StepRows
from dynbatch.kernels.addresses import write_rows
from dynbatch.memory import Pool

DTYPE = np.dtype("float64")
GROWN = [CacheSlot(0, SlotKind.GROWN, (3, 2)), CacheSlot(4, SlotKind.GROWN, (1, 5))]
KEPT = CacheSlot(7, SlotKind.KEPT, (4, 2), (1, 2))
STATE = CacheSlot(7, SlotKind.STATE, (6, 1), (3, None))
FORK_BYTES = (ROWS * 11 + 7) * 8  # of a page of its own, and of a state


def pasts(history, count=0):
    """What each operator finds in a step with so many new rows."""
    return StepRows(history.caches, [history], np.array([count])).pasts(0)


def append(history, rng, count):
    """Append random rows to all slots; return them."""
    history.reserve(count)
    rows = [[rng.normal(size=(count, width)) for width in slot.widths] for slot in GROWN]
    found = pasts(history, count)
    for slot, arrays in zip(GROWN, rows, strict=True):
        found[slot.operator].append(*arrays)
    history.length += count
    return rows


def contents(history):
    """All keys and values of each slot."""
    found = pasts(history)
    return [found[slot.operator].joined(DTYPE) for slot in GROWN]


def assert_holds(history, parts):
    for slot, found in enumerate(contents(history)):
        for side in (0, 1):
            expected = np.concatenate([part[slot][side] for part in parts])
            np.testing.assert_array_equal(found[side], expected)


@pytest.fixture
def caches():
    pool = Pool()
    lent = Caches([*GROWN, KEPT, STATE], DTYPE, pool)
    yield lent
    assert lent.lent_bytes == 0 and pool.used_bytes == 0


def test_rows_are_found_again_page_by_page(caches):
    rng, history = np.random.default_rng(0), History(caches)
    parts = [append(history, rng, count) for count in (1, ROWS - 1, 1, 3 * ROWS, 5)]
    assert_holds(history, parts)
    assert caches.grown.lent == 5
    assert caches.grown.page_bytes == ROWS * 11 * 8
    history.close()
    assert caches.grown.most == 5


def test_forks_share_pages_and_copy_only_the_one_they_write_to(caches):
    rng, history = np.random.default_rng(0), History(caches)
    first = append(history, rng, 2 * ROWS + 10)
    forks = [history.fork() for _ in range(3)]
    assert caches.grown.lent == 3 and [fork.bytes_for(1) for fork in forks] == [FORK_BYTES] * 3
    own = [append(fork, rng, 4) for fork in forks]
    assert caches.grown.lent == 6
    for fork, rows in zip(forks, own, strict=True):
        assert_holds(fork, [first, rows])
    assert_holds(history, [first])
    history.close()
    forks[0].close()
    assert_holds(forks[1], [first, own[1]])
    assert caches.grown.lent == 4
    for fork in forks:
        fork.close()
        fork.close()  # a second time it holds nothing


def test_the_last_reader_of_a_page_writes_to_it_without_a_copy(caches):
    rng, history = np.random.default_rng(0), History(caches)
    first = append(history, rng, 10)
    fork = history.fork()
    history.close()
    assert fork.bytes_for(1) == 0
    more = append(fork, rng, 1)
    assert caches.grown.lent == 1
    assert_holds(fork, [first, more])
    fork.close()


def test_a_pool_without_room_loses_no_page():
    pool = Pool(limit_bytes=3 * ROWS * 11 * 8)
    caches = Caches(GROWN, DTYPE, pool)
    rng, history = np.random.default_rng(0), History(caches)
    first = append(history, rng, ROWS)
    with pytest.raises(OutOfMemory):
        history.reserve(5 * ROWS)
    assert_holds(history, [first])
    history.close()
    assert caches.grown.lent == 0 and pool.used_bytes == 0


def test_what_a_sentence_is_given_is_kept_and_a_state_is_its_own(caches):
    rng, history = np.random.default_rng(0), History(caches)
    keys, values, first = rng.normal(size=(70, 4)), rng.normal(size=(70, 2)), rng.normal(size=6)
    history.begin({KEPT: [keys, values], STATE: [first, None]})
    assert caches.kept.lent == 3 and caches.states.lent == 1
    fork = history.fork()
    assert caches.kept.lent == 3 and caches.states.lent == 1
    fork.reserve(1)
    write_rows(np.array([[5.0]]), pasts(fork)[7].states.addresses[:, 1])
    for one, last in ((history, 0.0), (fork, 5.0)):
        past = pasts(one)[7]
        for found, expected in zip(past.memories.joined(DTYPE), (keys, values), strict=True):
            np.testing.assert_array_equal(found, expected)
        states = past.states.joined(DTYPE)
        np.testing.assert_array_equal(states[0], first[None])
        assert states[1][0] == last
    assert caches.kept.lent == 3 and caches.states.lent == 2
    history.close()
    fork.close()


def test_a_state_begins_with_zeros(caches):
    history = History(caches)
    history.reserve(0)
    assert not any(part.any() for part in pasts(history)[7].states.joined(DTYPE))
    history.close()

"""Pages of keys and values: lent, shared, given back, and none lost."""

import numpy as np
import pytest

from dynbatch.errors import OutOfMemory
from dynbatch.generation.history import History, memory_of
from dynbatch.generation.pages import ROWS, TILE, Caches
from dynbatch.generation.resumed import CacheSlot, SlotKind
from dynbatch.generation.step_rows import StepRows, keep_given
from dynbatch.kernels.attention.addresses import write_rows
from dynbatch.memory import Pool

DTYPE = np.dtype("float64")
LIKE = np.zeros(0, DTYPE)
REACH = 40
WHOLE = [CacheSlot(0, SlotKind.GROWN, (3, 2)), CacheSlot(4, SlotKind.GROWN, (1, 5))]
WINDOW = CacheSlot(5, SlotKind.GROWN, (4, 4), reach=REACH)
KEPT = CacheSlot(7, SlotKind.KEPT, (4, 2), (1, 2))
STATE = CacheSlot(7, SlotKind.STATE, (6, 1), (3, None))
PAGE_BYTES = ROWS * 11 * 8
STATE_BYTES = 256  # seven numbers, rounded up by the pool


def pasts(history, count=0):
    """The data that each operator finds in a step with so many new rows."""
    return StepRows(history.caches, [history], np.array([count])).pasts(0)


def append(history, rng, count):
    """Append random rows to all slots; return those of the slots that grow."""
    history.reserve(count)
    slots = [slot for pages in history.caches.grown for slot in pages.slots]
    rows = [[rng.normal(size=(count, width)) for width in slot.widths] for slot in slots]
    found = pasts(history, count)
    for slot, arrays in zip(slots, rows, strict=True):
        found[slot.operator].append(*arrays)
    history.advance(count)
    return rows


def assert_holds(history, parts):
    """All rows are there; of a window those that later ones read."""
    found, slots = pasts(history), [slot for pages in history.caches.grown for slot in pages.slots]
    for number, slot in enumerate(slots):
        for side, values in enumerate(found[slot.operator].joined(LIKE)):
            expected = np.concatenate([part[number][side] for part in parts])
            assert len(values) >= min(slot.reach, len(expected))
            np.testing.assert_array_equal(values, expected[len(expected) - len(values) :])


def caches_of(*slots, limit=None):
    return Caches(slots, DTYPE, Pool(limit_bytes=limit))


@pytest.fixture
def caches():
    lent = caches_of(*WHOLE, KEPT, STATE)
    yield lent
    assert lent.lent_bytes == 0 and lent._lender._pool.used_bytes == 0


def test_rows_are_found_again_page_by_page(caches):
    rng, history = np.random.default_rng(0), History(caches)
    parts = [append(history, rng, count) for count in (1, ROWS - 1, 1, 9 * ROWS, 5)]
    assert_holds(history, parts)
    assert caches.grown[0].lent == 11
    assert caches.lent_bytes == 11 * PAGE_BYTES + STATE_BYTES
    history.close()
    assert caches.peak_bytes == 11 * PAGE_BYTES + STATE_BYTES


def test_forks_share_all_pages_and_go_on_in_pages_of_their_own(caches):
    rng, history = np.random.default_rng(0), History(caches)
    first = append(history, rng, 2 * ROWS + 10)
    forks = [history.fork() for _ in range(3)]
    (whole,) = caches.grown
    assert whole.lent == 3
    assert [fork.bytes_for(1) for fork in forks] == [PAGE_BYTES + STATE_BYTES] * 3
    own = [append(fork, rng, 4) for fork in forks]
    assert whole.lent == 6
    for fork, rows in zip(forks, own, strict=True):
        assert_holds(fork, [first, rows])
        assert fork.bytes_for(ROWS - 4) == 0 < fork.bytes_for(ROWS - 3)
    assert_holds(history, [first])
    sentences = [(history, [first]), *[(a, [first, b]) for a, b in zip(forks, own, strict=True)]]
    states = 4 * 7 * 8
    assert memory_of(caches, [one for one, _ in sentences]).live == live_bytes(sentences) + states
    history.close()
    forks[0].close()
    assert_holds(forks[1], [first, own[1]])
    assert whole.lent == 5
    for fork in forks:
        fork.close()
        fork.close()  # a second time it holds nothing


def test_a_fork_of_a_fork_copies_the_page_that_it_writes_to(caches):
    rng, history = np.random.default_rng(0), History(caches)
    first = append(history, rng, 10)
    fork = history.fork()
    second = append(fork, rng, 4)
    again = fork.fork()
    assert caches.grown[0].lent == 2 and again.bytes_for(1) == PAGE_BYTES + STATE_BYTES
    third = append(again, rng, 2 * ROWS)
    assert caches.grown[0].lent == 2 + 3
    assert_holds(again, [first, second, third])
    assert_holds(fork, [first, second])
    for one in (history, fork, again):
        one.close()


def test_the_last_reader_of_a_page_writes_to_it_without_a_copy(caches):
    rng, history = np.random.default_rng(0), History(caches)
    first = append(history, rng, 10)
    fork = history.fork()
    history.close()
    assert fork.bytes_for(1) == 0
    more = append(fork, rng, 1)
    assert caches.grown[0].lent == 1
    assert_holds(fork, [first, more])
    fork.close()


def test_a_window_keeps_the_pages_that_later_rows_read():
    caches, rng = caches_of(WHOLE[0], WINDOW), np.random.default_rng(0)
    whole, window = caches.grown
    history, parts = History(caches), []
    for _ in range(50):
        parts.append(append(history, rng, int(rng.integers(1, 20))))
        assert_holds(history, parts)
        assert window.lent <= window.count(REACH + TILE) + 1
        assert memory_of(caches, [history]).live == live_bytes([(history, parts)])
    assert whole.lent == whole.count(history.length) > 12
    fork = history.fork()
    more = append(fork, rng, 200)
    assert_holds(fork, [*parts, more])
    assert_holds(history, parts)
    history.close()
    assert window.lent <= window.count(REACH + TILE) + 1
    fork.close()
    assert caches.lent_bytes == 0


def live_bytes(sentences):
    """Bytes of the rows that may be read again: of equal ones, once."""
    found = {}
    for history, parts in sentences:
        slots = [slot for pages in history.caches.grown for slot in pages.slots]
        for number, slot in enumerate(slots):
            rows = np.concatenate([np.hstack(part[number]) for part in parts])
            for row in rows[max(0, len(rows) - slot.reach) :]:
                found[number, row.tobytes()] = row.nbytes
    return sum(found.values())


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_appending_forking_and_closing_takes_what_it_said(seed):
    caches, rng = caches_of(*WHOLE, WINDOW), np.random.default_rng(seed)
    going, peak = [(History(caches), [])], 0
    for _ in range(60):
        history, parts = going[rng.integers(len(going))]
        count, before = int(rng.choice([1, 1, 7, ROWS, 70])), caches.lent_bytes
        needed = history.bytes_for(count)
        history.reserve(count)
        assert caches.lent_bytes == before + needed
        peak = max(peak, before + needed)
        parts.append(append(history, rng, count))
        if rng.random() < 0.4 and len(going) < 6:
            going.append((history.fork(), [*parts]))
        elif rng.random() < 0.2 and len(going) > 1:
            going.pop(rng.integers(len(going)))[0].close()
        for one, rows in going:
            if rows:
                assert_holds(one, rows)
        found = memory_of(caches, [one for one, _ in going])
        assert found[1:] == (caches.lent_bytes, peak, 0)  # no packed weights
        # Rows that were copied, so that a sentence can go on behind them, are there twice.
        assert live_bytes([one for one in going if one[1]]) <= found.live <= found.reserved
    for one, _ in going:
        one.close()
    assert caches.lent_bytes == 0 == caches._lender._pool.used_bytes


def test_a_pool_without_room_loses_no_page():
    caches = caches_of(*WHOLE, limit=3 * PAGE_BYTES)
    rng, history = np.random.default_rng(0), History(caches)
    first = append(history, rng, ROWS)
    with pytest.raises(OutOfMemory):
        history.reserve(5 * ROWS)
    assert_holds(history, [first])
    history.close()
    assert caches.grown[0].lent == 0 == caches.lent_bytes


def test_what_a_sentence_is_given_is_kept_and_a_state_is_its_own(caches):
    rng, history = np.random.default_rng(0), History(caches)
    keys, values, first = rng.normal(size=(70, 4)), rng.normal(size=(70, 2)), rng.normal(size=6)
    history.begin([70])
    keep_given(caches, [history], {KEPT: [keys, values], STATE: [first[None], None]})
    assert caches.kept.lent == 3 and caches.states.lent == 1
    assert memory_of(caches, [history]).live == (70 * 6 + 7) * 8
    fork = history.fork()
    assert caches.kept.lent == 3 and caches.states.lent == 1
    fork.reserve(1)
    write_rows(np.array([[5.0]]), pasts(fork)[7].states.addresses[:, 1], False)
    for one, last in ((history, 0.0), (fork, 5.0)):
        past = pasts(one)[7]
        for found, expected in zip(past.memories.joined(LIKE), (keys, values), strict=True):
            np.testing.assert_array_equal(found, expected)
        states = past.states.joined(LIKE)
        np.testing.assert_array_equal(states[0], first[None])
        assert states[1][0] == last
    assert caches.kept.lent == 3 and caches.states.lent == 2
    history.close()
    fork.close()


def test_a_state_begins_with_zeros(caches):
    history = History(caches)
    history.reserve(0)
    assert not any(part.any() for part in pasts(history)[7].states.joined(LIKE))
    history.close()

"""Random structures for property tests, and the lower bound by its definition."""

from hypothesis import strategies as st

from dynbatch.batcher.schedule.plan import Structure


@st.composite
def structures(draw):
    """Any acyclic graph of up to 14 nodes of 3 kinds."""
    count = draw(st.integers(1, 14))
    kinds = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    inputs = [
        tuple(draw(st.lists(st.integers(0, node - 1), max_size=3))) if node else ()
        for node in range(count)
    ]
    return Structure(tuple(kinds), tuple(inputs))


@st.composite
def trees(draw):
    """Up to 6 binary trees of any shape: leaves of kind 1 over inputs, inner cells of kind 2."""
    kinds: list[int] = []
    inputs: list[tuple[int, ...]] = []

    def add(kind, *read):
        kinds.append(kind)
        inputs.append(read)
        return len(kinds) - 1

    has_outputs = draw(st.booleans())
    for _ in range(draw(st.integers(1, 6))):
        parts = [add(1, add(0)) for _ in range(draw(st.integers(1, 9)))]
        while len(parts) > 1:
            k = draw(st.integers(0, len(parts) - 2))
            parts[k : k + 2] = [add(2, parts[k], parts[k + 1])]
            if has_outputs:
                add(3, parts[k])
    return Structure(tuple(kinds), tuple(inputs))


def naive_lower_bound(structure):
    """Per kind the most of its nodes on a path, each kind in a pass of its own; summed."""
    bound = 0
    for kind in set(structure.signatures):
        most: list[int] = []
        for signature, inputs in zip(structure.signatures, structure.inputs, strict=True):
            most.append((signature == kind) + max([most[i] for i in inputs], default=0))
        bound += max(most)
    return bound

"""Random networks, and the smallest of many random plans of one: what a search should not miss."""

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.planning.recompute_search import RecomputeSearch
from dynbatch.errors import MemoryLimitError

UNLIMITED = 1 << 50
UNARY = F.tanh, F.exp, F.sigmoid, F.relu, F.log_softmax


def random_loss(graph, seed):
    """The loss of a network of linear maps, some of one weight, functions, sums and products."""
    generator = np.random.default_rng(seed)
    widths = [8, 24] if generator.random() < 0.5 else [16]
    shared = generator.random() < 0.5
    weights, losses = {}, []
    depth = int(generator.integers(4, 16))
    kinds = generator.integers(0, 8, depth)
    to = generator.choice(widths, depth)
    back = generator.random((2, depth))

    def linear(x, width, k):
        key = (x.width, int(width), 0 if shared else k)
        if key not in weights:
            start = np.full((int(width), x.width), 0.1, np.float32)
            weights[key] = db.Parameter(start, f"w{len(weights)}")
        return F.linear(x, weights[key])

    for rows in generator.integers(1, 40, generator.integers(1, 5)).tolist():
        values = [linear(F.constant(graph, 0.5, (rows, widths[0])), widths[0], -1)]
        for k in range(depth):
            a = values[-1 - int(back[0, k] ** 3 * len(values))]
            b = values[-1 - int(back[1, k] * len(values))]
            if kinds[k] < 3:
                values.append(linear(a, to[k], k))
            elif kinds[k] < 6 or a.width != b.width:
                values.append(UNARY[k % len(UNARY)](a))
            else:
                values.append(a * b if kinds[k] == 6 else a + b)
        losses.append(F.mean([F.mean(value) for value in values[-3:]]))
    total = F.mean(losses)
    return F.exp(total) if generator.random() < 0.3 else total


def least_found(seed, trials):
    """Bytes that the library says are the least, and those of the smallest random plan."""
    with db.Graph() as graph:
        loss = random_loss(graph, seed)
        try:
            graph.estimate(loss, memory_limit=1)
        except MemoryLimitError as error:
            least = error.least_bytes
        executor = graph._executor
        request = graph._request(loss, 1)
        generator = np.random.default_rng(seed)
        counts = [1]
        while counts[-1] < request.micro_batches()[0]:
            counts.append(min(2 * counts[-1], request.micro_batches()[0]))
        smallest = UNLIMITED
        for count in counts:
            preparation = executor._maker.prepare(request.parts(count), set())
            plan_graph = executor._planner._graph(preparation, request, [])
            search = RecomputeSearch(plan_graph, preparation.by_part, True, 1)
            search.fit()
            options = search._ranking.waiting
            for _ in range(-(-trials // len(counts))):
                plan = search.random_plan(generator, options, generator.random())
                smallest = min(smallest, plan.elements)
            preparation.forget()
    return least, smallest * 4

"""Every policy against one by one, on random graphs, with memory that is NaN where it is dead."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing import check_policies, check_sentences, strategies
from tests.poison import poisoned_memory

GENERATOR = np.random.default_rng(0)
WEIGHTS = {
    width: SimpleNamespace(
        input=db.Parameter(GENERATOR.standard_normal((2, width)), f"input {width}"),
        state=db.Parameter(GENERATOR.standard_normal((2, 2)), f"state {width}"),
    )
    for width in (1, 2, 3)
}
RECURRENT = [p for w in WEIGHTS.values() for p in (w.input, w.state)]


@db.cell
def elman(x, h, p):
    h = F.tanh(F.linear(x, p.input) + F.linear(h, p.state))
    return h, h


def recurrent(x):
    if x.width > 3:
        return -x
    initial = F.sigmoid(F.input(x.graph, [0.0, 1.0]))
    ys, last = db.scan(elman, x, init=initial, params=WEIGHTS[x.width])
    return F.concat([ys, F.reverse(ys) * last])


@db.cell
def running_mean(x, h, params):
    h = 0.5 * h + F.tanh(x) * 0.5
    return h * x, h


def scanned(x):
    ys, last = db.scan(running_mean, x, init=F.constant(x.graph, 0.1, (x.width,)))
    return ys * last


@db.cell
def attending(x, state, params, memory):
    h, c = state
    h = F.tanh(x + F.attention(h, memory))
    c = F.sigmoid(x) * c + h
    return F.concat([h * x, c]), (h, c)


def scanned_backwards(x):
    init = (F.constant(x.graph, 0.2, (x.width,)), x.width)
    ys, (h, c) = db.scan(attending, x, init=init, memory=F.tanh(F.reverse(x)), reverse=True)
    return ys * F.concat([c, h])


KEEPING = (
    F.softmax,
    F.log_softmax,
    F.layer_norm,
    F.reverse,
    lambda x: F.softmax(x, dim=0),
    lambda x: F.attention(x, x, x),
    lambda x: F.sum(x, dim=0),
    lambda x: F.mean(x, dim=-1),
    lambda x: F.logsumexp(x, dim=-1),
    lambda x: F.max(x, dim=-1) + F.min(x, dim=-1),
    lambda x: F.stack([F.sum(x, dim=0), F.sum(x * x, dim=0)]),
    lambda x: F.concat(F.split(x, [x.rows // 2, x.rows - x.rows // 2], dim=0)[::-1], dim=0),
    lambda x: F.transpose(x) if x.rows else x,
    lambda x: F.gather_rows(x, [0, x.rows - 1, 0] if x.rows else []),
    scanned,
    recurrent,
    scanned_backwards,
)
FUNCTIONS = (*KEEPING, lambda x: F.dropout(x, 0.3))


@settings(max_examples=50)
@given(strategies.random_graphs(functions=FUNCTIONS))
def test_every_policy_equals_one_by_one(random_graph):
    with poisoned_memory():
        check_policies(random_graph, RECURRENT)


@settings(max_examples=20)
@given(strategies.random_graphs(functions=KEEPING, most_instructions=8))
def test_no_sentence_changes_another(random_graph):
    check_sentences(random_graph, RECURRENT)

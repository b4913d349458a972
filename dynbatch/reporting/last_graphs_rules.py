"""Rules of advice about what several graphs of a thread show, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynbatch.reporting.last_graphs import KEPT, GraphSummary
from dynbatch.reporting.rules import MUCH_WORK, Advice, Observed, mistake
from dynbatch.reporting.run_record import RunRecord

REPEATED = 4
"""Graphs, one after the other, that all do what a mistake does."""

FEW_SENTENCES = 4
"""A mini-batch that is small whatever the sentences are."""


def _made_anew(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    graphs = _last(observed, REPEATED)
    again = frozenset.intersection(*[graph.first_traced for graph in graphs]) if graphs else ()
    for name in sorted(again)[:1]:
        yield mistake(
            f"the cell or block {name} was made anew, and traced anew, in each of the last "
            f"{REPEATED} graphs: nothing of what was traced and compiled is used again",
            "make it once, outside of the loop: at the top of a module, or in a model's __init__",
        )


def _parameters_anew(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    """New parameters of equal names beside old ones; or all are new for longer."""
    graphs = _last(observed, REPEATED)
    if not graphs or not all([graph.has_others for graph in graphs]):
        graphs = _last(observed, KEPT)
    again = frozenset.intersection(*[graph.made for graph in graphs]) if graphs else frozenset()
    if again:
        names = ", ".join(sorted(again)[:3]) + (", …" if len(again) > 3 else "")
        yield mistake(
            f"parameters of equal names were made anew in each of the last {len(graphs)} graphs: "
            f"{names}; no optimizer trains what is read once",
            "make it once, in __init__ of the model, and give the optimizer the model",
        )


def _few_sentences(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    graphs = _last(observed, KEPT)
    if not all([graph.reads_parameters for graph in graphs]):
        return
    most = max([graph.sentences for graph in graphs], default=0)
    is_much = any([row.flops.total >= MUCH_WORK for row in record.rows])
    if not 0 < most <= FEW_SENTENCES or is_much:
        return
    if most == 1:
        what = "have one node in a batch: a graph for each sentence has nothing to batch"
        fix = "make all sentences of a mini-batch, 32 or more, in one graph: the loop goes into it"
    else:
        what = f"have mini-batches of {most} sentences at most: 32 take hardly longer"
        fix = "a larger mini-batch: 32 sentences or more in one graph"
    yield mistake(f"the last {KEPT} graphs {what}", fix)


def _evaluation(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    graphs = _last(observed, REPEATED)
    if not graphs or not observed.is_closed:
        return
    if any([graph.is_training or not graph.may_train for graph in graphs]):
        return
    if all([graph.reads_parameters and graph.sentences > FEW_SENTENCES for graph in graphs]):
        yield mistake(
            f"no backward ran in the last {REPEATED} graphs, which keep all values for it",
            "Graph(grad=False) for evaluation, which frees a value after its last reader",
        )


def _waited(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    """A loss that was read from a GPU at once; the latest may not have been read yet."""
    graphs = _last(observed, REPEATED)
    if graphs and all([graph.waited for graph in graphs]):
        yield mistake(
            f"the loss of each of the last {REPEATED} graphs was read before the next one began: "
            "the GPU idles while the host builds that one",
            "read the loss later: after the next backward, as the Trainer does, or every 100 steps",
        )


def _last(observed: Observed, count: int) -> Sequence[GraphSummary]:
    """The last graphs; none where they are fewer."""
    return observed.graphs[:count] if len(observed.graphs) >= count else ()


LAST_GRAPHS_RULES = (_made_anew, _parameters_anew, _few_sentences, _evaluation, _waited)

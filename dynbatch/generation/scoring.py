"""`log_prob`: how probable a result is by a model, in a graph that has gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.generation.model import decoded_logits, encoded_by, has_source, logits_of
from dynbatch.graph import Graph
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node


def log_prob(graph: Graph, model: Any, prompt: ArrayLike, tokens: ArrayLike) -> Node:
    """Σ_t log p(tokens_t | prompt, the tokens before), a number in nats, with gradients.

    For a result of `generate` or `Engine` that was not found with beams it equals the `score`, to
    the bit where the C kernels run, as long as the model is the same and drops nothing out.

    Args:
        graph:  where the model's parameters are, and in their dtype.
        model:  as `Engine`.
        prompt: ids (P,), P >= 1, that the tokens follow; or the source of an encoder-decoder.
        tokens: ids (T,), T >= 1; a result's end mark is one of them.

    Raises:
        ShapeError:      `prompt` or `tokens` is not a list of ids, or there are no tokens.
        VocabularyError: an id is not one of the model's.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> model = models.Seq2Seq(source_vocab=10, target_vocab=12, embed=8, hidden=16)
        >>> ((best,),) = db.generate(model, [[3, 1, 2]], max_new_tokens=5)
        >>> with db.Graph() as graph:
        ...     found = log_prob(graph, model, [3, 1, 2], best.tokens).keep()
        ...     graph.backward(-found)
        >>> abs(float(found.value) - best.score) < 1e-5
        True
    """
    prompt_ids, ids = as_ids("log_prob", prompt), as_ids("log_prob", tokens)
    if has_source(model):
        read = np.concatenate(([model.start], ids[:-1]))
        logits = decoded_logits(graph, model, read, *encoded_by(model, graph, prompt_ids))
    else:
        read = np.concatenate((prompt_ids, ids[:-1]))
        logits = logits_of(graph, model, read)[prompt_ids.size - 1 :]
    return -F.cross_entropy(logits, ids, reduction="sum")

"""BLEU of what a model wrote."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from dynbatch.tasks.translation.pairs import ParallelText, Tokens


def bleu(found: Sequence[Tokens], examples: Sequence[ParallelText]) -> str:
    """BLEU of generated sentences against all references of each, or why it is not known.

    The tokens are the corpus's own, so that only scores of one corpus compare.

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771 (sacrebleu).
    """
    if find_spec("sacrebleu") is None:
        return "not measured: pip install 'dynbatch[translation]'"
    from sacrebleu import corpus_bleu

    most = max([len(example.references) for example in examples])
    streams = [
        [" ".join(e.references[k].split()) if k < len(e.references) else None for e in examples]
        for k in range(most)
    ]
    texts = [" ".join(tokens) for tokens in found]
    score = corpus_bleu(texts, streams, tokenize="none", force=True).score
    return f"{score:.1f}"

"""What came of a training: error rates, and memory beside that of padded mini-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from statistics import mean

from dynbatch.train.metrics import Record
from examples.seq2seq.corpus import Example, Tokens
from examples.seq2seq.metrics import ErrorRates, error_rates
from examples.seq2seq.translator import Translator


def evaluate(
    translator: Translator, examples: Sequence[Example], beam_size: int = 1
) -> tuple[ErrorRates, list[Tokens]]:
    """Error rates over the examples, and the target generated for each."""
    sources = [example.source for example in examples]
    found = [best.tokens for best, *_ in translator.translate(sources, beam_size)]
    return error_rates(found, [example.references for example in examples]), found


def bleu(found: Sequence[Tokens], examples: Sequence[Example]) -> str:
    """BLEU of generated sentences against all references of each, or why it is not known.

    The tokens are the corpus's own, so that only scores of one corpus compare.

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771 (sacrebleu).
    """
    if find_spec("sacrebleu") is None:
        return "not measured: pip install 'dynbatch[translation]'"
    from sacrebleu import corpus_bleu

    most = max([len(example.references) for example in examples])
    streams = [
        [" ".join(e.references[k]) if k < len(e.references) else None for e in examples]
        for k in range(most)
    ]
    texts = [" ".join(tokens) for tokens in found]
    score = corpus_bleu(texts, streams, tokenize="none", force=True).score
    return f"{score:.1f}"


def memory_saved(records: Iterable[Record]) -> str:
    """What the mini-batches of a training took, and would have taken padded, as one line.

    Args:
        records: of the metrics file; those with `padded_bytes` count (see `train.Trainer`).

    Returns:
        "" if no record says what padding would have taken.
    """
    known = [record for record in records if "padded_bytes" in record]
    if not known:
        return ""
    own, padded = [[record[name] for record in known] for name in ("peak_bytes", "padded_bytes")]
    as_planned = sum([record["peak_bytes"] == record["planned_bytes"] for record in known])
    return (
        f"{mean(own) / 1e6:.1f} MB on average ({max(own) / 1e6:.1f} at most), padded "
        f"{mean(padded) / 1e6:.1f} ({max(padded) / 1e6:.1f}): {1 - sum(own) / sum(padded):.0%} "
        f"saved; {as_planned} of {len(known)} looked at took what was planned before they ran"
    )

"""Error rates, BLEU and chrF of generated sequences against one or several references each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from dynbatch.arguments import refused
from dynbatch.errors import EmptyBatchError, ShapeError


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Errors over a test set, as fractions.

    `token`: edits to the closest reference, summed, over the summed lengths of those references
    (phoneme error rate, PER); it can exceed 1. `sequence`: the share of sequences that equal none
    of their references (word error rate of a dictionary, WER; 1 - exact match).
    """

    token: float
    sequence: float
    num_sequences: int

    def __str__(self) -> str:
        exact = self.num_sequences - round(self.sequence * self.num_sequences)
        return (
            f"token error rate {self.token:.2%}, "
            f"{exact:,} of {self.num_sequences:,} sequences exact"
        )


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """The fewest insertions, deletions and substitutions that turn `a` into `b`.

    Source: Wagner & Fischer 1974, JACM 21(1), one row of the table at a time.

    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    row = list(range(len(b) + 1))  # row[j]: distance of the prefix of a seen so far to b[:j]
    for i, token in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            above = row[j]
            row[j] = min(above + 1, row[j - 1] + 1, diagonal + (token != other))
            diagonal = above
    return row[-1]


def error_rates(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> ErrorRates:
    """Token and sequence error rate of hypotheses against the closest of each one's references.

    Of references equally close, the first counts. If the closest references hold no tokens at all,
    edits are counted over 1.

    Args:
        hypotheses: one generated sequence for each source.
        references: for each source, at least one right sequence.

    Raises:
        EmptyBatchError: there are no hypotheses, or one has no reference.
        ShapeError:      the two lists differ in length.
        ArgumentError:   the references of a hypothesis are a text.

    Example:
        >>> error_rates([["K", "AE", "T"]], [[["K", "AH", "T"], ["K", "AE", "T", "S"]]])
        ErrorRates(token=0.3333333333333333, sequence=1.0, num_sequences=1)
    """
    if len(hypotheses) != len(references):
        raise ShapeError(
            f"error_rates: {len(hypotheses)} hypotheses, {len(references)} lists of references.\n"
            "  rule: one list of references for each hypothesis"
        )
    if not hypotheses:
        raise EmptyBatchError("error_rates: no hypotheses; there is nothing to average over.")
    edits = tokens = wrong = 0
    for index, (hypothesis, right) in enumerate(zip(hypotheses, references, strict=True)):
        if isinstance(right, str):
            raise refused(
                "error_rates", f"the references of hypothesis {index} are a text, {right[:40]!r}",
                "for each hypothesis a list of references, each a sequence of tokens",
                "[[target.split()] for target in targets]",
            )  # fmt: skip
        if not right:
            raise EmptyBatchError(f"error_rates: hypothesis {index} has no reference.")
        distance, length = min(
            ((edit_distance(hypothesis, reference), len(reference)) for reference in right),
            key=lambda closest: closest[0],
        )
        edits, tokens, wrong = edits + distance, tokens + length, wrong + (distance > 0)
    return ErrorRates(edits / max(tokens, 1), wrong / len(hypotheses), len(hypotheses))


def translation_scores(
    found: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> dict[str, float]:
    """BLEU and chrF of texts, 0 to 100, by sacrebleu; nothing where it is not installed.

    Args:
        found:      one text for each source.
        references: for each source, at least one right text.
        tokenize:   sacrebleu's way to cut texts into words for BLEU; "none" at blanks.

    Source: Papineni et al. 2002; Popović 2015; Post 2018, arXiv:1804.08771 (sacrebleu).
    """
    if find_spec("sacrebleu") is None or not found:
        return {}
    from sacrebleu import corpus_bleu, corpus_chrf

    most = max([len(each) for each in references])
    streams: Any = [  # sacrebleu leaves None out, and does not say so in its types
        [each[k] if k < len(each) else None for each in references] for k in range(most)
    ]
    bleu = corpus_bleu(found, streams, tokenize=tokenize, force=True)
    return {"BLEU": bleu.score, "chrF": corpus_chrf(found, streams).score}

"""A run that goes on: its settings and vocabularies come from its checkpoint, not from the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dynbatch.errors import CheckpointError
from dynbatch.tasks.settings import refuse_other_settings
from dynbatch.text import Vocabulary
from dynbatch.train import read_checkpoint
from examples.seq2seq.data import Pair
from examples.seq2seq.options import Options, Settings, saved_settings
from examples.seq2seq.translator import Translator


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a run was before it was stopped.

    Args:
        checkpoint:   its file.
        settings:     those it began with, and what the command line may change of them.
        translator:   its model, not yet with its values, and its vocabularies.
        data_changed: whether it goes on with other data on purpose.
    """

    checkpoint: Path
    settings: Settings
    translator: Translator
    data_changed: bool

    def vocabularies(self, source: Vocabulary, target: Vocabulary) -> tuple[Vocabulary, Vocabulary]:
        """The run's own, which must be those of the data unless that is another on purpose.

        Raises:
            CheckpointError: the data has others, so that its ids would mean other words.
        """
        own = (self.translator.source, self.translator.target)
        if self.data_changed:
            return own
        said = [
            f"  {side} vocabulary: {difference}"
            for side, before, now in zip(("source", "target"), own, (source, target), strict=True)
            if (difference := before.difference(now))
        ]
        if said:
            raise CheckpointError(
                f"{self.checkpoint}: the data has other words than when the run was begun; nothing "
                "was loaded.\n" + "\n".join(said) + "\n"
                "  rule: a run is resumed with the data it was begun with\n"
                "  fix:  give this data; or begin a run in another --output; or go on with the new "
                "data by --resume --data-changed, where words that the run lacks are unknown"
            )
        return own


def earlier_run(options: Options, checkpoint: Path) -> Earlier:
    """The run that `--resume` goes on with.

    Raises:
        CheckpointError: there is none, it is damaged, or it has other settings.
    """
    info = read_checkpoint(checkpoint)
    settings = saved_settings(checkpoint, info.extra.get("settings"))
    refuse_other_settings(checkpoint, asdict(settings), options.given, options.data_changed)
    settings = replace(settings, **options.given)
    return Earlier(checkpoint, settings, Translator.described(info), options.data_changed)


def unknown_share(pairs: Sequence[Pair]) -> float:
    """The share of tokens, of both sides, that the vocabularies lack."""
    unknown = sum(
        [int((ids == Vocabulary.unknown).sum()) for p in pairs for ids in (p.source, p.target)]
    )
    return unknown / max(1, sum([pair.num_tokens for pair in pairs]))

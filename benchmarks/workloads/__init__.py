"""Workloads that are timed: one file each, its model written in the public interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.lengths import KINDS, ONE_LONG, REAL_TEXT_SIGMA, ClassCorpus, Corpus
from benchmarks.measure import OURS, Contender, in_precision
from benchmarks.networks import (
    Array,
    BertLayerSizes,
    CnnSizes,
    Seq2SeqSizes,
    Sizes,
    TaggerSizes,
    TransformerSizes,
    TreeSizes,
    initial_values,
)
from benchmarks.peers import (
    CNN_PEERS,
    LSTM_PEERS,
    PEERS,
    TAGGER_PEERS,
    TRANSFORMER_PEERS,
    TREE_PEERS,
    build_peers,
    modes_of,
)
from benchmarks.peers.worker_process import PeerUnavailable
from benchmarks.trees import TreeCorpus
from benchmarks.workloads.cnn import DynbatchCnn
from benchmarks.workloads.contender import DynbatchContender
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from benchmarks.workloads.steps import StepSeq2Seq, StepTagger
from benchmarks.workloads.tagger import DynbatchTagger
from benchmarks.workloads.transformer import DynbatchTransformer
from benchmarks.workloads.tree import DynbatchTree
from benchmarks.workloads.tree_by_hand import HandBatchedTree
from benchmarks.workloads.user_cell import FourMatrixTagger, UserCellTagger

Values = Mapping[str, Array]

# Word pieces of a question of SQuAD 1.1 with its paragraph, roughly: an assumption, not a count.
QUESTIONS = {"mean": 160.0, "bounds": (24, 512)}
QUESTIONS_SIGMA = 0.4

# Words of a sentence of the Stanford Sentiment Treebank: 19.1 ± 9.3, at most 52. A lognormal draw
# of this mean and spread, clipped, has 19.2 ± 9.4.
REVIEWS = {"mean": 19.3, "bounds": (2, 52)}
REVIEWS_SIGMA = 0.48

ALL_FULL = {"mean": 512.0}

# dynbatch's side with rounded factors, timed on request beside the one without.
OUR_MODES = {in_precision(OURS, precision): precision for precision in ("bfloat16",)}


@dataclass(frozen=True)
class Workload:
    """One model to time.

    Args:
        sizes:  of the network.
        ours:   builds dynbatch's side from sizes, initial values and the name of the device.
        frameworks: names of the peers in other frameworks.
        rivals: build further models on dynbatch to time beside it.
        batch:  sentences of a mini-batch.
        sigma:  spread of the sentences' lengths.
        lengths: their kind: see `lengths.KINDS`.
    """

    sizes: Sizes
    ours: Callable[[Any, Values, str], DynbatchContender]
    frameworks: tuple[str, ...] = PEERS
    rivals: Mapping[str, Callable[[Any, Values, str], Contender]] = field(default_factory=dict)
    batch: int = 64
    sigma: float = REAL_TEXT_SIGMA
    lengths: str = KINDS[0]

    def with_hidden(self, hidden: int) -> Workload:
        """This workload with another width."""
        return replace(self, sizes=replace(self.sizes, hidden=hidden))

    def with_heads(self, heads: int) -> Workload:
        """This Transformer with another number of heads."""
        return replace(self, sizes=replace(self.sizes, heads=heads))

    def with_lengths(self, kind: str) -> Workload:
        """This workload on sentences whose lengths are spread in another way."""
        sizes = self.sizes
        if kind == "one-long" and isinstance(sizes, TransformerSizes):
            sizes = replace(sizes, longest=ONE_LONG)
        return replace(self, sizes=sizes, lengths=kind)

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of all that may stand beside dynbatch, in the order of reports."""
        return (*self.frameworks, *self.rivals)

    @property
    def modes(self) -> tuple[str, ...]:
        """Further ways to run dynbatch and a peer, which are timed on request alone."""
        return (*OUR_MODES, *modes_of(self.frameworks))

    def corpus(self, sigma: float) -> Corpus:
        """The sentences that fit the network."""
        sizes = self.sizes
        spread: dict[str, Any] = {"sigma": sigma, "kind": self.lengths}
        if isinstance(sizes, TaggerSizes):
            return Corpus(sizes.vocabulary, sizes.tags, is_aligned=True, **spread)
        if isinstance(sizes, TreeSizes):
            return TreeCorpus(sizes.vocabulary, sizes.classes, **spread)
        if isinstance(sizes, CnnSizes):
            spread |= REVIEWS
            return ClassCorpus(sizes.vocabulary, sizes.classes, is_aligned=True, **spread)
        if isinstance(sizes, TransformerSizes):
            return Corpus(sizes.vocabulary, sizes.vocabulary, is_aligned=True, **spread)
        if isinstance(sizes, BertLayerSizes):
            spread |= ALL_FULL if self.lengths == "equal" else QUESTIONS
            return Corpus(sizes.vocabulary, sizes.tags, is_aligned=True, **spread)
        source, target = sizes.source_vocabulary, sizes.target_vocabulary
        return Corpus(source, target, is_aligned=False, **spread)

    def build(
        self,
        rng: np.random.Generator,
        wanted: Sequence[str] | None,
        threads: int,
        dynet_python: str = "",
        device: str = "cpu",
        tensorflow: str = "",
    ) -> tuple[DynbatchContender, list[Contender], dict[str, str]]:
        """dynbatch's side, its peers with the same values, and why the other peers do not run.

        Args:
            wanted: names of `peers` and `modes`; None is all peers.
            device: "cpu" or "cuda", for all sides.
            dynet_python, tensorflow: interpreters that have these.
        """
        values = initial_values(self.sizes, rng)
        ours = self.ours(self.sizes, values, device)
        peers: list[Contender] = []
        for name in [name for name in OUR_MODES if name in (wanted or ())]:
            peers.append(self.ours(self.sizes, values, device))
            peers[-1].name, peers[-1].precision = name, OUR_MODES[name]
        names = [name for name in modes_of(self.frameworks) if name in (wanted or ())]
        names += [name for name in self.peers if wanted is None or name in wanted]
        frameworks = [name for name in names if name not in self.rivals]
        built, skipped = build_peers(
            frameworks, self.sizes, values, threads, dynet_python, device, tensorflow
        )
        peers += built
        for name in names[len(frameworks) :]:
            try:
                rival = self.rivals[name](self.sizes, values, device)
            except PeerUnavailable as reason:
                skipped[name] = str(reason)
                continue
            rival.name = name
            peers.append(rival)
        return ours, peers, skipped


WORKLOADS: Mapping[str, Workload] = {
    "tagger": Workload(TaggerSizes(), DynbatchTagger, frameworks=TAGGER_PEERS),
    # Scans alone: little else than the two recurrences.
    "lstm": Workload(
        TaggerSizes(vocabulary=64, embedding=256, tags=2), DynbatchTagger, frameworks=LSTM_PEERS
    ),
    "seq2seq": Workload(Seq2SeqSizes(), DynbatchSeq2Seq),
    "user_cell": Workload(
        TaggerSizes(),
        UserCellTagger,
        frameworks=(),
        rivals={"models-lstm": DynbatchTagger, "four-matrices": FourMatrixTagger},
    ),
    "tagger_steps": Workload(
        TaggerSizes(), StepTagger, frameworks=(), rivals={"scan": DynbatchTagger}
    ),
    "seq2seq_steps": Workload(
        Seq2SeqSizes(), StepSeq2Seq, frameworks=(), rivals={"scan": DynbatchSeq2Seq}
    ),
    "transformer": Workload(TransformerSizes(), DynbatchTransformer, frameworks=TRANSFORMER_PEERS),
    "bert_layer": Workload(
        BertLayerSizes(),
        DynbatchTransformer,
        frameworks=TRANSFORMER_PEERS,
        batch=32,
        sigma=QUESTIONS_SIGMA,
    ),
    "cnn": Workload(CnnSizes(), DynbatchCnn, frameworks=CNN_PEERS, sigma=REVIEWS_SIGMA),
    "tree": Workload(
        TreeSizes(), DynbatchTree, frameworks=TREE_PEERS, rivals={"by-hand": HandBatchedTree}
    ),
}

"""The frameworks that dynbatch is timed beside, each written as its good users write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from benchmarks.measure import Contender
from benchmarks.networks import (
    Array,
    BertLayerSizes,
    CnnSizes,
    Seq2SeqSizes,
    Sizes,
    TaggerSizes,
    TransformerSizes,
    TreeSizes,
)
from benchmarks.peers.dynet_process import DynetContender
from benchmarks.peers.tensorflow_process import TENSORFLOW_PEERS, TensorflowContender
from benchmarks.peers.worker_process import PeerUnavailable

if TYPE_CHECKING:
    from benchmarks.peers.pytorch import PyTorchContender

PEERS = ("pytorch-padded", "pytorch-packed", "pytorch-select", "pytorch-bucketed", "dynet")
TAGGER_PEERS = (*PEERS, *TENSORFLOW_PEERS)
LSTM_PEERS = ("pytorch-padded", "pytorch-packed", "pytorch-bucketed")
CNN_PEERS = ("pytorch-padded", "pytorch-bucketed")
TREE_PEERS = ("pytorch-levels", "pytorch-nodes", "dynet")
TRANSFORMER_PEERS = (
    "pytorch-padded", "pytorch-bucketed", "pytorch-nested", "pytorch-by-sentence",
)  # fmt: skip
MODES = ("compiled", "bfloat16", "compiled-bfloat16")
"""Ways to run PyTorch on bucketed batches: `torch.compile`, autocast, and both."""
_NAMES = {TaggerSizes: "tagger", Seq2SeqSizes: "seq2seq", TreeSizes: "tree"}


def build_peers(
    wanted: Sequence[str],
    sizes: Sizes,
    values: Mapping[str, Array],
    threads: int,
    dynet_python: str = "",
    device: str = "cpu",
    tensorflow: str = "",
) -> tuple[list[Contender], dict[str, str]]:
    """The peers that can run here, and for each of the others the reason why not.

    Args:
        wanted:       names out of `PEERS`, `TREE_PEERS` or `TRANSFORMER_PEERS`, as sizes have it.
        threads:      of every PyTorch peer; DyNet's wheel has one.
        dynet_python: an interpreter that can import `dynet`; the running one if empty.
        device:       "cpu" or "cuda", of every PyTorch peer; the others' wheels have the CPU alone.
        tensorflow:   an interpreter that can import `tensorflow`; the running one if empty.
    """
    built: list[Contender] = []
    skipped: dict[str, str] = {}
    for name in wanted:
        try:
            if device != "cpu" and name in ("dynet", *TENSORFLOW_PEERS):
                raise PeerUnavailable("its wheel runs on the CPU only.")
            if name == "dynet":
                built.append(DynetContender(_NAMES[type(sizes)], values, dynet_python))
            elif name in TENSORFLOW_PEERS:
                built.append(TensorflowContender(name, values, threads, tensorflow))
            else:
                built.append(_pytorch(name, sizes, values, threads, device))
        except PeerUnavailable as reason:
            skipped[name] = str(reason)
    return built, skipped


def modes_of(peers: Sequence[str]) -> tuple[str, ...]:
    """The names of bucketed PyTorch in each of `MODES`, where it is among some peers."""
    bucketed = "pytorch-bucketed"
    return tuple([f"{bucketed}-{mode}" for mode in MODES]) if bucketed in peers else ()


def _pytorch(
    name: str, sizes: Sizes, values: Mapping[str, Array], threads: int, device: str
) -> Contender:
    if find_spec("torch") is None:
        raise PeerUnavailable("PyTorch is not installed; pip install 'dynbatch[peers]'.")
    import torch

    if device != "cpu" and not torch.cuda.is_available():
        raise PeerUnavailable(f"PyTorch {torch.__version__} finds no GPU.")
    torch.set_num_threads(threads)
    if isinstance(sizes, TaggerSizes):
        forms = _tagger_forms(sizes, values, device)
    elif isinstance(sizes, TreeSizes):
        forms = _tree_forms(sizes, values, device)
    elif isinstance(sizes, CnnSizes):
        forms = _cnn_forms(sizes, values, device)
    elif isinstance(sizes, TransformerSizes | BertLayerSizes):
        forms = _transformer_forms(sizes, values, device)
    else:
        forms = _seq2seq_forms(sizes, values, device)
    form, _, mode = name.partition("bucketed-")
    make = forms.get(f"{form}bucketed" if mode else name)
    if make is None:
        raise PeerUnavailable("this workload has no decoder whose rows could be dropped.")
    contender = make()
    if mode:
        contender.name = name
        contender.precision = "bfloat16" if mode.endswith("bfloat16") else "float32"
        if mode.startswith("compiled"):
            contender.compile()
    return contender


def _tagger_forms(
    sizes: TaggerSizes, values: Mapping[str, Array], device: str
) -> dict[str, Callable[[], PyTorchContender]]:
    from benchmarks.peers.pytorch_tagger import PackedTagger, PaddedTagger

    return {
        "pytorch-padded": lambda: PaddedTagger(sizes, values, device=device),
        "pytorch-packed": lambda: PackedTagger(sizes, values, device=device),
        "pytorch-bucketed": lambda: PaddedTagger(sizes, values, is_bucketed=True, device=device),
    }


def _seq2seq_forms(
    sizes: Seq2SeqSizes, values: Mapping[str, Array], device: str
) -> dict[str, Callable[[], PyTorchContender]]:
    from benchmarks.peers.pytorch_seq2seq import Seq2SeqContender

    def form(name: str, **settings: bool) -> Callable[[], PyTorchContender]:
        return lambda: Seq2SeqContender(name, sizes, values, **settings, device=device)

    # Of padded and packed encoders each form has the one that was faster in it.
    return {
        "pytorch-padded": form("pytorch-padded"),
        "pytorch-packed": form("pytorch-packed", packs=True),
        "pytorch-select": form("pytorch-select", packs=True, selects=True),
        "pytorch-bucketed": form("pytorch-bucketed", selects=True, is_bucketed=True),
    }


def _cnn_forms(
    sizes: CnnSizes, values: Mapping[str, Array], device: str
) -> dict[str, Callable[[], PyTorchContender]]:
    from benchmarks.peers.pytorch_cnn import PaddedCnn

    return {
        "pytorch-padded": lambda: PaddedCnn(sizes, values, device=device),
        "pytorch-bucketed": lambda: PaddedCnn(sizes, values, is_bucketed=True, device=device),
    }


def _tree_forms(
    sizes: TreeSizes, values: Mapping[str, Array], device: str
) -> dict[str, Callable[[], PyTorchContender]]:
    from benchmarks.peers.pytorch_tree import LevelTree, NodeTree

    return {
        "pytorch-levels": lambda: LevelTree(sizes, values, device),
        "pytorch-nodes": lambda: NodeTree(sizes, values, device),
    }


def _transformer_forms(
    sizes: TransformerSizes | BertLayerSizes, values: Mapping[str, Array], device: str
) -> dict[str, Callable[[], PyTorchContender]]:
    from benchmarks.peers.pytorch_transformer import (
        BySentence,
        NestedTransformer,
        PaddedTransformer,
        VarlenTransformer,
    )

    def varlen() -> PyTorchContender:
        if device == "cpu":
            raise PeerUnavailable("PyTorch has flash attention for varying lengths on a GPU only.")
        return VarlenTransformer(sizes, values, device)

    return {
        "pytorch-padded": lambda: PaddedTransformer(sizes, values, device=device),
        "pytorch-bucketed": lambda: PaddedTransformer(sizes, values, True, device),
        "pytorch-nested": lambda: NestedTransformer(sizes, values, device),
        "pytorch-by-sentence": lambda: BySentence(sizes, values, device),
        "pytorch-varlen": varlen,
    }

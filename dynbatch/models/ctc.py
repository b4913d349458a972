"""Labels from the frames of a network that was trained with `F.ctc_loss`."""

from __future__ import annotations

import numpy as np

from dynbatch.arguments import refused, shown, sizes
from dynbatch.backend import Array
from dynbatch.nodes.losses.ctc import blank_of


def ctc_greedy(log_probs: Array, blank: int = 0) -> Array:
    """The labels (U,) int64 that the most probable class of each frame spells.

    Equal neighbours are merged, then blanks are left out: best-path decoding.

    Args:
        log_probs: (T, V), an array such as `node.value`; any scores in this order do.
        blank:     the class of frames without a label.

    Raises:
        ArgumentError: `log_probs` are no matrix, or the blank is not a class.

    Example:
        >>> ctc_greedy(np.eye(3)[[1, 1, 0, 1, 2, 0]]).tolist()
        [1, 1, 2]
    """
    path = _frames("ctc_greedy", log_probs, blank).argmax(axis=1)
    is_new = np.ones(path.size, bool)
    is_new[1:] = path[1:] != path[:-1]
    labels: Array = path[is_new & (path != blank)]
    return labels


def ctc_beam_search(log_probs: Array, beams: int = 10, blank: int = 0) -> tuple[Array, float]:
    """The most probable labels of all that a beam search keeps, and their log probability.

    The probabilities of all paths that spell the same labels are added. It is exact where `beams`
    keeps every beginning; else the probability is that of the paths which were kept.

    Args:
        log_probs: (T, V) logarithms of each frame's probabilities, an array.
        beams:     beginnings that are kept at each frame.
        blank:     the class of frames without a label.

    Returns:
        (U,) int64, and a number of at most 0.

    Raises:
        ArgumentError: `log_probs` are no matrix, beams < 1, or the blank is not a class.

    Example:
        >>> frames = np.log([[0.6, 0.4], [0.6, 0.4]])  # the best path is blank, blank: 0.36
        >>> labels, log_prob = ctc_beam_search(frames)
        >>> labels.tolist(), round(float(np.exp(log_prob)), 2)
        ([1], 0.64)

    Source: Graves & Jaitly 2014, ICML, algorithm 1, without a language model.
    """
    sizes("ctc_beam_search", beams=beams)
    # By labels, the log probabilities of the paths that end in a blank, and in the last label.
    prefixes: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -np.inf)}
    for frame in _frames("ctc_beam_search", log_probs, blank).tolist():
        ahead: dict[tuple[int, ...], tuple[float, float]] = {}
        for labels, (ends_blank, ends_label) in prefixes.items():
            either = np.logaddexp(ends_blank, ends_label)
            last = labels[-1] if labels else blank
            stays = -np.inf if last == blank else ends_label + frame[last]
            _add(ahead, labels, either + frame[blank], stays)
            for label, score in enumerate(frame):
                if label != blank:
                    before = ends_blank if label == last else either
                    _add(ahead, (*labels, label), -np.inf, before + score)
        best = sorted(ahead.items(), key=lambda item: (-np.logaddexp(*item[1]), item[0]))
        prefixes = dict(best[:beams])
    labels, parts = max(prefixes.items(), key=lambda item: np.logaddexp(*item[1]))
    return np.array(labels, np.int64), float(np.logaddexp(*parts))


def _add(
    prefixes: dict[tuple[int, ...], tuple[float, float]], labels: tuple[int, ...], blanks: float,
    others: float,
) -> None:  # fmt: skip
    """Add log probabilities of paths that spell these labels."""
    before = prefixes.get(labels, (-np.inf, -np.inf))
    prefixes[labels] = (np.logaddexp(before[0], blanks), np.logaddexp(before[1], others))


def _frames(what: str, log_probs: Array, blank: int) -> Array:
    frames = np.asarray(log_probs)
    if frames.ndim != 2 or not frames.shape[1]:
        raise refused(
            what, f"log_probs is {shown(log_probs)}", "scores (T, V) of one sentence, an array",
            f"{what}(log_probs.value), of a node",
        )  # fmt: skip
    blank_of(what, blank, frames.shape[1])
    return frames

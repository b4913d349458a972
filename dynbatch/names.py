"""Errors for unknown arguments of classes: they answer PyTorch's names and near misses."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from functools import cache
from typing import Self, get_args, get_type_hints, is_typeddict

from dynbatch.arguments import refused

# Names of one thing, ours and those of PyTorch, Keras and papers.
ALIKE = (
    ("layers", "num_layers", "n_layers", "nlayers", "depth"),
    ("encoder_layers", "num_encoder_layers"),
    ("decoder_layers", "num_decoder_layers"),
    ("heads", "num_heads", "nhead", "n_head"),
    ("kv_heads", "num_kv_heads", "num_key_value_heads"),
    ("hidden_size", "hidden", "hidden_dim", "hidden_features", "units", "dim_feedforward"),
    ("memory_dim", "kdim", "vdim"),
    ("input_size", "in_features", "features", "input_dim", "in_dim", "normalized_shape", "states"),
    ("out_features", "output_size", "output_dim", "out_dim", "num_classes", "num_tags",
     "num_labels"),
    ("embed", "dim", "embedding_dim", "embed_dim", "emb_dim", "d_model"),
    ("source_vocab", "target_vocab", "num_embeddings", "vocab_size", "num_words"),
    ("p", "dropout", "rate", "drop", "dropout_p", "dropout_rate", "drop_prob"),
    ("sizes", "kernel_sizes", "kernel_size", "filter_sizes"),
    ("filters", "num_filters", "out_channels"),
    ("query_size", "query_dim", "embed_dim"),
    ("key_size", "kdim", "memory_size", "key_dim"),
    ("freeze", "_freeze", "frozen"),
    ("rng", "seed", "generator"),
    ("lr", "learning_rate", "step_size"),
    ("betas", "momentum", "beta", "beta1", "beta2", "beta_1", "beta_2"),
    ("alpha", "rho", "decay_rate"),
    ("eps", "epsilon", "layer_norm_eps"),
    ("weight_decay", "l2", "decay", "wd"),
    ("clip_norm", "clip_grad", "clip_grad_norm", "max_grad_norm", "gradient_clip_val"),
    ("parameters", "params", "model"),
    ("grad", "requires_grad", "train", "training"),
    ("max_new_tokens", "max_tokens", "max_output_tokens", "sample_length"),
    ("num_return_sequences", "num_samples", "num_sequences", "n", "best_of"),
    ("num_beams", "beam_size", "beam_width", "beam"),
    ("stop_strings", "stop"),
    ("eos_token_id", "eos", "eos_id", "eos_token", "end"),
    ("accumulate", "gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps"),
)  # fmt: skip
# Arguments of PyTorch's that have no counterpart, and why they need none.
WITHOUT = {
    "batch_first": "a call takes one sentence, (T, D), and sentences batch by themselves: leave it "
    "out",
    "bias": "this layer always has its biases: leave it out",
    "padding_idx": "leave it out: nothing is padded, so no row stands for padding",
    "sparse": "leave it out: the gradient of a table has only the rows that were read",
    "device": 'leave it out, and move the model: model.to("cuda")',
    "dtype": 'leave it out, and convert the model: model.astype("float64")',
    "inplace": "memory is planned for the whole graph: leave it out",
    "elementwise_affine": "weight and bias are always there: leave it out",
    "pad_id": "nothing is padded: leave it out",
}


@cache
def names_taken(cls: type) -> tuple[str, ...]:
    """The argument names of a class of the library; none for other classes or if it takes any."""
    init = cls.__init__  # type: ignore[misc]
    if not init.__module__.startswith("dynbatch."):
        return ()
    names: list[str] = []
    for parameter in list(inspect.signature(init).parameters.values())[1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
            continue
        options = get_args(get_type_hints(init).get(parameter.name))  # of Unpack[…]
        if not options or not is_typeddict(options[0]):
            return ()
        names += get_type_hints(options[0])
    return tuple(names)


def check_names(cls: type, names: Iterable[str]) -> None:
    """Check that a class of the library takes arguments of these names.

    Raises:
        ArgumentError: the class lacks an argument of that name; the message says what it is called.
    """
    taken = names_taken(cls)
    unknown = [name for name in names if name not in taken]
    if taken and unknown:
        raise refused(
            cls.__name__, f"there is no argument {unknown[0]!r}",
            f"its arguments are {', '.join(taken)}", instead_of(unknown[0], taken),
        )  # fmt: skip


class NamesChecked:
    """Base of classes that answer unknown arguments with the names of their own.

    `__new__` stands here, below their `__init__`, so that this one gives the signature in help().
    """

    __slots__ = ()

    def __new__(cls, *given: object, **named: object) -> Self:
        if named:
            check_names(cls, named)
        return super().__new__(cls)


def instead_of(name: str, known: Iterable[str]) -> str:
    """Advice on what to write instead of a name that a class lacks."""
    known = list(known)
    for alike in ALIKE:
        ours = [each for each in known if each in alike] if name in alike else []
        if ours:
            return f"{' or '.join([f'{each}=' for each in ours])} is its name here"
    if name in WITHOUT:
        return WITHOUT[name]
    near: list[str] = difflib.get_close_matches(name, known, 1, 0.7)
    return f"{near[0]}= may be meant" if near else "leave it out"

"""Compares the tensors of a checkpoint with the parameters of a model, by names and shapes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from dynbatch.arguments import refused, shown
from dynbatch.backend import Array
from dynbatch.errors import CheckpointError
from dynbatch.models.pretrained.family import Family
from dynbatch.models.pretrained.folder import INDEX, damaged, shorten
from dynbatch.models.pretrained.table import Shape, Stored, find, matches, pattern_of
from dynbatch.models.pretrained.tensors import FLOATS, Mapped, Tensor, tensors_of

_MOST_NAMES = 200  # that an error lists: a file made to harm may have millions
_MOST_PATTERNS = 3  # that a fix suggests: with more it is the class that is wrong
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # of norms, in BERT's first files


class Match:
    """The tensor of a file for each parameter.

    Args:
        model: whose parameters are meant; shapes are all that is read of them.
        files: of the weights.
        index: the file of each tensor, if there are several.
        fresh: names of parameters for which no tensor is looked for, and none is read.

    Attributes:
        left_out:    names of tensors that the model does without.
        num_tensors: in the files.
        untied:      names of tensors that differ from the one to which the model ties them, with
                     that one's name.

    Raises:
        CheckpointError: a file is damaged, or the index and the files do not agree.
    """

    def __init__(
        self,
        model: Family,
        files: Sequence[Path],
        index: Mapping[str, str] | None,
        fresh: Set[str] = frozenset(),
    ) -> None:
        self._model, self._kind = model, type(model)
        self._stored: dict[str, Stored] = {}
        self._wanted: dict[str, Shape] = {}
        self._replaced: set[str] = set()
        table = model.table()
        for name, parameter in model.named_parameters():
            stored = find(table, name)
            names = [self._plain(each) for each in stored.names]
            if name in fresh:
                self._replaced.update(names)
            else:
                self._stored[name] = stored
                self._wanted |= zip(names, stored.shapes(parameter.shape), strict=True)
        tied = {self._plain(k): self._plain(v) for k, v in model.tied().items()}
        self._aliases = {k: v for k, v in tied.items() if v not in self._replaced}
        self._replaced |= tied.keys() - self._aliases.keys()
        self._tensors: dict[str, Tensor] = {}
        self._unexpected: list[str] = []
        self.left_out: list[str] = []
        self.num_tensors = 0
        self.untied: dict[str, str] = {}
        self._shapes: list[str] = []
        self._dtypes: list[str] = []
        self._unfit: set[str] = set()
        for file in files:
            self._look_into(file, index)
        self._resolve_ties()

    def parts(self, name: str, array: Array) -> Iterator[tuple[Tensor, Array]]:
        """The tensors of a parameter, each with the part of the parameter's array that it fills."""
        stored = self._stored[name]
        for one, part in zip(stored.names, stored.parts(array), strict=True):
            yield self._tensors[self._plain(one)], part

    def view(self, name: str, files: Mapping[Path, Mapped]) -> Array | None:
        """A parameter's array in a file that has it as bfloat16, in one tensor; else None."""
        stored = self._stored[name]
        tensor = self._tensors[self._plain(stored.names[0])]
        if len(stored.names) > 1 or tensor.dtype != "BF16":
            return None
        return stored.whole(files[tensor.path].raw(tensor))

    def shift(self, name: str) -> float:
        """The difference of a parameter's numbers from those that are stored."""
        return self._stored[name].shift

    def require_all(self, folder: Path) -> None:
        """Raise an error unless the folder has every parameter that is looked for, and no other.

        Raises:
            CheckpointError: it has not; all differences are named.
        """
        missing = [
            one
            for stored in self._stored.values()
            for one in stored.names
            if self._plain(one) not in self._tensors
        ]
        untied = [f"{k!r} differs from {v!r}, to which it is tied" for k, v in self.untied.items()]
        wrong = [*self._shapes, *self._dtypes, *untied]
        lists = {"missing": missing, "unexpected": self._unexpected, "wrong": wrong}
        if any(lists.values()):
            said = [f"\n  {kind}: {_listed(names)}" for kind, names in lists.items() if names]
            fixes = self._fixes(is_other=bool(missing or self._unexpected))
            raise CheckpointError.at_caller(
                f"{folder}: its tensors do not fit this {self._kind.__name__}; nothing was loaded."
                f"{''.join(said)}\n  fix:  {'; '.join(fixes)}"
            )

    def _fixes(self, is_other: bool) -> list[str]:
        """Fixes for each kind of difference.

        Args:
            is_other: whether names differ.
        """
        fixes = ["choose the class that wrote them"] if is_other else []
        if self._shapes and not is_other:
            fixes.append("give the config.json that was written with them")
        if self._dtypes:
            fixes.append("have them saved as float32, float16 or bfloat16")
        if new := self._new():
            fixes.append(f"or new=[{new}], and they begin at random")
        of_model = {
            self._plain(name)
            for entry in self._model.table().values()
            for name in (entry.names if isinstance(entry, Stored) else (entry,))
        }
        if self.untied.keys() & of_model and hasattr(self._model.config, "tie_word_embeddings"):
            fixes.append(
                f"for an output of its own, {self._kind.__name__}.from_pretrained(folder, "
                'tie_word_embeddings=False), or "tie_word_embeddings": false in config.json'
            )
        elif self.untied:
            fixes.append("give tensors that are equal; no class here has both")
        return fixes

    def _new(self) -> str:
        """The patterns of `new=` for parameters whose tensors are missing or of other shapes.

        Empty where that would not do, or so many are concerned that the class is wrong.
        """
        if self._unexpected:
            return ""
        unfit = [
            name
            for name, stored in self._stored.items()
            if not {self._plain(one) for one in stored.names} <= self._tensors.keys() - self._unfit
        ]
        patterns = list(dict.fromkeys(map(pattern_of, unfit)))
        if not 0 < len(patterns) <= _MOST_PATTERNS:
            return ""
        return ", ".join([f'"{pattern}"' for pattern in patterns])

    def _look_into(self, file: Path, index: Mapping[str, str] | None) -> None:
        listed = 0
        for name, tensor in tensors_of(file):
            self.num_tensors += 1
            if index is not None:
                if index.get(name) != file.name:
                    raise damaged(file, f"it has {shorten(name)}, which {INDEX} does not say")
                listed += 1
            plain = self._plain(name)
            if plain in self._tensors:
                raise damaged(file, f"{shorten(name)} is there twice")
            if plain in self._wanted or plain in self._aliases:
                self._take(name, plain, tensor)
            elif plain in self._replaced:
                self.left_out.append(name)
            elif matches(self._kind.skipped, plain) or matches(self._kind.skipped, name):
                self.left_out.append(name)
            # A wrong file may have thousands of other names; an error shows a few.
            elif len(self._unexpected) <= _MOST_NAMES:
                self._unexpected.append(shorten(name))
        if index is not None and listed != sum([1 for one in index.values() if one == file.name]):
            raise damaged(file, f"tensors that {INDEX} lists are not there")

    def _take(self, name: str, plain: str, tensor: Tensor) -> None:
        self._tensors[plain] = tensor
        name_here = self._aliases.get(plain, plain)
        shape = self._wanted[name_here]
        if tensor.shape != shape:
            self._shapes.append(f"{shorten(name)} {tensor.shape}, for {shape}")
            self._unfit.add(name_here)
        elif tensor.dtype not in FLOATS:
            self._dtypes.append(
                f"{shorten(name)} of {tensor.dtype}, for one of {', '.join(FLOATS)}"
            )
            self._unfit.add(name_here)

    def _resolve_ties(self) -> None:
        """Give each tensor its name of the table; one with both names has to be the same."""
        for alias, name in self._aliases.items():
            if alias not in self._tensors:
                continue
            other = self._tensors.pop(alias)
            one = self._tensors.setdefault(name, other)
            if matches(self._kind.spare, alias) and one is not other:
                self.left_out.append(alias)
            elif self._shapes or self._dtypes or one is other:
                continue
            elif not Mapped(one.path).equal(one, Mapped(other.path), other):
                self.untied[alias] = name

    def _plain(self, name: str) -> str:
        """A tensor's name without the optional prefix, an old name replaced."""
        above, dot, last = name.removeprefix(self._kind.prefix).rpartition(".")
        return f"{above}{dot}{_OLD_NAMES.get(last, last)}"


def fresh_names(model: Family, new: Sequence[str]) -> set[str]:
    """The names of the parameters that the patterns of `new` stand for.

    Raises:
        ArgumentError: `new` is not a list of text, or a pattern in it stands for no parameter.
    """
    kind = type(model).__name__
    if isinstance(new, str) or not all([isinstance(pattern, str) for pattern in new]):
        fix = f"give new=[{new!r}]" if isinstance(new, str) else 'as in new=["classifier.{}"]'
        raise refused(kind, f"new is {shown(new)}", "a list of names of parameters", fix)
    names = [name for name, _ in model.named_parameters()]
    for pattern in new:
        if not any([matches((pattern,), name) for name in names]):
            near = difflib.get_close_matches(pattern, dict.fromkeys(map(pattern_of, names)), 1, 0.5)
            raise refused(
                kind, f"new has {pattern!r}, which stands for no parameter",
                'names as in model.named_parameters(), "{}" for weight or bias, "*" for a number',
                f'give new=["{near[0]}"]' if near else "print(model) shows the parameters",
            )  # fmt: skip
    return {name for name in names if matches(tuple(new), name)}


def _listed(names: Sequence[str]) -> str:
    more = ", and more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more

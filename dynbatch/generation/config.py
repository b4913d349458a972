"""`GenerationConfig`: how tokens are chosen, and when a sentence ends."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dynbatch.arguments import listed, number, refused, size, switch
from dynbatch.names import NamesChecked

FILE = "generation_config.json"

# Fields of generation_config.json that say how another library works, and nothing about the tokens.
_WITHOUT_EFFECT = frozenset(
    ("_from_model_config", "transformers_version", "use_cache", "return_dict_in_generate",
     "output_attentions", "output_hidden_states", "output_scores", "output_logits", "pad_token_id",
     "cache_implementation", "cache_config", "max_cache_len", "low_memory", "compile_config",
     "disable_compile", "continuous_batching_config", "prefill_chunk_size", "renormalize_logits",
     "remove_invalid_values", "speculation_type", "use_mtp", "is_assistant",
     "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
     "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind",
     "target_lookbehind", "max_matching_ngram_size")
)  # fmt: skip
# Fields that would choose other tokens, with the value at which they do not.
_WITHOUT_VERSION_HERE: dict[str, Any] = {
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None,
    "diversity_penalty": 0.0, "num_beam_groups": 1, "penalty_alpha": None,
    "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0,
    "guidance_scale": None, "sequence_bias": None, "exponential_decay_length_penalty": None,
    "constraints": None, "force_words_ids": None, "watermarking_config": None,
    "dola_layers": None, "prompt_lookup_num_tokens": None, "max_time": None,
    "token_healing": False,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(NamesChecked):
    """The choice of tokens and the end of sentences; fields are named as in `transformers`.

    With l the logits of a next token, in this order, as there:

        repetition_penalty r:    l ← l / r if l > 0, else l r, of tokens of prompt and result
        presence, frequency p:   l ← l - p, l ← l - p · count, of tokens of the result
        n-grams, words, tokens that may not come: l ← -∞
        and when sampling, with p = softmax(l):
        temperature t:           l ← l / t
        top_k:                   l ← -∞ below the k-th largest
        top_p:                   l ← -∞ of the least probable ones that sum up to 1 - top_p or less
        min_p:                   l ← -∞ where p < min_p · max p

    Args:
        max_new_tokens:  most tokens of a result, its end mark included.
        max_length:      most tokens of prompt and result together (of an encoder-decoder: of the
                         target with its first token); None for as many as the model has positions.
        min_new_tokens:  before that many no end mark is chosen.
        min_length:      before prompt and result together have that many, neither.
        stop_strings:    texts that end a result, wherever tokens divide them.
        do_sample:       draw from p, instead of taking the most probable token.
        temperature, top_k, top_p, min_p: above; 1, 0, 1 and 0 change nothing.
        repetition_penalty, presence_penalty, frequency_penalty: above; 1, 0 and 0 change nothing.
        no_repeat_ngram_size: no n tokens come a second time; 0 allows them.
        allowed_tokens:  ids of which every token is one, the end mark too; None allows all.
        suppress_tokens: ids that never come; `begin_suppress_tokens` not as the first.
        bad_words_ids:   sequences of ids that never come; an end mark alone is left out.
        forced_bos_token_id: the first token of a result; `forced_eos_token_id` that at its greatest
                         length.
        num_beams:       sentences that are followed side by side; 1 searches without beams.
        length_penalty:  α in a beam's score, log-probability / length^α.
        early_stopping:  when beams are done: True as soon as there are `num_beams` results; False
                         when none can become better at the length it has; "never" at any length.
        num_return_sequences: results of a prompt: the best of its beams, or so many samples.
        eos_token_id:    ids that end a sentence, or one id; () for none. None for the `end` of an
                         encoder-decoder that has one, and for none of other models.
        bos_token_id:    begins texts; `dynbatch generate` gives it for an empty prompt.
        decoder_start_token_id: the first id that a decoder reads; None for the model's `start`.
        seed:            of sampling; None for one from `db.seed`'s stream.

    Raises:
        ArgumentError: a value is out of its range, or two contradict each other.

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1 (repetition); Holtzman et al. 2020,
        arXiv:1904.09751, section 3.1 (top-p); Nguyen et al. 2024, arXiv:2407.01082 (min-p).
    """

    max_new_tokens: int = 100
    max_length: int | None = None
    min_new_tokens: int = 0
    min_length: int = 0
    stop_strings: tuple[str, ...] = ()
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    allowed_tokens: tuple[int, ...] | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_return_sequences: int = 1
    eos_token_id: tuple[int, ...] | None = None
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is None and field.default is not None:
                raise refused(
                    "GenerationConfig", f"{field.name} is None", "this field is never None",
                    f"leave it out, for {field.default!r}",
                )  # fmt: skip
        for name, least in _COUNTS.items():
            if getattr(self, name) is not None:
                self._set(name, size(self, name, getattr(self, name), least))
        if isinstance(self.temperature, (int, float)) and self.temperature == 0:
            raise refused(
                "GenerationConfig", "temperature is 0", "a number, temperature > 0",
                "take the most probable token: do_sample=False, or --greedy of the command",
            )  # fmt: skip
        for name, within in _RANGES.items():
            self._set(name, number(self, name, getattr(self, name), within))
        for name in _IDS:
            if getattr(self, name) is not None:
                self._set(name, _ids(self, name, getattr(self, name)))
        fix = "give bad_words_ids=((17,), (4, 98)), a list of ids for each word"
        words = [
            _ids(self, "bad_words_ids", word)
            for word in listed(self, "bad_words_ids", self.bad_words_ids, fix)
        ]
        if () in words:
            raise refused(
                "GenerationConfig", f"word {words.index(())} of bad_words_ids is empty",
                "a word has one id or more", fix,
            )  # fmt: skip
        self._set("bad_words_ids", tuple(words))
        if isinstance(self.stop_strings, str):
            self._set("stop_strings", (self.stop_strings,))
        texts = listed(self, "stop_strings", self.stop_strings, 'give stop_strings=("\\n\\n",)')
        self._set("stop_strings", tuple(texts))
        switch(self, "do_sample", self.do_sample)
        self._check()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        for one in self.stop_strings:
            if not isinstance(one, str) or not one:
                raise refused(
                    "GenerationConfig", f"stop_strings has {one!r}", "texts that are not empty",
                    'give stop_strings=("\\n\\n",)',
                )  # fmt: skip
        if self.early_stopping not in (True, False, "never"):
            raise refused(
                "GenerationConfig", f"early_stopping is {self.early_stopping!r}",
                'True, False or "never"', "leave it out for False",
            )  # fmt: skip
        if self.num_beams > 1 and self.do_sample:
            raise refused(
                "GenerationConfig", f"do_sample with num_beams={self.num_beams}",
                "beams follow the most probable sentences; samples are drawn",
                "choose one: num_beams=1, or do_sample=False",
            )  # fmt: skip
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise refused(
                "GenerationConfig",
                f"{self.num_return_sequences} results of {self.num_beams} beams",
                "num_return_sequences <= num_beams, unless they are drawn",
                "raise num_beams, or sample with do_sample=True",
            )  # fmt: skip

    def changed(self, **changes: Any) -> GenerationConfig:
        """A copy with other values of some fields.

        Raises:
            ArgumentError: a value is out of its range, or is for sampling, and nothing is drawn.
        """
        config = replace(self, **changes)
        idle = [name for name in SAMPLING if name in changes and not config.do_sample]
        if idle:
            raise refused(
                "GenerationConfig", f"{idle[0]}={changes[idle[0]]!r} without do_sample=True",
                "tokens are drawn where do_sample is True; else the most probable one is taken",
                f"add do_sample=True, or leave {idle[0]} out",
            )  # fmt: skip
        return config

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a sentence; a model's own are among them once they are known."""
        return self.eos_token_id or ()

    def limit(self, context: int, positions: int | None = None) -> int:
        """The most tokens of a result.

        Args:
            context:   tokens that stand before it, which `max_length` counts.
            positions: the most tokens that the model reads; None for any number.
        """
        bounds = [self.max_new_tokens]
        bounds += [most - context for most in (self.max_length, positions) if most is not None]
        return min(bounds)

    def least(self, context: int) -> int:
        """The fewest tokens of a result before its end mark."""
        return max(self.min_new_tokens, self.min_length - context)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], **changes: Any) -> GenerationConfig:
        """The configuration of a generation_config.json's content.

        A field that nobody here knows is left out with a warning.

        Args:
            changes: fields that override what is given.

        Raises:
            ArgumentError: it asks for a way of choosing that is not here.
        """
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if value is None or name in _WITHOUT_EFFECT:
                continue
            if name in known:
                values[name] = _tuple(value)
            elif name not in _WITHOUT_VERSION_HERE:
                message = f"{FILE}: {name} = {value!r:.60} is not known here, and has no effect"
                warnings.warn(message, stacklevel=2)
            elif value != _WITHOUT_VERSION_HERE[name]:
                raise refused(
                    "GenerationConfig", f"{name} = {value!r:.60}",
                    f"fields of GenerationConfig: {', '.join(sorted(known))}",
                    f"remove {name} from {FILE}, or choose otherwise",
                )  # fmt: skip
        values.update(changes)
        most = values.get("max_length")  # there it counts where max_new_tokens is not given
        if most is not None:
            if "max_new_tokens" in values and "max_length" not in changes:
                del values["max_length"]
            values.setdefault("max_new_tokens", most)
        return cls(**values)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **changes: Any) -> GenerationConfig:
        """Read a checkpoint folder's generation_config.json.

        Where there is none, the fields of config.json that say how to generate count, as older
        folders have them; without either file the defaults.

        Raises:
            CheckpointError: the file is not a JSON object.
            ArgumentError:   as `from_dict`.
        """
        from dynbatch.models.pretrained.folder import CONFIG, read_json  # loads trainers too

        path = Path(folder) / FILE
        if path.exists():
            return cls.from_dict(read_json(path), **changes)
        path = Path(folder) / CONFIG
        return cls.of_model(read_json(path) if path.exists() else {}, **changes)

    @classmethod
    def of_model(cls, given: Mapping[str, Any], **changes: Any) -> GenerationConfig:
        """The fields of a config.json that say how to generate, as older models have them there.

        Raises:
            ArgumentError: as `from_dict`.
        """
        names = {field.name for field in fields(cls)} | _WITHOUT_VERSION_HERE.keys()
        of_both = {name: value for name, value in given.items() if name in names}
        return cls.from_dict(of_both, **changes)


_COUNTS = {
    "max_new_tokens": 1, "max_length": 1, "min_new_tokens": 0, "min_length": 0, "top_k": 0,
    "no_repeat_ngram_size": 0, "num_beams": 1, "num_return_sequences": 1, "seed": 0,
    "forced_bos_token_id": 0, "bos_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
"""Fields that say how tokens are drawn."""

_RANGES = {
    "temperature": "[1e-30, inf)", "top_p": "(0, 1]", "min_p": "[0, 1]",
    "repetition_penalty": "(0, inf)", "presence_penalty": "(-inf, inf)",
    "frequency_penalty": "(-inf, inf)", "length_penalty": "(-inf, inf)",
}  # fmt: skip
_IDS = (
    "allowed_tokens", "suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id",
    "eos_token_id",
)  # fmt: skip


def _ids(owner: object, name: str, value: object) -> tuple[int, ...]:
    """Ids as a tuple; one id counts as a list of it."""
    listed = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple([size(owner, f"an id of {name}", one, 0) for one in listed])


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value

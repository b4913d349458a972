"""Reads the files of BERT's tokenizer: tokenizer.json, or vocab.txt with tokenizer_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynbatch.errors import CheckpointError
from dynbatch.models.pretrained.folder import damaged, fault, file_of, read_json, shorten

TOKENIZER, VOCABULARY, CONFIG = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
_MOST_BYTES = 1 << 26
_KINDS = {
    "model": "WordPiece",
    "normalizer": "BertNormalizer",
    "pre_tokenizer": "BertPreTokenizer",
}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """The arguments of `WordPiece` in a folder's files.

    Raises:
        CheckpointError: there are none, or they are damaged, or not a BERT's.
    """
    if (folder / TOKENIZER).exists():
        path, read = file_of(folder, TOKENIZER), _from_json
    elif (folder / VOCABULARY).exists():
        path, read = file_of(folder, VOCABULARY), _from_vocabulary
    else:
        raise fault(folder, f"neither {TOKENIZER} nor {VOCABULARY} is there", "check the folder")
    try:
        return read(path)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise damaged(path, f"not a tokenizer's ({shorten(str(error))})") from error


def _from_json(path: Path) -> dict[str, Any]:
    content = read_json(path, _MOST_BYTES)
    for part, kind in _KINDS.items():
        if content[part]["type"] != kind:
            raise _other(path, f"its {part} is a {shorten(content[part]['type'])}, not a {kind}")
    model, normalizer = content["model"], content["normalizer"]
    if model["continuing_subword_prefix"] != "##" or not normalizer["clean_text"]:
        raise _other(path, "its pieces or their cleaning are not BERT's")
    ids = _ids(model["vocab"])
    for token in content["added_tokens"]:
        if any([token[flag] for flag in _FLAGS]):
            raise _other(path, f"{shorten(token['content'])} is found by rules of its own")
        ids[token["content"]] = token["id"]
    longest, unknown = model["max_input_chars_per_word"], model["unk_token"]
    if type(longest) is not int or not isinstance(unknown, str):
        raise ValueError("max_input_chars_per_word or unk_token is of another type")
    around = _template(path, content["post_processor"])
    return {
        "pieces": _ids(ids),
        "lowercase": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "chinese": normalizer["handle_chinese_chars"],
        "special": [token["content"] for token in content["added_tokens"]],
        "unknown": unknown,
        "longest": longest,
        "start": around[0],
        "end": around[1],
    }


def _ids(vocabulary: dict[str, int]) -> dict[str, int]:
    """The vocabulary, if each piece has an id of its own, from 0 on."""
    numbers = set(vocabulary.values())
    if len(numbers) < len(vocabulary) or not all(
        [type(one) is int and 0 <= one < 1 << 31 for one in numbers]
    ):
        raise ValueError("pieces without an id of their own")
    return dict(vocabulary)


def _template(path: Path, processor: Any) -> tuple[list[str], list[str]]:
    """The pieces that stand before and after each text."""
    if processor is None:
        return [], []
    if processor["type"] == "BertProcessing":
        return [processor["cls"][0]], [processor["sep"][0]]
    if processor["type"] != "TemplateProcessing":
        raise _other(path, f"its post_processor is a {shorten(processor['type'])}")
    names = [inner["id"] for part in processor["single"] for (inner,) in [part.values()]]
    (position,) = [k for k, part in enumerate(processor["single"]) if "Sequence" in part]
    return names[:position], names[position + 1 :]


def _from_vocabulary(path: Path) -> dict[str, Any]:
    """Pieces stand one a line; some are characters at which Python would end lines."""
    pieces = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    config: dict[str, Any] = {}
    if (path.parent / CONFIG).exists():
        config = read_json(file_of(path.parent, CONFIG), _MOST_BYTES)
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    for role in roles:
        token = config.get(f"{role}_token", roles[role])
        roles[role] = token["content"] if isinstance(token, dict) else token
    return {
        "pieces": {piece.removesuffix("\r"): number for number, piece in enumerate(pieces)},
        "lowercase": config.get("do_lower_case", True),
        "strip_accents": config.get("strip_accents"),
        "chinese": config.get("tokenize_chinese_chars", True),
        "special": list(roles.values()),
        "unknown": roles["unk"],
        "start": [roles["cls"]],
        "end": [roles["sep"]],
    }


def _other(path: Path, problem: str) -> CheckpointError:
    return fault(
        path, problem, "HuggingFaceTokenizer.from_pretrained(folder) of dynbatch.text reads it"
    )

"""Generate targets with a trained model: from arguments, a file, or standard input.

python -m examples.seq2seq.generate runs/demo/model.safetensors padding dynamic --beam 5
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import dynbatch as db
from dynbatch import backend
from dynbatch.errors import DataError
from examples.arguments import exit_status, positive
from examples.seq2seq.corpus import Tokens, decode_line
from examples.seq2seq.translator import Translator


def main(argv: Sequence[str] | None = None) -> int:
    """Print `source<TAB>target` for each source. The exit status is that of `exit_status`."""
    arguments = _parser().parse_intermixed_args(argv)
    if arguments.n_best > arguments.beam:
        _parser().error(f"--n-best {arguments.n_best} needs --beam {arguments.n_best} or more")
    if arguments.threads is not None:
        db.set_num_threads(arguments.threads)

    def answer() -> None:
        device = backend.device(arguments.device)
        translator = Translator.load(arguments.checkpoint)
        translator.model.to(device)
        for line in _lines(translator, arguments):
            print(line, flush=True)

    return exit_status(answer)


def _lines(translator: Translator, arguments: argparse.Namespace) -> Iterator[str]:
    """What to print. Sources are read and searched by the batch, so that a pipe sees answers."""
    sources = iter(_sources(arguments))
    while batch := list(islice(sources, arguments.batch_size)):
        tokens = [translator.tokenize(source) for source in batch]
        for source, each in zip(batch, tokens, strict=True):
            _warn_of_unknown(translator, source, each)
        found = translator.translate(
            tokens,
            beam_size=arguments.beam,
            length_penalty=arguments.length_penalty,
            n_best=arguments.n_best,
            batch_size=arguments.batch_size,
        )
        for source, translations in zip(batch, found, strict=True):
            for one in translations:
                score = f"\t{one.score:.4f}" if arguments.n_best > 1 else ""
                yield f"{source}\t{translator.target_text(one.tokens)}{score}"


MOST_NAMED = 10
"""Unknown tokens of a source that its warning names."""


def _warn_of_unknown(translator: Translator, source: str, tokens: Tokens) -> None:
    """One line on standard error for a source with tokens that the model never saw."""
    unknown = translator.source.unknown_in(tokens)
    if unknown:
        named = ", ".join([f"{token!r} ({position})" for position, token in unknown[:MOST_NAMED]])
        more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        kind = "character" if translator.source_units == "characters" else "word"
        shown = source if len(source) <= 40 else f"{source[:40]}…"
        print(
            f"warning: {shown!r}: unknown to the model, by {kind}: {named}{more}", file=sys.stderr
        )


def _sources(arguments: argparse.Namespace) -> Iterable[str]:
    if arguments.sources:
        return list(arguments.sources)
    if arguments.file is None:
        return _stripped("standard input", sys.stdin.buffer)
    try:
        content = Path(arguments.file).read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{arguments.file}: cannot be read: {error.strerror}.") from error
    return _stripped(arguments.file, content)


def _stripped(name: str, lines: Iterable[bytes]) -> Iterator[str]:
    """Lines of text that are not blank."""
    for number, line in enumerate(lines, start=1):
        text = decode_line(f"{name}:{number}", line).strip()
        if text:
            yield text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.seq2seq.generate",
        description="Generate with a model that examples/seq2seq/train.py trained.",
    )
    parser.add_argument("checkpoint", help="runs/NAME/model.safetensors")
    parser.add_argument("sources", nargs="*", help="each a source; else --file, else stdin")
    parser.add_argument("--file", metavar="PATH", help="one source on each line")
    parser.add_argument("--beam", type=positive, default=1, metavar="K", help="default: greedy")
    parser.add_argument("--n-best", type=positive, default=1, metavar="N", help="with scores")
    parser.add_argument("--length-penalty", type=float, default=0.0, metavar="A", help="default: 0")
    parser.add_argument("--batch-size", type=positive, default=256, metavar="N", help="at a time")
    parser.add_argument("--threads", type=positive, help="default: all processors")
    parser.add_argument("--device", choices=backend.NAMES, default="cpu", help="default: cpu")
    return parser


if __name__ == "__main__":
    sys.exit(main())

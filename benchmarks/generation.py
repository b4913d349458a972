"""The speed of generation: `python -m benchmarks.generation [one many seq2seq price]`.

one      GPT-2 writes on one prompt, beside a matrix-vector product with each of its weights, which
         reads as much memory as a token does; and with weights packed in bfloat16.
many     GPT-2 writes on many prompts, results of forced lengths, beside `generate` of transformers
         with its cache, which pads prompts and runs all to the longest result; on a GPU once more
         with a step as one CUDA graph, which is off by default (`replays.MOST_ROWS`).
seq2seq  An LSTM with attention writes greedily for sentences of realistic lengths.
price    Steps of GPT-2 with products whose bits depend on the rows alone, beside steps in which
         large products go to NumPy's BLAS.

What is beside each other takes turns. Values are random; each side has the same.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork, kernel_lines
from benchmarks.lengths import Corpus
from benchmarks.report import show
from dynbatch import models
from dynbatch.backend import NAMES
from dynbatch.kernels.backends import rounding
from dynbatch.kernels.cuda.runtime import replays
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime import parallel
from dynbatch.models.pretrained import GPT2, GPT2Config

GOALS = {"one": 0.8, "bfloat16": 1.7, "many": 3.0, "price": 1.05}
"""At least, but for the price: at most."""

SIZES = {"n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
"""GPT-2 with 124 million parameters."""

PROMPTS = 16
WARM_STEPS = 4
"""Of a prompt, until what comes again is written down."""

REPLAYED_ROWS = 64
"""`replays.MOST_ROWS` where steps are replayed."""


class Clock:
    """Seconds of what took turns, by name: on the wall, and of all this process's threads."""

    def __init__(self) -> None:
        self._wall: dict[str, list[float]] = {}
        self._busy: dict[str, list[float]] = {}

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of the work."""
        wall, busy = time.perf_counter(), time.process_time()
        found = work()
        self._busy.setdefault(name, []).append(time.process_time() - busy)
        self._wall.setdefault(name, []).append(time.perf_counter() - wall)
        return found

    def __getitem__(self, name: str) -> float:
        return statistics.median(self._wall[name])

    def ratio(self, upper: str, lower: str) -> dict[str, float]:
        """The time of the first, as a multiple of the second's."""
        sides = (("ratio", self._wall), ("processor_ratio", self._busy))
        return {
            key: round(statistics.median(times[upper]) / statistics.median(times[lower]), 4)
            for key, times in sides
        }


def one(model: GPT2, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of one prompt, and the share of the rate at which memory is read."""
    rng, clock = np.random.default_rng(options.seed), Clock()
    positions = model.positions
    weights = [
        p.value for p in model.parameters() if p.value.ndim == 2 and len(p.value) != positions
    ]
    vectors = [np.ones(weight.shape[1], weight.dtype) for weight in weights]
    products = parallel.one_blas_thread if options.threads == 1 else nullcontext
    turns, a_turn = options.rounds + 1, options.tokens

    def multiply() -> None:
        with products():
            for _ in range(a_turn):
                for weight, x in zip(weights, vectors, strict=True):
                    np.matmul(weight, x)

    config = db.GenerationConfig(max_new_tokens=turns * a_turn + WARM_STEPS)
    engines = {name: db.Engine(model, config, matmul=name) for name in ("float32", "bfloat16")}
    prompt = rng.integers(0, model.config.vocab_size, options.prompt)
    for engine in engines.values():
        engine.add(prompt)
        step_all([engine.step] * WARM_STEPS)
    for turn in range(turns):  # the first is not counted
        kept = clock if turn else Clock()
        for name, engine in engines.items():
            kept.run(name, lambda e=engine: step_all([e.step] * a_turn))
        kept.run("read", multiply)
    num_bytes = sum([weight.nbytes for weight in weights])
    return {
        "tokens_per_second": round(a_turn / clock["float32"], 2),
        "gigabytes_per_second": round(a_turn * num_bytes / clock["read"] / 1e9, 2),
        **clock.ratio("read", "float32"),
        "bfloat16": {
            "tokens_per_second": round(a_turn / clock["bfloat16"], 2),
            "how": rounding("bfloat16"),
            **clock.ratio("float32", "bfloat16"),
        },
    }


def many(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of many prompts against transformers, whose rows run to the longest."""
    try:
        from benchmarks.peers.transformers_gpt2 import TransformersGPT2
    except ImportError as error:
        return {"skipped": f"{error}: pip install 'transformers>=5' torch"}
    rng, clock = np.random.default_rng(options.seed), Clock()
    peer = TransformersGPT2(options.sizes, options.threads, options.seed, options.device)
    with tempfile.TemporaryDirectory() as folder:
        peer.save(Path(folder))
        model = GPT2.from_pretrained(folder).eval().to(options.device)
    prompts = [
        rng.integers(0, model.config.vocab_size, n)
        for n in rng.integers(options.prompt // 2, 2 * options.prompt, PROMPTS)
    ]
    lengths = np.linspace(options.shortest, options.longest, PROMPTS).round().astype(int).tolist()
    rng.shuffle(lengths)

    def ours() -> list[list[int]]:
        engine = db.Engine(model)
        pairs = zip(prompts, lengths, strict=True)
        numbers = [engine.add(p, min_new_tokens=n, max_new_tokens=n) for p, n in pairs]
        exhaust(engine.run())
        return [list(engine.results(number)[0].tokens) for number in numbers]

    found = theirs = [[0]]
    replayed: dict[str, Any] = {}
    for _ in range(options.rounds):
        theirs = clock.run("transformers", lambda: peer.generate(prompts, lengths))
        found = clock.run("dynbatch", ours)
        if options.device == "cuda":
            with mock.patch.object(replays, "MOST_ROWS", REPLAYED_ROWS):
                tokens = clock.run("replayed", ours)
            replayed = {
                "tokens_per_second": round(sum(lengths) / clock["replayed"], 2),
                "same_results": sum([a == b for a, b in zip(tokens, found, strict=True)]),
                "steps": str(queue().replays),
                **clock.ratio("dynbatch", "replayed"),
            }
    same = sum([a == b for a, b in zip(found, theirs, strict=True)])
    return {
        "peer": peer.versions,
        "tokens_per_second": round(sum(lengths) / clock["dynbatch"], 2),
        "peer_tokens_per_second": round(sum(lengths) / clock["transformers"], 2),
        "same_results": same,
        "results": PROMPTS,
        **clock.ratio("transformers", "dynbatch"),
        "replayed": replayed,
    }


def seq2seq(options: argparse.Namespace) -> dict[str, Any]:
    """Sentences a second of an LSTM with attention, `options.beside` of them side by side."""
    words, clock = options.words, Clock()
    model = models.Seq2Seq(words, words, options.hidden, options.hidden, rng=options.seed).eval()
    model.to(options.device)
    corpus = Corpus(words, words, is_aligned=False)
    rng = np.random.default_rng(options.seed)
    (batch,) = corpus.random_batches(rng, 1, options.sentences)

    lengths = [options.length or len(target) for target in batch.targets]

    def write() -> None:
        engine = db.Engine(model)
        waiting = [*zip(batch.sources, lengths, strict=True)][::-1]

        def join() -> None:
            source, length = waiting.pop()
            engine.add(source, min_new_tokens=length, max_new_tokens=length)

        for _ in range(min(options.beside, len(waiting))):
            join()
        for event in engine.run():
            if event.reason:
                engine.results(event.request)
                if waiting:
                    join()

    for _ in range(options.rounds):
        clock.run("sentences", write)
    tokens = sum(lengths)
    return {
        "sentences_per_second": round(options.sentences / clock["sentences"], 2),
        "us_per_token": round(1e6 * clock["sentences"] / tokens, 2),
        "tokens": tokens,
    }


def price(model: GPT2, options: argparse.Namespace) -> dict[str, Any]:
    """The costs of steps whose bits are the rows' own, of prompts and of single tokens."""
    rng, clock = np.random.default_rng(options.seed), Clock()
    prompts = [rng.integers(0, model.config.vocab_size, 4 * options.prompt) for _ in range(PROMPTS)]
    try:
        for turn in range(options.rounds + 1):  # the first is not counted
            kept = clock if turn else Clock()
            for wanted, name in ((True, "fixed"), (False, "free")):
                db.set_batch_invariant(wanted)
                engine = db.Engine(model, db.GenerationConfig(max_new_tokens=options.tokens + 2))
                for prompt in prompts:
                    engine.add(prompt)
                kept.run(f"prompts, {name}", engine.step)
                engine.step()
                kept.run(f"tokens, {name}", lambda e=engine: step_all([e.step] * options.tokens))
                exhaust(engine.run())
    finally:
        db.set_batch_invariant(True)
    return {kind: clock.ratio(f"{kind}, fixed", f"{kind}, free") for kind in ("prompts", "tokens")}


def step_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take the steps."""
    for step in steps:
        step()


def exhaust(events: Iterable[object]) -> None:
    """Wait for all events."""
    for _ in events:
        pass


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All that is wanted."""
    db.set_num_threads(options.threads)
    others, found = OtherWork(), dict[str, Any]()
    if {"one", "price"} & set(options.parts):
        model = GPT2(GPT2Config(**options.sizes)).eval()
        if "one" in options.parts:
            found["one"] = one(model, options)
        if "price" in options.parts:
            found["price"] = price(model, options)
    for name, part in (("many", many), ("seq2seq", seq2seq)):
        if name in options.parts:
            found[name] = part(options)
    return {
        "threads": options.threads,
        "rounds": options.rounds,
        **found,
        "kernels": kernel_lines(options.device),
        "warning": others.warning(),
    }


def as_text(found: dict[str, Any]) -> str:
    """A line or two for each part."""
    lines = [f"{found['threads']} threads, medians of {found['rounds']} rounds"]
    if "one" in found:
        part = found["one"]
        lines.append(
            f"one      {part['tokens_per_second']:.1f} tokens/s; a product reads "
            f"{part['gigabytes_per_second']:.1f} GB/s, of which a token has {part['ratio']:.2f} "
            f"(by processor time {part['processor_ratio']:.2f}); {GOALS['one']} is wanted"
        )
        part = part["bfloat16"]
        lines.append(
            f"         {part['tokens_per_second']:.1f} tokens/s with {part['how']}: "
            f"{part['ratio']:.2f} times (by processor time {part['processor_ratio']:.2f}); "
            f"{GOALS['bfloat16']} is wanted"
        )
    if "skipped" in found.get("many", ()):
        lines.append(f"many     not run: {found['many']['skipped']}")
    elif "many" in found:
        part = found["many"]
        lines.append(
            f"many     {part['tokens_per_second']:.1f} tokens/s, {part['peer']} "
            f"{part['peer_tokens_per_second']:.1f}: {part['ratio']:.2f} times (by processor time "
            f"{part['processor_ratio']:.2f}); {GOALS['many']} is wanted; {part['same_results']} of "
            f"{part['results']} results are the same"
        )
        if part["replayed"]:
            graph = part["replayed"]
            lines.append(
                f"         as CUDA graphs {graph['tokens_per_second']:.1f} tokens/s: "
                f"{graph['ratio']:.2f} times launch by launch (by processor time "
                f"{graph['processor_ratio']:.2f}); {graph['same_results']} of {part['results']} "
                f"results are the same; {graph['steps']}"
            )
    if "seq2seq" in found:
        part = found["seq2seq"]
        lines.append(
            f"seq2seq  {part['sentences_per_second']:.1f} sentences/s, {part['us_per_token']:.1f} "
            f"µs a token, {part['tokens']} tokens"
        )
    for kind, part in found.get("price", {}).items():
        lines.append(
            f"price    of {kind} {part['ratio']:.3f} (by processor time "
            f"{part['processor_ratio']:.3f}); at most {GOALS['price']} is wanted"
        )
    return "\n".join([*lines, *found["kernels"], found["warning"]])


PARTS = ("one", "many", "seq2seq", "price")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without any")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=NAMES, default="cpu", help="of many and seq2seq")
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    parser.add_argument("--tokens", type=int, default=16, help="of a turn of one and of price")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt, about")
    parser.add_argument("--shortest", type=int, default=10, help="result of many")
    parser.add_argument("--longest", type=int, default=200, help="result of many")
    parser.add_argument("--sentences", type=int, default=1000, help="of seq2seq")
    parser.add_argument("--beside", type=int, default=1000, help="of them at the same time")
    parser.add_argument("--length", type=int, help="of all results of seq2seq; else realistic ones")
    parser.add_argument("--hidden", type=int, default=256, help="width of seq2seq")
    parser.add_argument(
        "--words", type=int, default=100, help="of seq2seq, as letters and sounds are"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.set_defaults(sizes=SIZES)
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.parts = options.parts or list(PARTS)
    return options


if __name__ == "__main__":
    chosen = parse()
    result = run(chosen)
    show(as_text(result), result, chosen.json)

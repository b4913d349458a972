"""Damaged and hostile checkpoint folders, by a seed, through `from_pretrained`.

    python -m tests.models.pretrained.hostile --count 5000

Four folders of a small model (whole or sharded, float32, float16, bfloat16, tied) are damaged:
their bytes, the header of a file, config.json, the index, and the files themselves. Each then loads
the values that its files hold, as read here with `json` and slices alone, or is refused by a
`CheckpointError` that names the file. It may take neither long nor more memory than twice the
files' size, and a little for the names.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np

from dynbatch.errors import CheckpointError
from tests.models.pretrained.tiny import Tiny, read, tiny
from tests.train import fuzz_checkpoints as fuzz
from tests.train.fuzz_checkpoints import DEEP, LONG, VALUES, edit, parted, text_of

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SLACK = 100_000
"""Bytes for names, errors and the like, whatever the size of the files."""

# Folders ------------------------------------------------------------------------------------------


def make_folders(root):
    """Folders that load, each with the bytes of its files."""
    options = [
        ({}, {}),
        ({"layers": 3}, {"dtype": "bfloat16", "max_shard_size": 900}),
        ({"tie_word_embeddings": False, "dim": 6}, {"dtype": "float16"}),
        ({"vocab_size": 900, "dim": 8}, {"max_shard_size": 20_000}),
    ]
    folders = []
    for k, (changes, how) in enumerate(options):
        tiny(**changes).save_pretrained(root / str(k), **how)
        folders.append({path.name: path.read_bytes() for path in (root / str(k)).iterdir()})
    return folders


def weights_of(files):
    """Names of the safetensors files."""
    return sorted([name for name in files if name.endswith(".safetensors")])


# Values as the files hold them --------------------------------------------------------------------

DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}


def values_of(folder):
    """The values of each parameter, by their names in the model; no check is made."""
    found = {}
    index = folder / INDEX
    names = [WEIGHTS]
    if not (folder / WEIGHTS).exists():
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    for name in names:
        header, body = read(folder / name)
        header.pop("__metadata__", None)
        for key, entry in header.items():
            if entry["dtype"] in DTYPES:
                raw = body[slice(*entry["data_offsets"])]
                array = np.frombuffer(raw, DTYPES[entry["dtype"]]).reshape(entry["shape"])
                if entry["dtype"] == "BF16":
                    array = (array.astype("<u4") << 16).view("<f4")
                found[key.removeprefix("tiny.")] = array.astype(np.float32)
    config = json.loads((folder / CONFIG).read_bytes())
    values = {"embed.weight": found.get("wte.weight", found.get("lm_head.weight"))}
    for k in range(config.get("layers", 2)):
        for kind in ("weight", "bias"):
            parts = [found[f"h.{k}.attn.{each}.{kind}"] for each in "qkv"]
            values[f"layers.{k}.in_proj_{kind}"] = np.concatenate(parts)
            values[f"layers.{k}.linear.{kind}"] = found[f"h.{k}.c_fc.{kind}"].T
            old = f"h.{k}.LayerNorm.{ {'weight': 'gamma', 'bias': 'beta'}[kind] }"
            norm = found.get(f"h.{k}.LayerNorm.{kind}", found.get(old))
            values[f"layers.{k}.norm.{kind}"] = norm
    values["final_bias"] = found["final_logits_bias"][0]
    if not config.get("tie_word_embeddings", True):
        values["head.weight"] = found["lm_head.weight"]
    return values


# Damage of the bytes of one file ------------------------------------------------------------------


def of_a_file(change, kinds=("json", "safetensors")):
    """Damage of one file of these endings."""

    def damage(rng, files, folder):
        name = rng.choice(sorted([one for one in files if one.endswith(kinds)]))
        files[name] = change(rng, files[name])

    damage.__name__ = change.__name__
    return damage


def of_a_header(change):
    """Damage of the header's object, in place or by another object or text."""

    def damage(rng, files, folder):
        name = rng.choice(weights_of(files))
        header, body = parted(files[name])
        header = change(rng, header, len(body)) or header
        files[name] = fuzz.joined(header, body)

    damage.__name__ = change.__name__
    return damage


def a_tensor(rng, header):
    return rng.choice([name for name in header if name != "__metadata__"])


def another_length(rng, raw):
    length = rng.choice([0, 1, 2**31, 2**40, 2**62, 2**63, 2**64 - 1, len(raw), len(raw) - 8])
    return length.to_bytes(8, "little") + raw[8:]


def only_a_header(rng, raw):
    """A file without tensors, whose header is of a sort that grows when it is read."""
    count = rng.choice([10, 1000, 20_000])
    entry = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    many = ",".join([entry.format(k) for k in range(count // 10)])
    text = rng.choice(
        [
            "[" * count, '{"a":' * count, '{"a":[' + "[]," * count, '{"a":{},' * count, " " * count,
            "{" + ",".join([f'"{k}":1' for k in range(count)]) + "}", "{" + many + "}",
            "{" + many + "," + many + "}", '{"' + "x" * count + '":{}}', "{" + " " * count,
            '{"__metadata__":{' + '"a":"b",' * count + "}}", '{"__metadata__":' + '{"a":' * count,
            '{"a":{"dtype":"F32","shape":[' + "0," * count + '0],"data_offsets":[0,0]}}',
            '{"a":{"dtype":"' + "F" * count + '","shape":[],"data_offsets":[0,4]}}',
            '{"a":{"dtype":"F32","shape":[' + "9" * count + '],"data_offsets":[0,4]}}',
            '{"__metadata__":{"a":"' + "\\\\" * count, '{"' + "\U0001f600" * count + '":{}}',
            '"' + "\\" * count, '{"a":"' + "\\u0000" * count + '"}',
        ]
    ).encode()  # fmt: skip
    return len(text).to_bytes(8, "little") + text


def a_sparse_giant(rng, files, folder):
    """Terabytes that are not there, after a file's beginning or a header of any length."""
    name = rng.choice(weights_of(files))
    raw = files.pop(name)
    length = rng.choice([int.from_bytes(raw[:8], "little"), 2**30, 2**39, 99_999_999])
    (folder / name).write_bytes(length.to_bytes(8, "little") + raw[8:])
    os.truncate(folder / name, rng.choice([2**33, 2**40]))


def rename_a_tensor(rng, header, size):
    name = a_tensor(rng, header)
    new = rng.choice(["", ".", "x", name + ".", name[1:], name.upper(), "tiny." + name, "\ud800"])
    header[rng.choice([new, f"{name}\0", f"{name} ", name.replace("0", "00")])] = header.pop(name)


def remove_a_tensor(rng, header, size):
    del header[a_tensor(rng, header)]


def another_shape(rng, header, size):
    entry = header[a_tensor(rng, header)]
    shape = entry["shape"]
    entry["shape"] = rng.choice(
        [shape[::-1], [*shape, 1], [1, *shape], [], [0], [-1], [2**62, 4], [2**31, 2**31, 4], [1.0],
         [float("nan")], [True], ["4"], None, {}, "44", 4, [shape], [1] * 70, [10**400], [None]]
    )  # fmt: skip


def another_dtype(rng, header, size):
    known = ["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64"]
    entry = header[a_tensor(rng, header)]
    entry["dtype"] = rng.choice([*known, "f32", "", "F32 ", None, 32, ["F32"], {}, "O", "<f4"])


def other_offsets(rng, header, size):
    entry = header[a_tensor(rng, header)]
    first, last = entry["data_offsets"]
    by = rng.choice([-8, -4, -1, 1, 4, 2**31, 2**62])
    entry["data_offsets"] = rng.choice(
        [[first + by, last + by], [last, first], [first, last + by], [first, size + 4], [0, 0], [],
         [first], [first, last, last], [-4, 0], [0.0, 4.0], [float("nan")] * 2, [True, False],
         [2**63, 2**63 + 4], [10**400, 10**400], None, "04", {}, [first, None], [0, last - first]]
    )  # fmt: skip


def offsets_of_another(rng, header, size):
    one, other = header[a_tensor(rng, header)], header[a_tensor(rng, header)]
    if rng.random() < 0.5:
        one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]
    else:
        one.update(other)


def a_key_twice(rng, header, size):
    name = a_tensor(rng, header)
    text = text_of(header)[1:-1]
    again = text_of({name: header[rng.choice([name, a_tensor(rng, header)])]})[1:-1]
    return rng.choice([f"{{{text},{again}}}", f"{{{again},{text}}}"]).encode("utf-8", "replace")


def a_field_more(rng, header, size):
    entry = header[a_tensor(rng, header)]
    act = rng.randrange(3)
    if act == 0:
        entry["more"] = rng.choice(VALUES)
    elif act == 1:
        del entry[rng.choice(list(entry))]
    else:
        header[a_tensor(rng, header)] = rng.choice(VALUES)


def a_tensor_more(rng, header, size):
    name = rng.choice(
        ["more", "lm_head.weight", "wte.weight", "tiny.wte.weight", "h.9.attn.q.bias"]
    )
    header[name] = dict(header[a_tensor(rng, header)])
    if rng.random() < 0.5:
        header[name] = {"dtype": "F32", "shape": [0], "data_offsets": [size, size]}


# Damage of JSON -----------------------------------------------------------------------------------


def edit_config(rng, files, folder):
    config = json.loads(files[CONFIG])
    for _ in range(rng.choice([1, 1, 2])):
        edit(rng, config)
    files[CONFIG] = text_of(config).encode("utf-8", "surrogatepass")


def giant_config(rng, files, folder):
    name = rng.choice(["vocab_size", "dim", "layers"])
    value = rng.choice([0, 1, 5, 10**3, 10**6, 10**9, 2**31, 2**62, 2**63, 10**18, 10**30, -1])
    files[CONFIG] = text_of(json.loads(files[CONFIG]) | {name: value}).encode()


def other_json(rng, files, folder):
    """Text in place of an object."""
    name = rng.choice(sorted([one for one in files if one.endswith("json")]))
    values = [None, [], {}, [{}], "x", 1, DEEP, LONG, {"weight_map": DEEP}, {"model_type": DEEP}]
    texts = [text_of(value).encode() for value in values]
    texts += [b"", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"a":NaN}', b"{'a':1}", b"\0" * 64]
    texts += [b'{"model_type":"tiny","model_type":"tiny"}', b"[" * 50_000, b'{"a":' * 50_000]
    files[name] = rng.choice(texts)


def edit_index(rng, files, folder):
    edited(rng, files, lambda index: edit(rng, index))


def other_files(rng, files, folder):
    """Names of files that lead out of the folder, or to others in it."""
    outside = folder.parent / "outside.safetensors"
    names = [
        "../outside.safetensors",
        str(outside),
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/b.safetensors",
    ]
    names += ["x\0.safetensors", "x" * 300 + ".safetensors", "none.safetensors", CONFIG, INDEX]
    names += ["..\\outside.safetensors", "~/outside.safetensors", "file:///etc/passwd", "model.*"]
    names += ["sub/../model-00001-of-00002.safetensors", "link.safetensors", "\ud800.safetensors"]
    outside.write_bytes(files[weights_of(files)[0]])
    (folder / "link.safetensors").symlink_to(outside)

    def change(index):
        where = index["weight_map"]
        new, moved = rng.choice(names), rng.choice(sorted(set(where.values())))
        key = rng.choice(sorted(where))
        for name in where:
            if name == key or (where[name] == moved and rng.random() < 0.9):
                where[name] = new

    edited(rng, files, change)


def tensors_elsewhere(rng, files, folder):
    """An index that does not say what the files hold."""

    def change(index):
        where = index["weight_map"]
        one, other = rng.choices(sorted(where), k=2)
        act = rng.randrange(4)
        if act == 0:
            del where[one]
        elif act == 1:
            where[one + rng.choice(["x", "", " "])] = where[other]
        elif act == 2:
            where[one], where[other] = where[other], where[one]
        else:
            where[one] = rng.choice([None, 1, [], {}, [where[one]]])

    edited(rng, files, change)


def edited(rng, files, change):
    """Change the index, or make one of a folder that has none."""
    if INDEX not in files:
        name = "model-00001-of-00001.safetensors"
        files[name] = files.pop(WEIGHTS)
        header, _ = parted(files[name])
        index = {"metadata": {}, "weight_map": {k: name for k in header if k != "__metadata__"}}
    else:
        index = json.loads(files[INDEX])
    change(index)
    files[INDEX] = text_of(index).encode("utf-8", "surrogatepass")


# Damage of the files themselves -------------------------------------------------------------------


def remove_a_file(rng, files, folder):
    del files[rng.choice(sorted(files))]


def empty_a_file(rng, files, folder):
    files[rng.choice(sorted(files))] = rng.choice([b"", b"\0", b"\0" * 8])


def swap_files(rng, files, folder):
    one, other = rng.choices(sorted(files), k=2)
    files[one], files[other] = files[other], files[one]


def no_file(rng, files, folder):
    """A folder, a pipe, a device or a link in place of a file."""
    name = rng.choice(sorted(files))
    (folder.parent / "outside").write_bytes(files.pop(name))
    path, act = folder / name, rng.randrange(6)
    if act == 0:
        path.mkdir()
    elif act == 1:
        os.mkfifo(path)
    else:
        path.symlink_to(["/dev/zero", name, "nowhere", folder.parent / "outside"][act - 2])


def a_pickle(rng, files, folder):
    """A file that executes when it is unpickled, alone in its folder or beside safetensors."""
    harm = f"cposix\nsystem\n(S'touch {folder.parent / 'harmed'}'\ntR."
    files[rng.choice(["pytorch_model.bin", "model.bin", *weights_of(files)])] = harm.encode()
    if rng.random() < 0.7:
        for name in weights_of(files):
            del files[name]
        files.pop(INDEX, None)
        files["pytorch_model.bin"] = harm.encode()


# Changes that leave the checkpoint what it is -----------------------------------------------------


def in_another_order(rng, header, size):
    return dict(rng.sample(sorted(header.items()), len(header)))


def with_spaces(rng, header, size):
    return f" {json.dumps(header, indent=rng.randrange(4))}\n\t\r ".encode()


def with_escapes(rng, header, size):
    name = a_tensor(rng, header)
    text = json.dumps(header).replace(f'"{name}"', f'"\\u{ord(name[0]):04x}{name[1:]}"')
    return text.encode()


def with_metadata(rng, header, size):
    value = rng.choice(["", "}", '{"', "\\", "Grüße", "\U0001f600", '"}}', "x" * 5000])
    header["__metadata__"] = rng.choice([{}, {value: value}, {"format": "np", "a": value}])
    return json.dumps(header, ensure_ascii=rng.random() < 0.5).encode()


def without_prefix(rng, header, size):
    return {name.removeprefix("tiny."): entry for name, entry in header.items()}


def with_old_names(rng, header, size):
    def old(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma")

    return {old(name): entry for name, entry in header.items()}


def with_more_files(rng, files, folder):
    files["README.md"] = files["pytorch_model.bin"] = files["tokenizer.json"] = b"\0"
    files["config.json.bak"] = files["training_args.bin"] = b"{"
    (folder / "onnx").mkdir()


def with_buffers(rng, header, size):
    at = [size, size]
    header["position_ids"] = {"dtype": "I64", "shape": [1, 0], "data_offsets": at}
    header["cls.seq_relationship.bias"] = {"dtype": "F8_E4M3", "shape": [0], "data_offsets": at}


def reordered(change):
    """A change of the header of one whole file: an index would have to follow."""

    def damage(rng, files, folder):
        if INDEX in files:
            return
        header, body = parted(files[WEIGHTS])
        files[WEIGHTS] = fuzz.joined(change(rng, header, len(body)) or header, body)

    damage.__name__ = change.__name__
    return damage


ORDERLY = (in_another_order, with_spaces, with_escapes, with_metadata)
OF_BYTES = (
    fuzz.flip_bits, fuzz.overwrite, fuzz.zero_a_page, fuzz.move_a_part, fuzz.cut, fuzz.append
)  # fmt: skip
OF_WEIGHTS = (another_length, only_a_header, fuzz.edit_header, fuzz.edit_a_tensor, fuzz.spoil_text)
OF_HEADERS = (
    rename_a_tensor, remove_a_tensor, another_shape, another_dtype, other_offsets, a_key_twice,
    offsets_of_another, a_field_more, a_tensor_more,
)  # fmt: skip
HARMLESS = (
    *[of_a_header(change) for change in ORDERLY],
    *[reordered(change) for change in (without_prefix, with_old_names, with_buffers)],
    with_more_files,
)
DAMAGES = (
    *[of_a_file(change) for change in OF_BYTES],
    *[of_a_file(change, "safetensors") for change in OF_WEIGHTS],
    *[of_a_header(change) for change in OF_HEADERS],
    a_sparse_giant, edit_config, giant_config, other_json, edit_index, other_files,
    tensors_elsewhere, remove_a_file, empty_a_file, swap_files, no_file, a_pickle, *HARMLESS,
)  # fmt: skip

# Cases --------------------------------------------------------------------------------------------


def alike(found, expected):
    """Whether two states are equal to the bit; NaN may differ in its bits."""
    return found.keys() == expected.keys() and all(
        [
            found[name].shape == expected[name].shape
            and np.array_equal(found[name], expected[name], equal_nan=True)
            for name in found
        ]
    )


def outcome_of(folder):
    """The model of a folder, or why it is refused, and the bytes that this took at most."""
    begin = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    try:
        outcome = Tiny.from_pretrained(folder)
    except CheckpointError as error:
        outcome = error
    return outcome, tracemalloc.get_traced_memory()[1] - begin


def tried(seed, files, folder):
    """Damage a folder by a seed, load it, and say what is wrong with the outcome."""
    rng = random.Random(seed)
    damage = DAMAGES[seed % len(DAMAGES)]
    files = dict(files)
    damage(rng, files, folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    size = sum([path.stat().st_size for path in folder.iterdir() if path.is_file()])
    began = time.thread_time()
    try:
        with fuzz.at_most(20):
            outcome, peak = outcome_of(folder)
            if peak > 2 * size + SLACK:  # a table of the process grew, which it does not do twice
                outcome, peak = outcome_of(folder)
    except (Exception, fuzz.TookTooLong):
        return damage, "failed", traceback.format_exc()
    answer, said = "refused" if isinstance(outcome, CheckpointError) else "loaded", str(outcome)
    wrong = ""
    if peak > 2 * size + SLACK:
        wrong = f"{peak:,} bytes for files of {size:,}"
    if (seconds := time.thread_time() - began) > 2:
        wrong = f"{seconds:.1f} seconds"
    if (folder.parent / "harmed").exists():
        wrong = "something was executed"
    if answer == "refused":
        if str(folder) not in said or "fix:" not in said or len(said) > 20_000:
            wrong = f"said no more than {said[:500]}"
        if damage in HARMLESS:
            wrong = f"refused: {said}"
    elif not alike(outcome.state_dict(), values_of(folder)):
        wrong = "other values than those in the files"
    return damage, answer, wrong


def run(seeds):
    """The outcomes by damage, and the failures."""
    answers, failures = Counter(), []
    is_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        with tempfile.TemporaryDirectory() as made:
            bases = make_folders(Path(made) / "whole")
            for seed in seeds:
                case = Path(made) / "case"
                (case / "folder").mkdir(parents=True)
                base = bases[seed // len(DAMAGES) % len(bases)]
                damage, answer, wrong = tried(seed, base, case / "folder")
                answers[damage.__name__, answer] += 1
                if wrong:
                    failures.append(f"seed {seed}, {damage.__name__}, {answer}: {wrong}")
                shutil.rmtree(case)
    finally:
        if not is_tracing:
            tracemalloc.stop()
    return answers, failures


def main():
    parser = argparse.ArgumentParser(description="Load damaged and hostile checkpoint folders.")
    parser.add_argument("--count", type=int, default=5000, help="seeds to try (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    options = parser.parse_args()
    answers, failures = run(range(options.first, options.first + options.count))
    for name in dict.fromkeys([damage.__name__ for damage in DAMAGES]):
        print(f"{name:24} {answers[name, 'refused']:6} refused {answers[name, 'loaded']:6} loaded")
    for failure in failures[:20]:
        print(f"\n{failure}")
    print(f"\n{options.count} folders, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

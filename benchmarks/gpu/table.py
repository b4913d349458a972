"""The report of `make gpu-check` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu import machine
from benchmarks.gpu.goals import goals
from benchmarks.measure import OURS
from dynbatch.kernels.runtime.precision import FULL

Report = Mapping[str, Any]
SHOWN = 5  # failed tests of a file
# Of the sides of `speed`: head, key, factor, digits.
COLUMNS = (
    ("median", "ms", 1.0, 2), ("fastest", "fastest_ms", 1.0, 2), ("slowest", "slowest_ms", 1.0, 2),
    ("× dynb.", "ratio", 1.0, 2), ("tokens/s", "tokens_per_second", 1.0, 0),
    ("in a row", "row_ms", 1.0, 2), ("× dynb.", "row_ratio", 1.0, 2),
    ("queued", "queued_ms", 1.0, 2), ("host %", "host_share", 100.0, 0),
    ("device", "device_ms", 1.0, 2), ("busy %", "busy", 100.0, 0),
)  # fmt: skip


def as_text(report: Report) -> str:
    """Machine, parts, and a table for each case that was measured."""
    parts = report["parts"]
    lines = [*machine.lines(report["machine"]), "", *_parts(parts), ""]
    for name, part in parts.items():
        if "collected" in part["found"]:
            lines += [*_tests(name, part["found"]), ""]
        elif name.startswith("correct") and part["found"]:
            lines += _correct(part["found"])
    for name, part in parts.items():
        if name.startswith("speed") and part["found"]:
            lines += ["", *_speed(part["found"])]
    lines += ["", *_memory(parts)]
    for name, part in parts.items():
        for kind, written in (("micro", _micro), ("switches", _switches), ("generation", _many)):
            if name.split(",")[0] == kind and part["found"]:
                lines += ["", *written(part["found"])]
    lines += ["", "goals", *[f"  {line}" for line in goals(parts)]]
    return "\n".join([*lines, f"{report['seconds']:.0f} s in all"])


def _parts(parts: Report) -> Iterator[str]:
    width = max(map(len, parts), default=0)
    for name, part in parts.items():
        yield f"{name:{width}}  {part['state']:12}  {part['seconds']:6.1f} s"
        if "launches" in part["found"] and "losses" in part["found"]:
            counts = part["found"]
            yield f"    {counts['kernels']} kernels in {counts['launches']} launches"
        if part["state"] != "passed":
            yield from (f"    {line}" for line in part["said"].splitlines()[-12:])


def _tests(name: str, found: Report) -> Iterator[str]:
    yield (
        f"{name} on {found['on']}: {found['passed']} passed, {found['failed']} failed, "
        f"{found['skipped']} skipped, {found['not_run']} not run, of {found['collected']}; "
        f"{found['kernels']} kernels"
    )
    for path, module in found["files_without"].items():
        yield f"  skipped: {path} needs {module}"
    yield from (f"  skipped: {reason}" for reason in found["skip_reasons"])
    for path, failures in found["failures"].items():
        yield f"  FAILED {len(failures)} of {path}"
        for failure in failures[:SHOWN]:
            yield f"    {failure['test']}"
            yield from (f"      {line}" for line in failure["why"].splitlines()[-4:])
    yield from (f"  FOUND {finding}" for finding in found.get("findings", ()))
    if "log" in found:
        yield from (f"  {line}" for line in found["log"].splitlines()[-12:])


def _correct(found: Report) -> Iterator[str]:
    agrees = "as on the CPU" if found["agrees"] else "DIFFERENT from the CPU"
    repeats = {
        True: "the same bits twice", False: "OTHER BITS in a second run", None: "not run twice"
    }[found["repeats"]]  # fmt: skip
    yield (
        f"{found['case']}: {agrees} (worst {found['worst']}, {found['worst_difference']:.1e} "
        f"of its largest element), {repeats}"
    )
    if found["check"]:
        yield from (f"    {line}" for line in found["check"].splitlines())


def _speed(found: Report) -> Iterator[str]:
    yield (
        f"{found['case']}: ms per training step, {found['precision']}; "
        f"{found['tokens_per_step']:.0f} tokens, {found['cells_per_token']:.1f} cells each, padded"
    )
    yield from [found["disagreement"]] if found["disagreement"] else []
    yield f"{'':26}" + "".join(f"{head:>10}" for head, *_ in COLUMNS)
    for name, side in found["sides"].items():
        numbers = [_or_dash(side.get(key), factor, digits) for _, key, factor, digits in COLUMNS]
        note = "" if side["precision"] == FULL else f"  {side['precision']}"
        yield f"{name:26}" + "".join(f"{number:>10}" for number in numbers) + note
    yield from (f"{name:26}not run: {why}" for name, why in found["skipped"].items())
    ours = found["sides"][OURS]
    host = [_or_dash(ours.get(f"{name}_ms"), 1.0, 2) for name in ("build", "run", "update")]
    yield (
        f"dynbatch: {found['launches']:.0f} launches, {found['uploads']:.0f} uploads, "
        f"{found['batches']:.0f} batches a step; host {host[0]} ms build, "
        f"{host[1]} plan and hand over, {host[2]} update"
    )
    for kernel in ours.get("longest", ())[:6]:
        yield f"    {kernel['ms']:8.3f} ms {kernel['launches']:7.0f} × {kernel['kernel']}"


def _memory(parts: Report) -> Iterator[str]:
    found = [p["found"] for n, p in parts.items() if n.startswith("memory") and p["found"]]
    if found:
        yield f"{'memory, MB':44}{'used':>10}{'reserved':>10}{'× dynb.':>10}{'× dynb.':>10}"
    base = {each["case"]: each for each in found if each["side"] == OURS}
    for each in found:
        row = f"{each['case'] + ', ' + each['side']:44}"
        if "skipped" in each:
            yield f"{row}not run: {each['skipped']}"
            continue
        kinds = ("used_bytes", "reserved_bytes")
        row += "".join(f"{each[kind] / 1e6:>10.1f}" for kind in kinds)
        if ours := base.get(each["case"]):
            row += "".join(f"{each[kind] / ours[kind]:>10.2f}" for kind in kinds)
        yield row


def _micro(found: Report) -> Iterator[str]:
    for name, part in found.items():
        if "failed" in part:
            yield f"{name}: {part['failed']}"
        elif name == "launch":
            yield (
                f"a launch: {part['queue_us']:.1f} µs of the host by the queue, "
                f"{_or_dash(part['cupy_us'], 1.0, 1)} by CuPy's kernel object; "
                f"{part['device_us']:.1f} µs of the device"
            )
        elif name == "product":
            yield f"a product of {' x '.join(map(str, part['shape']))}: " + ", ".join(
                f"{precision} {one['device_us']:.1f} µs of the device ({one['host_us']:.1f} of the "
                "host)" for precision, one in part.items() if precision != "shape"
            )  # fmt: skip
        else:
            shape = part["shape"]
            rates = [
                f"{precision} {one['forward']:.1f} and {one['backward']:.1f}"
                for precision, one in part["tflops"].items()
            ]
            rates += [f"PyTorch {kind} {rate:.1f}" for kind, rate in part["torch"].items()]
            yield (
                f"attention, {shape['sentences']} x {shape['tokens']} tokens, {shape['heads']} "
                f"heads of {shape['width']}{', causal' if shape['is_causal'] else ''}: TFLOP/s "
                f"forward and backward {', '.join(rates)}"
            )


def _switches(found: Report) -> Iterator[str]:
    yield f"{found['case']}: ms per training step in a row, each way of a switch"
    for name, switch in found["switches"].items():
        ways = [f"{way} {ms:.2f}" for way, ms in switch["ms"].items()]
        ways += [f"{way} FAILS ({why.splitlines()[0]})" for way, why in switch["broken"].items()]
        yield f"  {name}: {', '.join(ways)}; default {switch['default']}, take {switch['take']}"


def _many(found: Report) -> Iterator[str]:
    from benchmarks.generation import as_text as lines_of

    yield from (f"generation: {line}" for line in lines_of(found).splitlines() if line)


def _or_dash(number: float | None, factor: float, digits: int) -> str:
    return "-" if number is None else f"{factor * number:,.{digits}f}"

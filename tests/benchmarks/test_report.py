import json
from dataclasses import replace

from benchmarks.limit import Limits, ProductRate
from benchmarks.measure import Timing
from benchmarks.report import Report

REPORT = Report(
    workload="tagger",
    batch=64,
    threads=2,
    versions={"python": "3.11.7", "numpy": "2.4.6"},
    timings={
        "dynbatch": Timing((0.04, 0.05, 0.06)),
        "pytorch-padded": Timing((0.2,)),
        "rounded": Timing((0.025,)),
    },
    costs={
        "host_share": 0.081,
        "launches": 40.0,
        "nodes": 640.0,
        "batches": 12.0,
        "lower_bound": 11.0,
        "host_us_per_cell": 1.5,
        "copied_bytes": 1024.0,
        "peak_bytes": 5e7,
        "flops": 4.5e9,
        "flops_per_second": 9e10,
    },
    peers=("pytorch-padded", "rounded", "dynet"),
    skipped={"dynet": "not installed"},
    words=1415.25,
    notes=("numpy      OpenBLAS",),
    limits=Limits(
        {"float32": ProductRate(1.2e11, "dynbatch"), "bfloat16": ProductRate(2e11, "PyTorch")}, 2e10
    ),
    precisions={"rounded": "bfloat16"},
)


def test_json_has_exactly_the_promised_keys():
    found = json.loads(json.dumps(REPORT.as_json()))
    assert found == {
        "workload": "tagger",
        "batch": 64,
        "threads": 2,
        "device": "cpu",
        "versions": {"python": "3.11.7", "numpy": "2.4.6"},
        "dynbatch_ms": 50.0,
        "peers_ms": {"pytorch-padded": 200.0, "rounded": 25.0, "dynet": None},
        "host_share": 0.081,
        "launches": 40,
        "nodes_per_sentence": 10.0,
        "tokens": 1415.2,
        "batches": 12,
        "lower_bound": 11,
        "host_us_per_cell": 1.5,
        "copied_bytes": 1024,
        "peak_bytes": 50_000_000,
        "flops_per_second": 90_000_000_000,
        "product_flops_per_second": {"float32": 120_000_000_000, "bfloat16": 200_000_000_000},
        "copied_bytes_per_second": 20_000_000_000,
        "shares_of_limit": {"dynbatch": 0.75, "pytorch-padded": 0.1875, "rounded": 0.9},
        "compile_seconds": {},
    }


def test_the_table_is_aligned_and_shows_the_ratio():
    lines = REPORT.as_text().splitlines()
    header, ours, theirs = lines[2:5]
    assert len(header) == len(ours) == len(theirs)
    assert ours.split() == ["dynbatch", "50.0", "40.0", "60.0", "1.00", "75", "%"]
    assert theirs.split() == ["pytorch-padded", "200.0", "200.0", "200.0", "4.00", "19", "%"]


def test_a_side_is_held_to_the_rate_of_its_own_precision():
    lines = REPORT.as_text().splitlines()
    (rounded,) = [line for line in lines if line.startswith("rounded")]
    assert rounded.endswith("0.50       90 %")
    (limit,) = [line for line in lines if line.startswith("limit")]
    assert limit == f"limit      {REPORT.limits}"


def test_without_rates_no_share_is_shown():
    report = replace(REPORT, limits=None)
    assert "limit" not in report.as_text() and "%" not in report.as_text().split("host")[0]
    assert report.as_json()["shares_of_limit"] == {}


def test_what_did_not_run_is_said_with_the_reason():
    assert "dynet           not run: not installed" in REPORT.as_text()
    assert "numpy      OpenBLAS" in REPORT.as_text()
    said = (
        "host 8.1 % of the step (1.50 µs a cell node), 10.0 nodes a sentence, 40 launches in 12 "
        "batches (lower bound 11)"
    )
    assert said in REPORT.as_text()

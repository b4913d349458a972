import json
from dataclasses import replace

from benchmarks.limit import ProductRate
from benchmarks.measure import Timing
from benchmarks.report import Report

REPORT = Report(
    workload="tagger",
    batch=64,
    threads=2,
    versions={"python": "3.11.7", "numpy": "2.4.6"},
    timings={"dynbatch": Timing((0.04, 0.05, 0.06)), "pytorch-padded": Timing((0.2,))},
    costs={
        "host_share": 0.081,
        "launches": 40.0,
        "nodes": 640.0,
        "batches": 12.0,
        "lower_bound": 11.0,
        "host_us_per_cell": 1.5,
        "copied_bytes": 1024.0,
        "peak_bytes": 5e7,
        "flops_per_second": 9e10,
    },
    peers=("pytorch-padded", "dynet"),
    skipped={"dynet": "not installed"},
    words=1415.25,
    notes=("numpy      OpenBLAS",),
    limit=ProductRate(1.2e11, "dynbatch"),
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
        "peers_ms": {"pytorch-padded": 200.0, "dynet": None},
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
        "product_flops_per_second": 120_000_000_000,
        "compile_seconds": {},
    }


def test_the_table_is_aligned_and_shows_the_ratio():
    lines = REPORT.as_text().splitlines()
    header, ours, theirs = lines[2:5]
    assert len(header) == len(ours) == len(theirs)
    assert ours.split() == ["dynbatch", "50.0", "40.0", "60.0", "1.00"]
    assert theirs.split() == ["pytorch-padded", "200.0", "200.0", "200.0", "4.00"]


def test_the_share_of_the_machines_product_rate_is_shown_where_it_is_known():
    (line,) = [line for line in REPORT.as_text().splitlines() if line.startswith("limit")]
    assert line == (
        "limit      120 GFLOP/s in a product of 1324 × 384 × 1024 (dynbatch); "
        "the step reaches 90, 75 %"
    )
    assert "limit" not in replace(REPORT, limit=None).as_text()


def test_what_did_not_run_is_said_with_the_reason():
    assert "dynet           not run: not installed" in REPORT.as_text()
    assert "numpy      OpenBLAS" in REPORT.as_text()
    said = (
        "host 8.1 % of the step (1.50 µs a cell node), 10.0 nodes a sentence, 40 launches in 12 "
        "batches (lower bound 11)"
    )
    assert said in REPORT.as_text()

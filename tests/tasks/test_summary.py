from dynbatch.tasks.summary import memory_saved, speed


def test_the_memory_of_a_training_is_told_beside_that_of_padded_batches():
    records = [
        {"peak_bytes": 2_000_000, "planned_bytes": 2_000_000, "padded_bytes": 6_000_000},
        {"peak_bytes": 7_000_000},
        {"peak_bytes": 4_000_000, "planned_bytes": 4_000_000, "padded_bytes": 10_000_000},
        {"step": 3, "metric": 0.5},
    ]
    assert memory_saved(records) == (
        "3.0 MB on average (4.0 at most), padded 8.0 (10.0): 62% saved; "
        "2 of 2 looked at took what was planned before they ran"
    )
    assert memory_saved(records[1:2]) == ""


def test_speed_is_that_of_all_sentences_together():
    records = [{"sentences": 10, "sentences_per_second": 10.0}, {"step": 1, "metric": 1.0}]
    records += [{"sentences": 30, "sentences_per_second": 10.0}]
    assert speed(records) == "10 sentences per second"
    assert speed([]) == ""

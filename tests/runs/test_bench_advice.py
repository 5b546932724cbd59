"""The bottleneck and the advice follow from the figures, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_figures import figures_of
from examples import few_examples
from feedline.runs.bench.advice import advise

GIB = 2**30


def advice_of(**rates: Any) -> tuple[str, str]:
    found = advise(figures_of(**rates))
    return found.bottleneck, "\n".join(found.advice)


def test_without_anything_to_gain_there_is_nothing_to_change() -> None:
    found = advise(figures_of(gathers={4: 10, 8: 10}, shuffle=9, windows=9))
    assert (found.bottleneck, found.is_good) == ("gather", True)
    assert len(found.advice) == 1
    assert "nothing to change" in found.advice[0]
    assert "9.0 GiB/s" in found.advice[0]


def test_storage_is_the_bottleneck_of_data_that_does_not_fit_into_memory() -> None:
    slow: dict[str, Any] = {"cold": 1, "warm": 9, "shuffle": 0.8, "windows": 0.9}
    bottleneck, text = advice_of(**slow, file_bytes=500 * GIB, memory_bytes=100 * GIB)
    assert bottleneck == "storage"
    assert "500.0 GiB" in text
    assert "100.0 GiB" in text
    assert "faster disk" in text
    # In memory it is read only once: then the loader is what is slow.
    bottleneck, text = advice_of(**slow, file_bytes=50 * GIB, memory_bytes=100 * GIB)
    assert bottleneck == "batches"
    assert "faster disk" not in text


def test_data_that_is_not_in_the_page_cache_yet_should_be_read_once() -> None:
    bottleneck, text = advice_of(cold=1, shuffle=0.8, windows=0.9, cached_share=0.2)
    assert bottleneck == "storage"
    assert "Read them once before the training" in text
    assert "faster disk" not in text


def test_warm_storage_is_never_the_bottleneck() -> None:
    # Files in the page cache are mapped, and not read.
    assert advice_of(warm=1, cold=20, shuffle=9, windows=9)[0] == "gather"


def test_slow_single_rows_from_a_cold_disk_call_for_windows() -> None:
    told = 'Use window="8 chunks" instead of a full shuffle'
    on_disk = {"file_bytes": 500 * GIB, "cold": 5, "windows": 4, "shuffle": 0.1}
    assert told in advice_of(**on_disk, cold_rows=0.1)[1]
    assert told not in advice_of(**on_disk, cold_rows=4)[1]
    assert told not in advice_of(**on_disk, cold_rows=None)[1]
    assert told not in advice_of(cold=5, cold_rows=0.1)[1]


@pytest.mark.parametrize(
    ("shuffle", "windows", "told"),
    [(3, 9, "use it if a shuffle"), (9, 3, "omit window"), (8, 9, None), (9, 8, None)],
)
def test_windows_are_advised_only_where_they_are_faster(
    shuffle: float, windows: float, told: str | None
) -> None:
    text = advice_of(shuffle=shuffle, windows=windows)[1]
    assert (told in text) if told else ("window" not in text)


def test_a_disk_that_direct_reads_find_faster_needs_more_read_ahead() -> None:
    on_disk = {"file_bytes": 500 * GIB, "cold": 1, "windows": 0.9, "shuffle": 0.9}
    assert "--setra" in advice_of(**on_disk, direct=3)[1]
    assert "--setra" not in advice_of(**on_disk, direct=1.1)[1]
    assert "--setra" not in advice_of(direct=30)[1]


def test_decoding_is_the_bottleneck_where_it_is_slowest() -> None:
    bottleneck, text = advice_of(decode=2, shuffle=1.5, windows=1.8)
    assert bottleneck == "decode"
    assert "--format safetensors" in text
    assert advice_of(decode=20)[0] == "gather"
    # Where a loader is faster than that, chunks stay decoded.
    assert advice_of(decode=2, shuffle=7, windows=7)[0] == "gather"


def test_more_threads_are_advised_where_they_still_gain() -> None:
    gathers = {1: 4, 2: 8, 4: 15, 8: 24}
    slow: dict[str, Any] = {"gathers": gathers, "num_threads": 2, "shuffle": 6, "windows": 6}
    assert "Raise num_threads from 2 to 8" in advice_of(**slow, auto_threads=8)[1]
    flat = {1: 4, 2: 8, 4: 9, 8: 9}
    assert "num_threads" not in advice_of(**{**slow, "gathers": flat}, auto_threads=8)[1]


def test_a_loop_that_reads_by_itself_should_have_threads() -> None:
    told = 'Use num_threads="auto"'
    assert told in advice_of(gathers={1: 4}, num_threads=0, shuffle=3, windows=3)[1]
    assert told not in advice_of(gathers={1: 4}, num_threads=1, shuffle=3, windows=3)[1]


def test_fewer_threads_are_advised_where_they_gather_more() -> None:
    gathers = {1: 4, 2: 8, 4: 5, 8: 3}
    text = advice_of(gathers=gathers, num_threads=8, shuffle=2, windows=2)[1]
    assert "Lower num_threads from 8 to 2" in text


def test_more_cores_are_advised_where_all_are_used_and_the_last_ones_gained() -> None:
    all_used: dict[str, Any] = {"num_threads": 8, "auto_threads": 8, "shuffle": 9, "windows": 9}
    assert "more cores: 8 threads" in advice_of(gathers={1: 2, 4: 6, 8: 10}, **all_used)[1]
    assert "more cores" not in advice_of(gathers={1: 2, 4: 9, 8: 10}, **all_used)[1]
    one = advice_of(gathers={1: 2}, num_threads=1, auto_threads=1, shuffle=2, windows=2)[1]
    assert "enough for 1 thread" in one


def test_a_link_that_is_not_reached_is_told_with_what_stops_it() -> None:
    on_gpu: dict[str, Any] = {"link": 50, "shuffle": 8, "windows": 9}
    bottleneck, text = advice_of(**on_gpu, row_bytes=1024)
    assert bottleneck == "gather"
    assert "could take 50.0 GiB/s, but rows of 1.0 KiB are gathered at 10.0 GiB/s" in text
    assert "Larger rows" in text
    assert "Larger rows" not in advice_of(**on_gpu, row_bytes=65536)[1]
    assert "could take" not in advice_of(link=12, shuffle=9, windows=9)[1]


def test_a_link_that_is_reached_needs_fewer_bytes() -> None:
    bottleneck, text = advice_of(link=10, gathers={8: 40}, shuffle=9, windows=9)
    assert bottleneck == "link"
    assert "fewer bytes" in text


def test_small_rows_are_told_without_a_device_too() -> None:
    assert "Larger rows" in advice_of(row_bytes=64)[1]
    assert "Larger rows" not in advice_of(row_bytes=65536)[1]


def test_a_loader_far_below_its_stages_needs_larger_batches() -> None:
    bottleneck, text = advice_of(shuffle=1, windows=2, batch_size=16, row_bytes=1024)
    assert bottleneck == "batches"
    assert "larger batch_size" in text
    assert "16 samples (16.0 KiB) takes 8 µs" in text
    large = advice_of(shuffle=1, windows=2, batch_size=2**16, row_bytes=1024)[1]
    assert "larger batch_size" not in large
    assert "memory_budget" in large
    few = advice_of(shuffle=1, windows=2, batch_size=200, num_samples=150)[1]
    assert "a batch of 150 samples" in few
    assert "hardly more than a batch" in few


def test_a_slow_first_epoch_is_told() -> None:
    told = "The first epoch is slower"
    assert told in advice_of(cold=1)[1]
    assert told not in advice_of(cold=20)[1]
    assert told not in advice_of(cold=None)[1]


rates = st.floats(1e-3, 1e3)


@given(
    rates_given=st.fixed_dictionaries(
        {
            **dict.fromkeys(("warm", "shuffle", "windows"), rates),
            **{name: rates | st.none() for name in ("cold", "direct", "cold_rows", "decode")},
            "link": rates | st.none(),
            "gathers": st.fixed_dictionaries({1: rates, 2: rates, 4: rates}),
            "num_threads": st.sampled_from([0, 1, 2, 4]),
            "auto_threads": st.sampled_from([1, 2, 4]),
            "file_bytes": st.sampled_from([GIB, 900 * GIB]),
            "memory_bytes": st.sampled_from([None, 100 * GIB]),
            "cached_share": st.sampled_from([None, 0.0, 1.0]),
        }
    )
)
@few_examples(1)
def test_any_figures_have_a_bottleneck_that_was_measured_and_some_advice(
    rates_given: dict[str, Any],
) -> None:
    found = figures_of(**rates_given)
    findings = advise(found)
    assert findings.figure in found.figures
    assert findings.advice
    assert all(text.endswith(".") for text in findings.advice)
    # No stage that counts is slower, but for the loader, which passes through all of them.
    gathered = found.gathers[max(1, found.num_threads)]
    assert findings.figure.rows_per_second <= gathered.rows_per_second

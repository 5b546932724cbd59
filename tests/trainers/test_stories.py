"""The stories of trainers cover what they should, and their checks find what is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trainer_checks import Batch, Logs, faults_of, read_logs
from trainer_stories import (
    MAX_STORIES,
    NUM_EPOCHS,
    Story,
    all_factors,
    covering_factors,
    pairs_of,
    stories,
    story_of,
)

RESIZED = story_of((240, "twice", 2, 3, 0, 2))
DROPPING = story_of((10_000, "middle", 3, 2, 0, 0), "drop")


def sound_logs(story: Story) -> Logs:
    """Return the logs of a trainer that does everything right, in an order of its own."""
    orders = []
    for epoch in range(NUM_EPOCHS):
        orders.append(list(range(story.num_samples)))
        random.Random(epoch).shuffle(orders[-1])
    logs: Logs = []
    epoch, number = 0, 0
    for run in story.runs:
        size = run.num_processes
        logs.append([[] for _ in range(size)])
        while epoch < NUM_EPOCHS and len(logs[-1][0]) != run.stop_after:
            step = size * story.batch_size
            block, orders[epoch] = orders[epoch][:step], orders[epoch][step:]
            for rank in range(size):
                ids = block[rank::size]
                padding = -(-len(block) // size) - len(ids)
                marks = [True] * len(ids) + [False] * padding
                ids += block[:padding]
                logs[-1][rank].append(Batch(epoch, number, tuple(ids), tuple(marks)))
            number += 1
            if len(orders[epoch]) < (step if story.tail == "drop" else 1):
                epoch, number = epoch + 1, 0
    return logs


def test_a_cover_has_every_pair_of_values_in_few_stories() -> None:
    assert set(pairs_of(covering_factors())) == set(pairs_of(all_factors()))
    assert len(stories()) <= MAX_STORIES
    assert {story.name for story in stories()} <= {story.name for story in stories(is_full=True)}


def test_the_full_product_has_each_story_once() -> None:
    names = [story.name for story in stories(is_full=True)]
    assert len(names) == len(set(names)) == 1 + 2 * 3 * 3 * 3 * 2 * 2


def test_a_stop_is_where_its_name_says() -> None:
    assert [run.stop_after for run in story_of((240, "middle", 2, 1, 0, 0)).runs] == [7, None]
    assert [run.stop_after for run in story_of((240, "last-step", 3, 1, 0, 0)).runs] == [10, None]
    assert [run.stop_after for run in RESIZED.runs] == [5, 3, None]
    assert [run.num_processes for run in RESIZED.runs] == [2, 3, 2]
    # In the second epoch, after the 79 batches of the first.
    assert story_of((10_000, "middle", 2, 1, 0, 0)).runs[0].stop_after == 79 + 39


@pytest.mark.parametrize("story", [*stories(), DROPPING], ids=lambda story: story.name)
def test_logs_of_a_sound_trainer_have_no_faults(story: Story) -> None:
    assert faults_of(story, sound_logs(story)) == []


def lose(logs: Logs) -> None:
    logs[0][0][1] = replace(logs[0][0][1], ids=logs[0][0][0].ids)


def lose_a_batch_on_all_ranks(logs: Logs) -> None:
    for rank in logs[2]:
        rank.pop()


def lose_a_batch_on_one_rank(logs: Logs) -> None:
    logs[2][1].pop()


def repeat_the_batches_before_the_stop(logs: Logs) -> None:
    for rank in logs[1]:
        rank[0] = replace(rank[0], ids=logs[0][0][0].ids)


def call_a_sample_padding(logs: Logs) -> None:
    first = logs[0][0][0]
    logs[0][0][0] = replace(first, is_real=(False, *first.is_real[1:]))


def call_padding_a_sample(logs: Logs) -> None:
    # The rest of the epoch is 240 - 5 * 16 - 3 * 24 = 88, half of a batch a rank at its end.
    for rank in logs[2]:
        last = [batch for batch in rank if batch.epoch == 0][-1]
        rank[rank.index(last)] = replace(last, ids=(*last.ids, 7), is_real=(*last.is_real, True))


def skip_the_last_epoch(logs: Logs) -> None:
    logs[2] = [[batch for batch in rank if batch.epoch == 0] for rank in logs[2]]


def train_for_one_more_epoch(logs: Logs) -> None:
    for rank in logs[2]:
        rank += [replace(batch, epoch=2) for batch in rank if batch.epoch == 1]


def go_back_to_the_first_epoch(logs: Logs) -> None:
    for rank in logs[2]:
        rank.insert(len(rank), replace(rank[0]))


def stop_late(logs: Logs) -> None:
    for rank in range(2):
        logs[0][rank].append(logs[2][rank].pop(0))


def shuffle_alike_in_both_epochs(logs: Logs) -> None:
    second = [[], []]  # type: ignore[var-annotated]
    order = list(range(240))
    random.Random(0).shuffle(order)
    for number in range(15):
        block = order[number * 16 : (number + 1) * 16]
        for rank in range(2):
            second[rank].append(Batch(1, number, tuple(block[rank::2]), (True,) * 8))
    for rank in range(2):
        logs[2][rank] = [batch for batch in logs[2][rank] if batch.epoch == 0] + second[rank]


def swap_two_batches_of_one_rank(logs: Logs) -> None:
    logs[0][0][0], logs[0][0][1] = logs[0][0][1], logs[0][0][0]


def fill_a_batch_beyond_its_size(logs: Logs) -> None:
    first, second = logs[0][0][:2]
    merged = Batch(0, 0, first.ids + second.ids[:1], (True,) * 9)
    logs[0][0][:2] = [merged, Batch(0, 1, second.ids[1:], (True,) * 7)]


@pytest.mark.parametrize(
    ("doctor", "fault"),
    [
        (lose, "came twice"),
        (lose, "8 samples are missing, and 0 may be"),
        (lose_a_batch_on_all_ranks, "epoch 1: 16 samples are missing"),
        (lose_a_batch_on_one_rank, "the ranks differ"),
        (repeat_the_batches_before_the_stop, "epoch 0: 8 samples came twice"),
        (call_a_sample_padding, "1 samples are missing, and 0 may be"),
        (call_padding_a_sample, "epoch 0: 1 samples came twice: 7"),
        (skip_the_last_epoch, "epochs [0] were seen"),
        (train_for_one_more_epoch, "epochs [0, 1, 2] were seen"),
        (go_back_to_the_first_epoch, "comes again after a later one"),
        (stop_late, "it should stop after 5"),
        (shuffle_alike_in_both_epochs, "two epochs have the same order"),
        (swap_two_batches_of_one_rank, "(0, 0) comes after (0, 1)"),
        (fill_a_batch_beyond_its_size, "a batch exceeds 8"),
    ],
)
def test_a_fault_in_the_logs_is_found(doctor: Callable[[Logs], None], fault: str) -> None:
    logs = sound_logs(RESIZED)
    doctor(logs)
    assert fault in "; ".join(faults_of(RESIZED, logs))


def test_an_order_without_shuffling_is_found() -> None:
    story = stories()[0]
    ranks: Logs = [[[], []]]
    for epoch in range(NUM_EPOCHS):
        for number in range(15):
            for rank in range(2):
                first = rank * 120 + number * 8
                ids = tuple(range(first, first + 8))
                ranks[0][rank].append(Batch(epoch, number, ids, (True,) * 8))
    assert faults_of(story, ranks) == ["an epoch is not shuffled", "two epochs have the same order"]


def test_a_sample_more_than_the_tail_drops_is_found() -> None:
    logs = sound_logs(DROPPING)
    last = logs[1][0].pop()
    logs[1][1].pop()
    assert last.epoch == 1
    assert "epoch 1: 144 samples are missing, and 16 may be" in "; ".join(faults_of(DROPPING, logs))


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    story = stories()[0]
    lines = [
        {"epoch": 0, "batch": 0, "ids": [3, 1], "is_real": [True, False]},
        {"epoch": 0, "batch": 1, "ids": [2], "is_real": None},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "run0-rank1.jsonl").write_text(text)
    assert read_logs(story, tmp_path) == [
        [[], [Batch(0, 0, (3, 1), (True, False)), Batch(0, 1, (2,), (True,))]]
    ]

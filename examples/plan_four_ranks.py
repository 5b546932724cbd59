"""A plan for four ranks: what each sees, a checkpoint, and the rest of the epoch on three ranks.

Run it with one process:

    python examples/plan_four_ranks.py
"""

from __future__ import annotations

from collections import Counter

from feedline.plan import Cursor, Replay, SamplePlan, Shuffled

NUM_SAMPLES = 47


def main() -> None:
    """Print the story."""
    plan = SamplePlan(order=Shuffled(num_samples=NUM_SAMPLES, seed=7), tail="even")
    print(f"{NUM_SAMPLES} samples, shuffled; plan {plan.fingerprint[:12]}\n")

    segment = plan.segment(world_size=4, batch_size=4)
    print(f"4 ranks, batches of 4: {segment.num_batches} batches on every rank")
    for number in range(segment.num_batches):
        for rank in range(4):
            print(f"  batch {number} rank {rank}: {segment.batch(rank, number).indices.tolist()}")

    consumed: Counter[int] = Counter()
    for rank in range(4):
        for batch in segment.block(rank, 0, 2):
            consumed.update(batch.indices.tolist())
    saved = segment.cursor(num_batches=2).to_json()
    print(
        f"\nstopped after batch 1; the checkpoint is {len(saved)} bytes and the same on all ranks"
    )

    rest = plan.resume(Cursor.from_json(saved), world_size=3, batch_size=2)
    print(f"resumed on 3 ranks with batches of 2: {rest.num_batches} batches are left")
    for rank in range(3):
        for batch in rest.batches(rank):
            consumed.update(batch.indices[batch.is_real].tolist())
            print(f"  batch {batch.number} rank {rank}: {batch.indices.tolist()}")

    once = sum(count == 1 for count in consumed.values())
    print(f"\naudit: {once} of {NUM_SAMPLES} samples were consumed exactly once")
    if once != NUM_SAMPLES or sum(consumed.values()) != NUM_SAMPLES:
        raise SystemExit("the audit failed")

    replay = Replay.of(plan, Cursor.from_json(saved), world_size=3, batch_size=2)
    place = replay.find(11)[0]
    print(f"sample 11 is consumed by rank {place.rank} in batch {place.batch} of the epoch")

    large = SamplePlan(order=Shuffled(num_samples=10**12, seed=7)).segment(
        world_size=16384, batch_size=8
    )
    print(f"\na trillion samples on 16,384 ranks: {large.num_batches:,} batches on every rank")
    last = large.batch(rank=16383, number=large.num_batches - 1)
    print(f"  the last batch of the last rank: {last.indices[:4].tolist()} …")


if __name__ == "__main__":
    main()

"""MosaicML Streaming and litdata on objects, each in its own environment.

`remote_peer.py NAME WORKERS epoch|resume URL CACHE [STATE]` prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from time import perf_counter
from typing import Any

from format_data import BATCH_SIZE, NUM_ROWS, ROW_BYTES


def mds(url: str, cache: str, num_workers: int) -> Any:
    import peer_mds

    # By default it reads so far ahead as eight batches; this is the size of an epoch.
    dataset = peer_mds.StreamingDataset(
        remote=url, local=cache, shuffle=True, batch_size=BATCH_SIZE, predownload=NUM_ROWS
    )
    # Else workers that are forked share its connection, and read each other's answers.
    for stream in dataset.streams:
        stream._downloader.clean_up()
    return peer_mds.StreamingDataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=num_workers,
        # A dict, in which it can count the samples that its state is about.
        collate_fn=lambda samples: {"x": [sample["x"] for sample in samples]},
    )


def litdata(url: str, cache: str, num_workers: int) -> Any:
    import peer_litdata
    from litdata.streaming import downloader

    # Else its obstore refuses a server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = peer_litdata.StreamingDataset(url, cache_dir=cache, shuffle=True, max_pre_download=16)
    return peer_litdata.StreamingDataLoader(
        dataset, batch_size=BATCH_SIZE, num_workers=num_workers, collate_fn=peer_litdata.collate
    )


def epoch(make: Any) -> dict[str, Any]:
    """Return the rate of an epoch, and the state after 90% of it, whose time is not counted."""
    start, num_rows, first, state = perf_counter(), 0, 0.0, None
    loader = make()
    for number, batch in enumerate(loader, 1):
        num_rows += len(batch["x"] if isinstance(batch, dict) else batch)
        first = first or perf_counter() - start
        if number == NUM_ROWS * 9 // 10 // BATCH_SIZE:
            began = perf_counter()
            state = loader.state_dict()
            start += perf_counter() - began
    seconds = perf_counter() - start
    assert num_rows == NUM_ROWS, num_rows
    return {"rate": num_rows * ROW_BYTES / seconds, "first": first, "state": state}


def resume(make: Any, saved: str) -> dict[str, float]:
    start = perf_counter()
    loader = make()
    loader.load_state_dict(json.loads(saved))
    next(iter(loader))
    return {"resume": perf_counter() - start}


if __name__ == "__main__":
    name, num_workers, what, url, cache, *more = sys.argv[1:]
    # Imports take seconds, and are not what is measured.
    importlib.import_module(f"peer_{name}")
    open_loader = {"mds": mds, "litdata": litdata}[name]
    action: Any = {"epoch": epoch, "resume": resume}[what]
    print(json.dumps(action(lambda: open_loader(url, cache, int(num_workers)), *more)))

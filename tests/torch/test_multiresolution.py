"""A cache folder becomes buckets, and nothing in it leads outside or passes unnoticed."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from torch.utils.data import DataLoader

from feedline.errors import FeedlineError, InvalidValueError
from feedline.torch.calculator import BucketCalculator
from feedline.torch.multiresolution import MAX_FILE_BYTES, MAX_SIDE, MultiresolutionDataset

ITEM = {"crop_resolution": [512, 512], "aspect_ratio": 1.0}


def write_cache(folder: Path, *shards: Any) -> Path:
    """Write a cache folder with these shards, each of any JSON value."""
    names = [f"shard_{number}.json" for number in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        (folder / name).write_text(json.dumps(shard), encoding="utf-8")
    return name_shards(folder, names)


def name_shards(folder: Path, names: Any) -> Path:
    (folder / "metadata.json").write_text(json.dumps({"shards": names}), encoding="utf-8")
    return folder


resolutions = st.sampled_from([(512, 512), (640, 384), (384, 640), (448, 576), (320, 768)])
items = st.builds(
    lambda resolution, key, ratio: {key: list(resolution)} | ratio,
    resolutions,
    st.sampled_from(["crop_resolution", "bucket_resolution"]),
    st.sampled_from([{}, {"aspect_ratio": 1}, {"aspect_ratio": 0.5}, {"aspect_ratio": 1.78}]),
)


@given(st.lists(st.lists(items, max_size=8), min_size=1, max_size=4).filter(any))
def test_every_item_is_in_exactly_the_bucket_of_its_aspect_and_resolution(
    shards: list[list[dict[str, Any]]],
) -> None:
    with TemporaryDirectory() as name:
        dataset = MultiresolutionDataset(write_cache(Path(name), *shards))
    given_items = [item for shard in shards for item in shard]
    assert len(dataset) == len(dataset.items) == len(given_items)
    groups = dataset.bucket_groups
    listed = sorted(index for group in groups.values() for index in group["indices"])
    assert listed == list(range(len(given_items)))
    for key, group in groups.items():
        assert key == (group["aspect_name"], group["resolution"])
        assert group["indices"] == sorted(group["indices"])
        for index in group["indices"]:
            item = given_items[index]
            width, height = item.get("bucket_resolution") or item["crop_resolution"]
            ratio = item.get("aspect_ratio", width / height)
            name = "tall" if ratio < 0.85 else "wide" if ratio > 1.18 else "square"
            assert key == (name, (width, height))


@given(st.lists(items, min_size=1, max_size=20))
def test_bucket_keys_are_sorted_by_pixels_and_then_by_key(listed: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as name:
        dataset = MultiresolutionDataset(write_cache(Path(name), listed))
    order = [(key[1][0] * key[1][1], key) for key in dataset.sorted_bucket_keys]
    assert order == sorted(set(order))
    assert set(dataset.sorted_bucket_keys) == set(dataset.bucket_groups)


def test_shards_are_read_in_the_order_of_the_metadata(tmp_path: Path) -> None:
    write_cache(tmp_path, [ITEM | {"id": 0}], [ITEM | {"id": 1}], [])
    name_shards(tmp_path, ["shard_1.json", "shard_2.json", "shard_0.json"])
    assert [item["id"] for item in MultiresolutionDataset(tmp_path).items] == [1, 0]


def test_shards_may_lie_in_folders_inside(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "0.json").write_text(json.dumps([ITEM]), encoding="utf-8")
    assert len(MultiresolutionDataset(name_shards(tmp_path, ["deep/0.json"]))) == 1


def test_bucket_resolution_wins_over_crop_resolution(tmp_path: Path) -> None:
    item = {"crop_resolution": [640, 384], "bucket_resolution": [512, 512]}
    dataset = MultiresolutionDataset(write_cache(tmp_path, [item]))
    assert dataset.sorted_bucket_keys == [("square", (512, 512))]


def test_an_item_comes_with_its_resolution_and_everything_else_it_had(tmp_path: Path) -> None:
    item = {"crop_resolution": [640, 320], "cache_file": "7.pt"}
    dataset = MultiresolutionDataset(write_cache(tmp_path, [ITEM, item]))
    assert (
        dataset[-1]
        == dataset[1]
        == {
            **item,
            "bucket_resolution": (640, 320),
            "aspect_ratio": 2.0,
        }
    )
    with pytest.raises(IndexError):
        dataset[2]


def test_changing_an_item_that_was_handed_out_changes_nothing(tmp_path: Path) -> None:
    dataset = MultiresolutionDataset(write_cache(tmp_path, [ITEM]))
    dataset[0]["crop_resolution"] = "gone"
    dataset[0]["added"] = True
    assert dataset[0]["crop_resolution"] == [512, 512]
    assert "added" not in dataset[0]


class Doubled(MultiresolutionDataset):
    def load_item(self, item: dict[str, Any]) -> int:
        return 2 * int(item["id"])


def test_a_subclass_loads_what_the_metadata_describes(tmp_path: Path) -> None:
    dataset = Doubled(write_cache(tmp_path, [ITEM | {"id": number} for number in range(5)]))
    batches = [batch.tolist() for batch in DataLoader(dataset, batch_sampler=[[4, 0], [3]])]
    assert batches == [[8, 0], [6]]


def test_a_dataset_survives_pickling(tmp_path: Path) -> None:
    dataset = Doubled(write_cache(tmp_path, [ITEM | {"id": 3}]))
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[0] == 6
    assert copy.bucket_groups == dataset.bucket_groups
    assert copy.fingerprint == dataset.fingerprint


def test_the_calculator_is_the_one_given(tmp_path: Path) -> None:
    calculator = BucketCalculator("1024p")
    write_cache(tmp_path, [ITEM])
    assert MultiresolutionDataset(tmp_path, calculator).calculator is calculator
    assert MultiresolutionDataset(tmp_path).calculator.get_dynamic_batch_size((256, 256), 4) == 16


@given(st.lists(resolutions, min_size=1, max_size=6), st.lists(resolutions, min_size=1, max_size=6))
def test_fingerprints_are_equal_exactly_if_the_listings_are(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    prints = []
    for listing in (first, second):
        with TemporaryDirectory() as name:
            shard = [{"crop_resolution": resolution} for resolution in listing]
            prints.append(MultiresolutionDataset(write_cache(Path(name), shard)).fingerprint)
    assert (prints[0] == prints[1]) == (first == second)


def test_the_fingerprint_does_not_depend_on_the_cut_into_shards(tmp_path: Path) -> None:
    other = {"crop_resolution": [640, 384]}
    whole = MultiresolutionDataset(write_cache(tmp_path, [ITEM, other])).fingerprint
    assert MultiresolutionDataset(write_cache(tmp_path, [ITEM], [other])).fingerprint == whole


@pytest.mark.matrix
def test_the_fingerprint_never_changes(tmp_path: Path) -> None:
    shard = [ITEM, {"crop_resolution": [640, 384]}, {"bucket_resolution": [384, 640]}]
    dataset = MultiresolutionDataset(write_cache(tmp_path, shard))
    assert dataset.fingerprint == "4125c5e682e6f75174973603ed4b81b5"


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A readable shard that no cache folder contains."""
    path = tmp_path_factory.mktemp("outside") / "secret.json"
    path.write_text(json.dumps([ITEM]), encoding="utf-8")
    return path


def test_an_absolute_shard_path_is_refused(tmp_path: Path, outside: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"metadata.json, shard 0.*relative path"):
        MultiresolutionDataset(name_shards(tmp_path, [str(outside)]))


def test_an_absolute_path_into_the_folder_is_refused_too(tmp_path: Path) -> None:
    write_cache(tmp_path, [ITEM])
    with pytest.raises(InvalidValueError, match="relative path"):
        MultiresolutionDataset(name_shards(tmp_path, [str(tmp_path / "shard_0.json")]))


def test_a_shard_path_that_climbs_out_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (tmp_path / "secret.json").write_text(json.dumps([ITEM]), encoding="utf-8")
    with pytest.raises(InvalidValueError, match=r"shard 0.*without '\.\.'"):
        MultiresolutionDataset(name_shards(folder, ["../secret.json"]))


@pytest.mark.parametrize(
    "name",
    [
        "a/../../secret.json",
        "a/..",
        "..",
        "..\\secret.json",
        "a\\..\\..\\secret.json",
        "C:\\secret.json",
        "C:secret.json",
        "\\\\host\\share\\secret.json",
        "//host/share/secret.json",
        "/dev/stdin",
    ],
)
def test_a_path_that_could_lead_outside_on_any_system_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match="relative path"):
        MultiresolutionDataset(name_shards(tmp_path, [name]))


def test_a_shard_that_links_out_of_the_folder_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "link.json").symlink_to(outside)
    with pytest.raises(InvalidValueError, match=r"shard 0: 'link.json' is a link.*inside.*; copy"):
        MultiresolutionDataset(name_shards(tmp_path, ["link.json"]))


def test_a_shard_behind_a_folder_that_links_out_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "inner").symlink_to(outside.parent, target_is_directory=True)
    with pytest.raises(InvalidValueError, match="is a link"):
        MultiresolutionDataset(name_shards(tmp_path, ["inner/secret.json"]))


def test_metadata_that_links_out_of_the_folder_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "metadata.json").symlink_to(outside)
    with pytest.raises(InvalidValueError, match="is a link"):
        MultiresolutionDataset(tmp_path)


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    write_cache(tmp_path, [ITEM])
    (tmp_path / "link.json").symlink_to("shard_0.json")
    assert len(MultiresolutionDataset(name_shards(tmp_path, ["link.json"]))) == 1


def test_a_cache_folder_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    write_cache(folder, [ITEM])
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    assert len(MultiresolutionDataset(tmp_path / "link")) == 1


def test_links_in_a_loop_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    with pytest.raises(InvalidValueError, match="must be the name of a file"):
        MultiresolutionDataset(name_shards(tmp_path, ["a.json"]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InvalidValueError, match="must be a plain file"):
        MultiresolutionDataset(name_shards(tmp_path, ["pipe.json"]))


@pytest.mark.parametrize("name", ["", ".", "x" * 5000, "a\0b", "\ud800.json", "folder"])
def test_a_name_that_no_file_can_have_is_refused_in_few_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidValueError, match="shard 0") as caught:
        MultiresolutionDataset(name_shards(tmp_path, [name]))
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_a_shard_listed_twice_is_refused(tmp_path: Path) -> None:
    write_cache(tmp_path, [ITEM])
    with pytest.raises(InvalidValueError, match=r"shard 1: './shard_0.json' is listed twice"):
        MultiresolutionDataset(name_shards(tmp_path, ["shard_0.json", "./shard_0.json"]))


def test_a_file_too_large_is_refused_without_reading_it(tmp_path: Path) -> None:
    name_shards(tmp_path, ["big.json"])
    (tmp_path / "big.json").touch()
    os.truncate(tmp_path / "big.json", MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidValueError, match=rf"big.json has {MAX_FILE_BYTES + 1} bytes"):
        MultiresolutionDataset(tmp_path)


def test_a_missing_folder_metadata_or_shard_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cache_dir=.*absent' does not exist; check"):
        MultiresolutionDataset(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"metadata.json does not exist"):
        MultiresolutionDataset(tmp_path)
    write_cache(tmp_path, [ITEM])
    with pytest.raises(FileNotFoundError, match=r"shard 1: 'gone.json' does not exist"):
        MultiresolutionDataset(name_shards(tmp_path, ["shard_0.json", "gone.json"]))


@pytest.mark.parametrize("bad", [None, 7])
def test_a_folder_that_is_not_a_path_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidValueError, match="must be the path of a folder"):
        MultiresolutionDataset(bad)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidValueError, match="must be a folder"):
        MultiresolutionDataset(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\xfa", b'{"shards": NaN}', b"[" * 200_000, b"1" * 5000],
    ids=["empty", "cut", "not-text", "nan", "deep", "huge-number"],
)
def test_files_that_are_not_json_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metadata.json").write_bytes(content)
    with pytest.raises(InvalidValueError, match=r"metadata\.json "):
        MultiresolutionDataset(tmp_path)
    name_shards(tmp_path, ["0.json"])
    (tmp_path / "0.json").write_bytes(content)
    with pytest.raises(InvalidValueError, match=r"0\.json "):
        MultiresolutionDataset(tmp_path)


@pytest.mark.parametrize("content", [[], ["a.json"], {}, {"shards": "a.json"}, {"shards": None}, 1])
def test_metadata_without_a_list_of_shards_is_refused(tmp_path: Path, content: Any) -> None:
    (tmp_path / "metadata.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InvalidValueError, match=r"metadata.json must hold an object.*'shards'"):
        MultiresolutionDataset(tmp_path)


@pytest.mark.parametrize("name", [None, 3, ["a.json"], {"path": "a.json"}])
def test_a_shard_name_that_is_not_a_string_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"shard 0: .* must be a file name"):
        MultiresolutionDataset(name_shards(tmp_path, [name]))


@pytest.mark.parametrize("shards", [[], [[]], [[], []]])
def test_a_cache_without_items_is_refused(tmp_path: Path, shards: list[Any]) -> None:
    with pytest.raises(InvalidValueError, match="hold 0 items but must hold at least 1"):
        MultiresolutionDataset(write_cache(tmp_path, *shards))


@pytest.mark.parametrize("shard", [{}, {"items": []}, "items", 1, None, True])
def test_a_shard_that_is_not_a_list_is_refused(tmp_path: Path, shard: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"shard_1.json holds .* must hold a list"):
        MultiresolutionDataset(write_cache(tmp_path, [ITEM], shard))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (None, "is null but must be an object"),
        ([512, 512], "is a list but must be an object"),
        ({}, "has no resolution"),
        ({"aspect_ratio": 1.0, "crop_resolution": None}, "has no resolution"),
        ({"crop_resolution": [0, 512]}, r"crop_resolution=\[0, 512\] must be \[width, height\]"),
        ({"bucket_resolution": [512, -1]}, r"bucket_resolution=\[512, -1\] must be"),
        ({"crop_resolution": [512.0, 512]}, "two integers"),
        ({"crop_resolution": ["512", 512]}, "two integers"),
        ({"crop_resolution": [True, 512]}, "two integers"),
        ({"crop_resolution": [512]}, "two integers"),
        ({"crop_resolution": [512, 512, 3]}, "two integers"),
        ({"crop_resolution": 512}, "two integers"),
        ({"crop_resolution": "512x512"}, "two integers"),
        ({"crop_resolution": {"0": 1, "1": 2}}, "two integers"),
        ({"crop_resolution": [MAX_SIDE + 1, 512]}, rf"in \[1, {MAX_SIDE}\]"),
        ({"crop_resolution": [10**4000, 512]}, "two integers"),
        (ITEM | {"bucket_resolution": [0, 0]}, "bucket_resolution"),
        (ITEM | {"aspect_ratio": 0}, "aspect_ratio=0 must be a finite number above 0"),
        (ITEM | {"aspect_ratio": -1.5}, "aspect_ratio"),
        (ITEM | {"aspect_ratio": "1.5"}, "aspect_ratio"),
        (ITEM | {"aspect_ratio": True}, "aspect_ratio"),
        (ITEM | {"aspect_ratio": 10**400}, "aspect_ratio"),
    ],
)
def test_a_faulty_item_is_refused_by_shard_and_number(
    tmp_path: Path, item: Any, message: str
) -> None:
    with pytest.raises(InvalidValueError, match=rf"shard_1.json, item 2\b.*{message}") as caught:
        MultiresolutionDataset(write_cache(tmp_path, [ITEM], [ITEM, ITEM, item, ITEM]))
    assert isinstance(caught.value, FeedlineError)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_an_infinite_ratio_written_as_a_number_is_refused(tmp_path: Path) -> None:
    name_shards(tmp_path, ["0.json"])
    text = '[{"crop_resolution": [512, 512], "aspect_ratio": 1e999}]'
    (tmp_path / "0.json").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValueError, match=r"0.json, item 0: aspect_ratio=inf"):
        MultiresolutionDataset(tmp_path)

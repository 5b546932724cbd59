"""Stores: samples on disk, in chunks, read by chunk and row without running anything in a file."""

from feedline.store.columns import Column
from feedline.store.folder import FolderStore
from feedline.store.protocol import PartedStore, Store

__all__ = ["Column", "FolderStore", "PartedStore", "Store"]

"""Stores: samples on disk, in chunks; reading never runs code from a file."""

from feedline.lazy import moved
from feedline.store.anndata_store import open_anndata
from feedline.store.columns import Column
from feedline.store.folder import FolderStore
from feedline.store.lists import Lists
from feedline.store.matrix import MatrixStore, MemoryMatrix
from feedline.store.matrix_samples import MatrixSamples
from feedline.store.opening import open
from feedline.store.protocol import PartedStore, Store, is_store
from feedline.store.tokens import TokenStore
from feedline.store.verifying import Fault, VerifyResult
from feedline.store.zarr_store import CsrStore, DenseStore

__all__ = [
    "AnnDataPackResult",
    "Column",
    "CsrStore",
    "DenseStore",
    "Fault",
    "FolderStore",
    "Lists",
    "MatrixSamples",
    "MatrixStore",
    "MemoryMatrix",
    "PackResult",
    "PartedStore",
    "Store",
    "TokenStore",
    "VerifyResult",
    "is_store",
    "open",
    "open_anndata",
    "pack",
    "pack_anndata",
    "verify",
]

# Names that moved to another room stay importable from here.
_MOVED = {
    "AnnDataPackResult": "feedline.packing",
    "PackResult": "feedline.packing",
    "pack": "feedline.packing",
    "pack_anndata": "feedline.packing",
    "verify": "feedline.packing",
}
__getattr__ = moved(__name__, _MOVED)

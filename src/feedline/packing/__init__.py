"""Packing: any source, written as a folder of chunks, or AnnData files as one shuffled group."""

from feedline.packing.anndata.packer import AnnDataPackResult, pack_anndata
from feedline.packing.formats import FORMATS
from feedline.packing.indexing import IndexResult, build_index
from feedline.packing.needs import PackNeeds, pack_needs
from feedline.packing.packer import PackResult, pack
from feedline.packing.verifying import verify

__all__ = [
    "FORMATS",
    "AnnDataPackResult",
    "IndexResult",
    "PackNeeds",
    "PackResult",
    "build_index",
    "pack",
    "pack_anndata",
    "pack_needs",
    "verify",
]

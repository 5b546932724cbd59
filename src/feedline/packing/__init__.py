"""Packing: any source, written as a folder of chunks, or AnnData files as one shuffled group."""

from feedline.packing.anndata.packer import AnnDataPackResult, pack_anndata
from feedline.packing.formats import FORMATS
from feedline.packing.needs import PackNeeds, pack_needs
from feedline.packing.packer import PackResult, pack

__all__ = [
    "FORMATS",
    "AnnDataPackResult",
    "PackNeeds",
    "PackResult",
    "pack",
    "pack_anndata",
    "pack_needs",
]

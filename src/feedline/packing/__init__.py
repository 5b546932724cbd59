"""Packing: any source, written as a folder of chunks, or AnnData files as one shuffled group."""

from feedline.packing.anndata.packer import AnnDataPackResult, pack_anndata
from feedline.packing.formats import FORMATS
from feedline.packing.packer import PackResult, pack

__all__ = ["FORMATS", "AnnDataPackResult", "PackResult", "pack", "pack_anndata"]

"""Packing AnnData: files, `.h5ad` or zarr, written as one shuffled, sharded zarr group."""

from feedline.packing.anndata.packer import AnnDataPackResult, pack_anndata

__all__ = ["AnnDataPackResult", "pack_anndata"]

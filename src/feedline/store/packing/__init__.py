"""Packing: any source, written as a folder of chunks, and the check of such a folder."""

from feedline.store.packing.formats import FORMATS
from feedline.store.packing.pack import PackResult, pack
from feedline.store.verify import Fault, VerifyResult, verify

__all__ = ["FORMATS", "Fault", "PackResult", "VerifyResult", "pack", "verify"]

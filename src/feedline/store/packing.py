"""The names of `feedline.packing`, which was a part of this room."""

from feedline.lazy import moved

_MOVED = {
    "FORMATS": "feedline.packing",
    "Fault": "feedline.store",
    "PackResult": "feedline.packing",
    "VerifyResult": "feedline.store",
    "pack": "feedline.packing",
    "verify": "feedline.store",
}
__getattr__ = moved(__name__, _MOVED)

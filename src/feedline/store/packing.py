"""The names of `feedline.packing`, which was once a part of `feedline.store`."""

from feedline.lazy import moved

_MOVED = {
    "FORMATS": "feedline.packing",
    "Fault": "feedline.store",
    "PackResult": "feedline.packing",
    "VerifyResult": "feedline.store",
    "pack": "feedline.packing",
    "verify": "feedline.packing",
}
__getattr__ = moved(__name__, _MOVED)

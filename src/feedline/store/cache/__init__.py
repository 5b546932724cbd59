"""A folder of whole files that all processes of a node share, with a limit of bytes."""

from feedline.store.cache.file_cache import FileCache, NoRoomError, default_folder
from feedline.store.cache.meters import CacheMeters

__all__ = ["CacheMeters", "FileCache", "NoRoomError", "default_folder"]

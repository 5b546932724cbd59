"""A folder of whole files that all processes of a node share, with a limit of bytes."""

from feedline.store.cache.file_cache import CacheMeters, FileCache, NoRoomError, default_folder

__all__ = ["CacheMeters", "FileCache", "NoRoomError", "default_folder"]

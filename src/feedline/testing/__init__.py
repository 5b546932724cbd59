"""Conformance suites: run them on a store or a loader of your own, in your own tests."""

from feedline.testing.loaders import check_loader
from feedline.testing.stores import check_store

__all__ = ["check_loader", "check_store"]

"""Batches on a device: slabs that are copied whole, windows that are shuffled there, any loader."""

"""Batches on a device: those of a store in slabs, and those of any loader one by one."""

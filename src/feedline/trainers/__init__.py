"""Feedline in the trainers of others: one module a framework, each an extra.

Import the module by its name, such as `feedline.trainers.accelerate`; this package imports none.
"""

"""Feedline computes which sample every process of a training run sees at every step."""

__version__ = "0.1.0"

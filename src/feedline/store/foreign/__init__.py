"""Data that others wrote, opened in place: one file for each format."""

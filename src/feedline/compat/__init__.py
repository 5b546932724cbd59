"""The names, states and orders of other systems, on top of Feedline's own.

Users know them from `feedline.torch` and `feedline.steps`, which serve them from here. Nothing in
the core knows of anything in this room.
"""

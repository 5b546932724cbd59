"""The names, states and orders of other systems, on top of Feedline's own.

Users import them from `feedline.torch` and `feedline.steps`. The core does not depend on this
package.
"""

"""Hygon's device plugin."""

from dialects.plain import rows

ROWS = rows("dcu.com/gpu", "hygon", "Hygon's device plugin")

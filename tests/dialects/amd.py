"""AMD's device plugin."""

from dialects.plain import rows

ROWS = rows("amd.com/gpu", "amd", "AMD's device plugin")

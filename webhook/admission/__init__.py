"""Pods as they are created: translated and validated."""

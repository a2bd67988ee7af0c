"""Gangs that are bound as a whole or not at all: room is held for all of their Pods before any is scheduled."""

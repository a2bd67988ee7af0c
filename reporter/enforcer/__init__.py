"""The enforcer: a process of its own that edits containers as they are created, so that what was decided holds."""

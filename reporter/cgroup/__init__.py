"""The cpusets of containers: where they are, what they should be, and in which order they are written."""

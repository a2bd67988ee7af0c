"""Quotas and LimitRanges that name devices: what they limit for Pods that admission has translated."""

"""Whether containers see what was decided for them."""

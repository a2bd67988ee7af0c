"""Devices and who holds them: `top` and `pod` show them, `cordon`, `uncordon` and `drain` act on one."""

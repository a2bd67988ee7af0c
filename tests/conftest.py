"""How properties are tried: no deadline (machines are shared), and in CI the same examples every time."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("koordgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("koordgate"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "koordgate")

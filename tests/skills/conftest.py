"""How the property tests of this floor run."""

from hypothesis import HealthCheck, settings

# no clock decides a test
settings.register_profile("skills", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("skills")

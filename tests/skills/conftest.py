"""How the property tests of this floor run."""

from hypothesis import settings

settings.register_profile("skills", deadline=None)  # no clock decides a test
settings.load_profile("skills")

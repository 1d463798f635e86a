"""How fast a governed call is beside a bare request and reply on the same broker, in the same run."""

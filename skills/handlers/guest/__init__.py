"""What runs beside a handler, in this process or in a host process: of the standard library alone, it starts fast."""

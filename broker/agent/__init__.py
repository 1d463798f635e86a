"""The A2A agent that the bus serves: operations, answers, streams, cancels, and its card."""

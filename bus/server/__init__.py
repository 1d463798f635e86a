"""The serving side: takes requests, runs the agent, answers, and only then acknowledges."""

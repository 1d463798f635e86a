"""Where effects run: the episodes' worktrees, and the repositories that they come from."""

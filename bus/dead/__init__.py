"""What no server answered: the reader that answers for it, and what is kept for people."""

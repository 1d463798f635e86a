"""What is kept, durably, before anyone is told: the tables, and the transactions upon them."""

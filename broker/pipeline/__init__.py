"""The way of one call: admit, plan, reserve, execute, finish, commit; and what is left over by others."""

"""Push notifications: who is to be told of a task, and the delivery that any worker goes on with."""

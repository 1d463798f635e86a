"""The in-process broker: the same promises as RabbitMQ, within one process."""

"""How Skillbus is run: configuration, logging, the command line, a private RabbitMQ node."""

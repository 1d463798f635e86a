"""The driver for RabbitMQ: aio-pika opens connections and declares; messages travel in frames of our own."""

"""RabbitMQ: publishes messages to queues and exchanges."""

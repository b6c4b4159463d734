"""RabbitMQ's definitions.json: a document for the import, and the list of what is not in it."""

from lightrail.cli.administration.rabbitmq.conversion import convert, is_rabbitmq
from lightrail.cli.administration.rabbitmq.queues import DefinitionsError, NotMapped

__all__ = ["DefinitionsError", "NotMapped", "convert", "is_rabbitmq"]

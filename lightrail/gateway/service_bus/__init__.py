"""The administration of Azure Service Bus's clients: its entities over HTTP, as Atom entries."""

"""Administration for clients of Azure Service Bus: its entities over HTTP, as Atom entries."""

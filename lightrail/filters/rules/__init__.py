"""The SQL language of Azure Service Bus' rules: filters and actions of its topics' subscriptions."""

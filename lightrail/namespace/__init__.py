"""The namespace: names and their policies, users' rights on names, and the routes of messages."""

"""The namespace: names and their policies, users' rights on them, and the routes of messages sent to them."""

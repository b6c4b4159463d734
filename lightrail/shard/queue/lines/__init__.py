"""Runs of messages in lines, and the consumers with what is in flight at them."""

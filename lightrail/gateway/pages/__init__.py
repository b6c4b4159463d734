"""The web pages of the gateway at /!ui: rendered here, with a little script, and nothing from elsewhere."""

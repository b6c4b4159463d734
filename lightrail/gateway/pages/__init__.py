"""The web pages of the gateway at /!ui: rendered here, with a little script and nothing of other sites."""

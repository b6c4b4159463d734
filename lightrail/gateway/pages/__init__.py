"""The web pages of the gateway at /!ui: rendered here, with little script and no resources of other sites."""

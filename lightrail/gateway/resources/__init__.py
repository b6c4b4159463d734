"""HTTP resources: each module has the handlers of one resource."""

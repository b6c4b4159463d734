"""HTTP resources: each module holds the handlers of one of them."""

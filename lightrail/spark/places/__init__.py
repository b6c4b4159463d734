"""Places: where segments of journals are, archive folders and gateways, behind one listing."""

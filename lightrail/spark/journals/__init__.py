"""Journals and their segments, which are read from archive folders and gateways, behind one listing."""

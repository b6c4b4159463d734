"""Other processes of the installation: who they are, whether they serve, what they measure."""

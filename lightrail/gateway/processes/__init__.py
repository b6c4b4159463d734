"""Other processes of the installation: their roles and addresses, their health and their metrics."""

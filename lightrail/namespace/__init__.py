"""The namespace: what names are, who may do what with them, and where messages to them go."""

"""How files are written and read, below agents and runs."""

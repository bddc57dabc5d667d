"""The learning server: robots in any language act and learn over HTTP, and a person can watch and take over."""

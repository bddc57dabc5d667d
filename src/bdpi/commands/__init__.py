"""Commands of ``bdpi`` that are groups of their own."""

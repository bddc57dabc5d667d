"""The paper's figures, measured again: curves, claims, and the pages that say what came out."""

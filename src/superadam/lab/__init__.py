"""Section 6 of the paper as software: its tasks, models and data, on the paper's scale and on a laptop's.

Comes with `pip install superadam[lab]`; `import superadam` does not import it.
"""

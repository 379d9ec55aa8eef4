"""What was tried and found. Each folder holds the evidence for one question: README.md lists them.

Run a script from the repository's root, as `python -m research.rates.rates`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))  # style.py: how all pictures look

"""Lets the tests of this folder import the model that they share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

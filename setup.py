"""What pyproject.toml cannot say: README with absolute links, and addresses. See scripts/wheel/wheel_backend.py."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent / "scripts" / "wheel"))

from wheel_backend import description

setup(**description())

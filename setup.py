"""What pyproject.toml cannot say: the extension modules of a compiled build, README with absolute links, and addresses.

See scripts/wheel/wheel_backend.py.
"""

import sys
import tempfile
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent / "scripts" / "wheel"))

from wheel_backend import description, extensions, is_compiled

# setuptools also runs this file for the requirements and for the metadata.
if is_compiled() and "bdist_wheel" in sys.argv:
    # All that a build makes is left out of the tree: neither a checkout nor a later build picks it up.
    with tempfile.TemporaryDirectory() as folder:
        setup(**description(), ext_modules=extensions(folder), options={"build": {"build_base": folder}})
else:
    setup(**description())

"""What tests of forks share."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, Final

import pytest

from . import TIMEOUT_S

forks: Final = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),  # Python 3.12: there are threads
]
"""The marks of a module whose tests fork."""


def in_child(action: Callable[[], Any]) -> Any:
    """What `action` returns in a forked child, or the error that it raises there; fails the test if it hangs."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                answer = action()
            except BaseException as error:
                answer = (type(error), str(error))
            os.write(write_end, pickle.dumps(answer))
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    try:
        answered = wait([read_end], TIMEOUT_S)  # any number of files may be open, which select cannot take
        if not answered:
            os.kill(pid, signal.SIGKILL)
        data = os.read(read_end, 65536)
    finally:
        os.close(read_end)
        os.waitpid(pid, 0)
    assert answered, f"the child hangs in {action}"
    return pickle.loads(data)

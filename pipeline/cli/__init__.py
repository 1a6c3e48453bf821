"""The pipeline's subcommands of the `dispatcher` command.

Names are imported on first access: `doctor` has to work without the packages whose absence it tells.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.cli.doctor_command import doctor
    from pipeline.cli.replay_command import replay
    from pipeline.cli.report_command import report
    from pipeline.cli.sweep_command import sweep
    from pipeline.cli.yarn_command import yarn_log

_MODULE_OF = {
    "doctor": "doctor_command",
    "replay": "replay_command",
    "report": "report_command",
    "sweep": "sweep_command",
    "yarn_log": "yarn_command",
}

__all__ = ["doctor", "replay", "report", "sweep", "yarn_log"]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)

"""The data pipeline: calls of services, lookups, reports, on Spark and without it."""

try:
    import dispatcher.errors as _  # noqa: F401 - whether it is ours
except ModuleNotFoundError as error:
    if error.name != "dispatcher.errors":  # a dependency of it
        raise
    import dispatcher

    raise ImportError(
        f"{__name__} needs the package dispatcher of central-dispatcher, but Python finds another dispatcher at "
        f"{dispatcher.__file__}: rename or remove that one, or take it off PYTHONPATH",
        name="dispatcher",
        path=dispatcher.__file__,
    ) from error

"""GET /jmx: the beans of Hadoop's ResourceManager that exporters read, with Hadoop's parameters `qry` and `get`.

object_names   names and patterns of beans
beans          the beans themselves, made of one publication, and the endpoint
"""

from statemachines.resourcemanager.web.jmx.beans import route

__all__ = ["route"]

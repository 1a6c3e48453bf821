"""GET /jmx: the beans of Hadoop's ResourceManager that exporters read, with Hadoop's parameters `qry` and `get`.

endpoint       what is asked for
object_names   names and patterns of beans
beans          the beans themselves, made of one publication
"""

from statemachines.resourcemanager.web.jmx.endpoint import route

__all__ = ["route"]

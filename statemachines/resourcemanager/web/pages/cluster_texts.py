"""Texts of a resource manager's pages: amounts of resources, and why an application waits."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from markupsafe import Markup, escape

from dispatcher.pages.page_texts import clean
from dispatcher.util.figures import memory, thousandths, trimmed
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.reports import WaitReason


def resource(amount: Resource) -> str:
    """
    >>> resource(Resource(4096, 2000, 1, 500))
    '4 GB, 2 vcores, 0.5 GPUs'
    """
    cores = thousandths(amount.vcores_milli)
    parts = [memory(amount.memory_mb), f"{cores} vcore" if cores == "1" else f"{cores} vcores"]
    if amount.gpus:
        gpus = trimmed(amount.gpu_milli_total / 1000)
        parts.append(f"{gpus} GPU" if gpus == "1" else f"{gpus} GPUs")
    return ", ".join([*parts, *(f"{number:,} {name}" for name, number in amount.others)])


def linked(text: str, reason: WaitReason) -> Markup:
    """A reason's sentence, or its beginning, in which its queue, its node and its user are links."""
    names = {
        # Where its noun stands in front: a user may be called "node".
        "queue": (r"(?<=\bqueue )", reason.queue, "/cluster/apps?queue="),
        "user": (r"(?<=\buser )", reason.user, "/cluster/apps?user="),
        "node": (r"(?<![\w.-])", reason.node, "/cluster/node/"),
    }
    kinds = "|".join(f"(?P<{kind}>{where}{re.escape(name)})" for kind, (where, name, _) in names.items() if name)
    made, done = Markup(), 0
    for found in re.finditer(rf"(?:{kinds})(?![\w-]|[.:]\w)", text) if kinds else ():
        address = names[str(found.lastgroup)][2] + quote(found[0], safe="")
        made += escape(clean(text[done : found.start()]))
        made += Markup('<a href="{}">{}</a>').format(address, clean(found[0]))
        done = found.end()
    return made + escape(clean(text[done:]))


FILTERS: Final = {"resource": resource, "linked": linked}

"""The stage of scenarios about the ops API: a daemon's dispatcher, and what a client is told of it.

A look is `PATH#FIELD,FIELD`: these fields of each item of an answer, or of the answer itself, joined by colons. A path
without a slash in front is of the dispatcher `central`. Dots lead into a field. `!PATH` is the status of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dispatcher import AsyncDispatcher, Retry
from dispatcher.metrics.transition_ring import ring

from ...kit import OfEntity, Work, until
from .client import WAIT_S, Client, Job, JobEvent, hanging

NS_PER_S = 1_000_000_000


def keep(*rows: tuple[str, str, str, str, str | None], since_s: int = 1, most: int | None = 100) -> None:
    """The process keeps transitions (entity, machine, from, event, to), a second apart.

    `most`: how many transitions the process keeps from now on; None leaves the limit unchanged.
    """
    if most is not None:
        ring.resize(most)
    ring.add([(*row, (since_s + number) * NS_PER_S) for number, row in enumerate(rows)])


def fail(event: Any) -> None:
    raise ConnectionError("it is down")


class OpsStage:
    """The dispatcher `central` fails at FAIL, hangs at HANG, and tries the events of `retry` again in an hour."""

    def __init__(self, client: Client, **options: Any) -> None:
        self._client = client
        self._left = ExitStack()
        self._central = self._left.enter_context(hanging("central", **options))
        self._central.dispatcher.register(Work, fail, on_error=Retry(delay_s=3600, max_delay_s=3600, jitter=0))
        self._kept: list[object] = []

    def close(self) -> None:
        self._left.close()

    def play(self, verb: str, *words: str) -> None:
        central = self._central.dispatcher
        match verb:
            case "post" | "fail":
                type, entities = (Job.FAIL, words) if verb == "fail" else (Job[words[0]], words[1:])
                for entity in entities or (None,):
                    self._central.post(type, entity)
                if verb == "fail":
                    assert central.await_drained(WAIT_S)
            case "hang":
                self._central.hang(*words)
            case "mail":
                central.mailbox_executor.execute(self._central.hang_here, " ".join(words))
                assert self._central.entered.wait(WAIT_S)
            case "retry":
                for entity in words:
                    central.post(OfEntity(entity))
                until(lambda: central.stats().retrying >= len(words))
            case "after":
                delay_s, key, *entity = words
                central.post_after(float(delay_s), JobEvent(Job.START, *entity), key=key)
            case "every":
                period_s, key = words
                central.post_every(float(period_s), JobEvent(Job.START), key=key)
            case "cron":
                key, *rule = words
                central.post_every(cron=" ".join(rule), event=JobEvent(Job.START), key=key)
            case "make":
                self._kept += [AsyncDispatcher(name=name.replace("_", " ")) for name in words]
            case "drained":
                assert central.await_drained(WAIT_S)
            case _:
                raise ValueError(verb)

    def look(self, what: str) -> Iterable[object]:
        return looked(self._client, what, "central")


def looked(client: Client, what: str, dispatcher: str) -> Iterable[object]:
    """A look, as above; a path without a slash in front is of the dispatcher."""
    path, _, fields = what.removeprefix("!").partition("#")
    base = "" if path.startswith("/") else f"/dispatchers/{dispatcher}{'/' if path[:1] not in ('', '?') else ''}"
    found = client.request("GET", f"{base}{path}")
    if what.startswith("!"):
        return [found.status_code]
    assert found.status_code == 200, found.text
    return told(found.json(), fields)


def told(found: Any, fields: str) -> Iterator[str]:
    """The fields of each item, or of the answer where it has the first of them itself."""
    names = fields.split(",")
    is_list = isinstance(found, dict) and "items" in found and names[0].partition(".")[0] not in found
    for each in found["items"] if is_list else [found]:
        yield ":".join(str(_field(each, name)) for name in names)


def _field(found: Any, name: str) -> Any:
    for part in name.split("."):
        if found is not None:
            found = found[int(part) if part.isdigit() else part]
    return found


@contextmanager
def ops_stage(client: Client, **options: Any) -> Iterator[OpsStage]:
    stage = OpsStage(client, **options)
    try:
        yield stage
    finally:
        stage.close()

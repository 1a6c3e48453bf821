"""Calls of other threads: results, futures, timeouts, cancellation, and the end of the resource manager."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from dispatcher.mailbox import RejectedExecutionError
from statemachines.resourcemanager import (
    ApplicationNotFoundError,
    ApplicationSubmission,
    Resource,
    ResourceManager,
    ResourceManagerConfig,
)
from statemachines.resourcemanager.services.handler_calls import HandlerThreadService, later, on_handler_thread

from ....kit.holding import held
from ..inner import AdminService, ClientRMService, InvalidRequestError
from .desk import TIMEOUT_S, Desk, HandlerThread

SUBMISSION = ApplicationSubmission("wordcount", Resource(1024, 1000), "alice", "root.a")
NO_APP = "application_0_0009"
STOPPED = "the resource manager has stopped"


class Blackboard(HandlerThreadService):
    """A service that writes what it is told, on the handler thread."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.context)
        self.written: list[str] = []  # handler thread, and the tests once that is idle

    @on_handler_thread
    def write(self, text: str, *, timeout: float | None = None) -> Callable[[], int]:
        if not text:
            raise InvalidRequestError("nothing to write")

        def write() -> int:
            if text == "out of time":
                raise TimeoutError("of the blackboard")
            self.written.append(text)
            return len(self.written)

        return write

    write_later = later(write)


@pytest.fixture
def board(desk: Desk, handler: HandlerThread) -> Blackboard:
    return Blackboard(desk)


# -- every call has both forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", [ClientRMService, AdminService])
def test_every_call_has_a_timeout_and_a_form_without_blocking(service: type[HandlerThreadService]) -> None:
    own = {name: member for name, member in vars(service).items() if inspect.isfunction(member) and name[0] != "_"}
    calls = {name for name in own if not name.endswith("_later") and name not in ("service_stop", "restore")}

    assert len(calls) > 3
    assert {name.removesuffix("_later") for name in own if name.endswith("_later")} == calls
    for name in calls:
        assert inspect.signature(own[name]).parameters["timeout"].default is None, name
        assert own[f"{name}_later"].__name__ == f"{name}_later"


# -- results ----------------------------------------------------------------------------------------------------------


def test_call_returns_what_the_handler_thread_did(board: Blackboard) -> None:
    assert (board.write("a"), board.write("b", timeout=TIMEOUT_S), board.written) == (1, 2, ["a", "b"])


def test_calls_of_the_handler_thread_itself_are_made_at_once(board: Blackboard, handler: HandlerThread) -> None:
    def calling() -> tuple[int, bool, int]:
        first, second = board.write("a"), board.write_later("b")
        return first, second.done(), second.result()

    assert handler.call(calling) == (1, True, 2)


def test_errors_of_a_call_are_its_callers(board: Blackboard, handler: HandlerThread) -> None:
    with pytest.raises(InvalidRequestError, match="nothing to write"):
        board.write("")
    with pytest.raises(TimeoutError, match="of the blackboard"):
        board.write("out of time", timeout=TIMEOUT_S)
    for answer, error in (
        (board.write_later(""), InvalidRequestError),
        (board.write_later("out of time"), TimeoutError),
        (handler.call(lambda: board.write_later("out of time")), TimeoutError),
    ):
        with pytest.raises(error):
            answer.result(TIMEOUT_S)


# -- changes that are stored ------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[ClientRMService, str], Future[Any]]] = {
    "move": lambda clients, app: clients.move_application_across_queues_later(app, "root.b"),
    "priority": lambda clients, app: clients.update_application_priority_later(app, 7),
    "lifetime": lambda clients, app: clients.update_application_timeouts_later(app, 60),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("on_handler", [False, True])
def test_client_is_answered_once_its_change_is_stored(
    desk: Desk, handler: HandlerThread, change: Callable[[ClientRMService, str], Future[Any]], on_handler: bool
) -> None:
    """It was answered before: a kill of the process at that moment lost the change."""
    app, clients = desk.app("RUNNING"), ClientRMService(desk.context)

    answer = handler.call(lambda: change(clients, app.entity)) if on_handler else change(clients, app.entity)
    handler.flush()
    before = answer.done()
    (event,) = desk.posted.events
    handler.call(event.on_stored)

    assert (before, answer.done(), desk.posted.news()) == (False, True, ["RMStateStore UPDATE_APP"])
    assert answer.result() in (None, 7, app.submit_ms + 60_000)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("on_handler", [False, True])
def test_stop_fails_changes_that_are_not_stored(
    desk: Desk, handler: HandlerThread, change: Callable[[ClientRMService, str], Future[Any]], on_handler: bool
) -> None:
    app, clients = desk.app("RUNNING"), ClientRMService(desk.context)
    answer = handler.call(lambda: change(clients, app.entity)) if on_handler else change(clients, app.entity)
    handler.flush()

    clients.stop()

    with pytest.raises(RejectedExecutionError, match="it may have been done nevertheless"):
        answer.result(0)
    handler.call(desk.posted.events[0].on_stored)  # too late: it is dropped


def test_change_of_nothing_is_answered_without_the_store(desk: Desk, handler: HandlerThread) -> None:
    running, ended = desk.app("RUNNING", queue="root.a"), desk.app("FINISHED", priority=3)
    clients = ClientRMService(desk.context)

    for same in ("root.a", desk.scheduler.queue):  # as it was submitted, and its path
        clients.move_application_across_queues(running.entity, str(same), timeout=TIMEOUT_S)
    priority = clients.update_application_priority(ended.entity, 7, timeout=TIMEOUT_S)
    deadline = clients.update_application_timeouts(ended.entity, 7, timeout=TIMEOUT_S)

    assert (priority, deadline, desk.posted.events) == (3, None, [])


# -- a handler that hangs ---------------------------------------------------------------------------------------------


def test_caller_waits_at_most_for_its_timeout_and_nothing_is_done(board: Blackboard, handler: HandlerThread) -> None:
    with (
        handler.held(),
        pytest.raises(TimeoutError, match=r"write: the handler thread .* did not answer within 0.001 s; nothing was"),
    ):
        board.write("a", timeout=0.001)
    handler.flush()

    assert board.written == []


def test_caller_whose_call_has_begun_is_told_that_it_may_still_be_done(desk: Desk, handler: HandlerThread) -> None:
    is_under_way, go_on = threading.Event(), threading.Event()

    class Slow(HandlerThreadService):
        @on_handler_thread
        def write(self, *, timeout: float | None = None) -> Callable[[], bool]:
            return lambda: (is_under_way.set(), go_on.wait(TIMEOUT_S))[1]

    slow = Slow(desk.context)
    execute = desk.context.execute

    def executing(function: Callable[[], Any]) -> None:
        execute(function)
        assert is_under_way.wait(TIMEOUT_S)

    desk.context.execute = executing

    with pytest.raises(TimeoutError, match="it may still be done"):
        slow.write(timeout=0)
    go_on.set()
    handler.flush()


def test_future_fails_if_the_handler_thread_comes_too_late(board: Blackboard, handler: HandlerThread) -> None:
    with handler.held():
        answer = board.write_later("a", timeout=0)

    with pytest.raises(TimeoutError, match="too late: nothing was done"):
        answer.result(TIMEOUT_S)
    assert board.written == []


def test_cancelled_call_is_not_made(board: Blackboard, handler: HandlerThread) -> None:
    with handler.held():
        answer = board.write_later("a")
        assert answer.cancel()
    handler.flush()

    assert (wait([answer], TIMEOUT_S).done, board.written) == ({answer}, [])
    with pytest.raises(CancelledError):
        answer.result()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_call_that_has_begun_cannot_be_cancelled(
    desk: Desk, handler: HandlerThread, change: Callable[[ClientRMService, str], Future[Any]]
) -> None:
    """`cancel` returned True although the change was made, and then `concurrent.futures.wait` never saw its end."""
    app, clients = desk.app("RUNNING"), ClientRMService(desk.context)
    answer = change(clients, app.entity)
    handler.flush()

    is_cancelled = answer.cancel()
    handler.call(desk.posted.events[0].on_stored)

    assert (is_cancelled, wait([answer], 0).done) == (False, {answer})


@pytest.mark.parametrize("call", ["write", "submit"])
def test_end_of_a_cancelled_call_is_seen_though_the_handler_thread_never_comes_to_it(
    desk: Desk, board: Blackboard, handler: HandlerThread, call: str
) -> None:
    """`concurrent.futures.wait` waited for ever."""
    clients = ClientRMService(desk.context)
    with handler.held():
        answer = board.write_later("a") if call == "write" else clients.submit_application_later(SUBMISSION)
        answer.cancel()
        board.stop()
        clients.stop()

        ended = wait([answer], TIMEOUT_S).done
    handler.flush()

    assert (ended, board.written, desk.context.apps) == ({answer}, [], {})


# -- a resource manager that stops ------------------------------------------------------------------------------------


def test_stop_fails_the_calls_that_wait_and_those_that_come(board: Blackboard, handler: HandlerThread) -> None:
    with handler.held():
        waiting = board.write_later("a")
        cancelled = board.write_later("b")
        cancelled.cancel()
        board.stop()
        board.stop()

        for answer in (waiting, board.write_later("c")):
            with pytest.raises(RejectedExecutionError, match=f"write: {STOPPED}: nothing was done"):
                answer.result(0)
        with pytest.raises(RejectedExecutionError, match=STOPPED):
            board.write("d")
    handler.flush()

    assert board.written == []


def test_closed_mailbox_fails_the_call(desk: Desk, board: Blackboard) -> None:
    def refuse(function: Callable[[], Any]) -> None:
        raise RejectedExecutionError("the mailbox is CLOSED")

    desk.context.execute = refuse

    with pytest.raises(RejectedExecutionError, match="CLOSED"):
        board.write("a")
    with pytest.raises(RejectedExecutionError, match="CLOSED"):
        board.write_later("a").result(0)


def test_mail_that_is_left_over_when_the_mailbox_closes_fails_its_call(desk: Desk, board: Blackboard) -> None:
    mails: list[Any] = []
    desk.context.execute = mails.append

    answer = board.write_later("a")
    (mail,) = mails
    mail.cancel()

    with pytest.raises(RejectedExecutionError, match=STOPPED):
        answer.result(0)


def test_stop_of_a_resource_manager_whose_handler_hangs_fails_those_who_wait() -> None:
    """A caller without a timeout waited for ever: its mail never came to its turn, and nothing took it back."""
    config = ResourceManagerConfig.model_validate({"dispatcher": {"drain_timeout_s": 0.05}})
    manager = ResourceManager(config)
    with manager, held(manager.context.execute):
        answers: list[Future[Any]] = [
            manager.clients.get_new_application_later(),
            manager.clients.submit_application_later(SUBMISSION),
            manager.admin.recommission_later(["node1"]),
        ]
        with pytest.raises(TimeoutError):
            manager.clients.get_cluster_metrics(timeout=0.01)
        manager.stop()

    for answer in answers:
        with pytest.raises(RejectedExecutionError, match="stopped"):
            answer.result(TIMEOUT_S)


def test_stopped_resource_manager_refuses_calls() -> None:
    with ResourceManager() as manager:
        assert manager.clients.get_applications(timeout=TIMEOUT_S) == []
        with pytest.raises(ApplicationNotFoundError):
            manager.clients.get_application_report_later(NO_APP).result(TIMEOUT_S)

    with pytest.raises(RejectedExecutionError, match=STOPPED):
        manager.clients.get_applications()
    with pytest.raises(RejectedExecutionError, match=STOPPED):
        manager.admin.recommission(["node1"])
    with pytest.raises(RejectedExecutionError, match=STOPPED):
        manager.clients.submit_application_later(SUBMISSION).result(0)


def test_the_signatures_are_those_of_the_calls_and_not_of_their_declarations() -> None:
    returns = {
        name: str(inspect.signature(method).return_annotation)
        for name, method in vars(ClientRMService).items()
        if callable(method) and not name.startswith("_")
    }

    assert returns["get_application_report"] == "reports.ApplicationReport"
    assert returns["get_application_report_later"] == "Future[reports.ApplicationReport]"
    assert returns["update_application_priority"] == "int"
    assert returns["move_application_across_queues_later"] == "Future[None]"
    assert [name for name, text in returns.items() if "Callable" in text or "Stored" in text] == []
    assert "app_id" in inspect.signature(ClientRMService.get_application_report_later).parameters

"""`aio.run_until_signal`: what its event loop goes on with, besides the contract shared with the plain function."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, CompositeService, Service, ServiceState, aio, health

from ...kit import TIMEOUT_S, Gate, Numbered, Work
from ...kit.services import Recorder
from .conftest import send

pytestmark = pytest.mark.usefixtures("signals_are_restored")


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, TIMEOUT_S))


class Started(Service):
    """Is the first part of a daemon to stop and the last to start: then the whole has started."""

    def __init__(self) -> None:
        super().__init__("the last part")
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()

    def service_start(self) -> None:
        self.loop.call_soon_threadsafe(self.event.set)


async def beside(service: Service, act: Callable[[], Awaitable[Any]]) -> int:
    """Run the service, and act once it has started; returns the exit code."""
    started, daemon = Started(), CompositeService("daemon")
    daemon.add_service(service)
    daemon.add_service(started)

    async def act_once_started() -> None:
        await started.event.wait()
        await act()

    acting = asyncio.create_task(act_once_started())
    code = await aio.run_until_signal(daemon)
    await acting
    return code


def test_a_signal_drains_the_handlers_of_the_loop() -> None:
    async def main() -> None:
        handled: list[int] = []

        async def handle(event: Numbered) -> None:
            await asyncio.sleep(0)
            handled.append(event.number)

        dispatcher = AsyncDispatcher(loop=asyncio.get_running_loop())
        dispatcher.register(Work, handle)

        async def post_and_send() -> None:
            for each in range(100):
                dispatcher.post(Numbered(each))
            send(signal.SIGTERM)

        assert await beside(dispatcher, post_and_send) == 143
        assert handled == list(range(100))
        assert dispatcher.is_stopped()

    run(main())


def test_the_loop_goes_on_while_the_service_starts_and_stops() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def wait_for_the_loop() -> None:
            is_run = threading.Event()
            loop.call_soon_threadsafe(is_run.set)
            assert is_run.wait(TIMEOUT_S)

        service = Recorder(start=wait_for_the_loop, stop=wait_for_the_loop)

        async def terminate() -> None:
            send(signal.SIGTERM)

        assert await beside(service, terminate) == 143
        assert service.calls == ["init", "start", "stop"]

    run(main())


def test_a_signal_that_another_thread_gets_wakes_the_loop() -> None:
    async def main() -> int:
        def send_to_itself() -> None:
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        async def send_elsewhere() -> None:
            threading.Thread(target=send_to_itself).start()

        return await beside(AsyncDispatcher(), send_elsewhere)

    assert run(main()) == 143


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_task_has_stopped_the_service_when_it_ends(times: int) -> None:
    async def main() -> None:
        gate, dispatcher = Gate(), AsyncDispatcher()
        dispatcher.register(Work, gate.handle)
        running = asyncio.ensure_future(aio.run_until_signal(dispatcher))
        while not dispatcher.in_state(ServiceState.STARTED):
            await asyncio.sleep(0)
        dispatcher.post(Numbered())
        await asyncio.to_thread(gate.entered.wait, TIMEOUT_S)

        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0)
        assert not running.done()  # it drains
        gate.opened.set()

        with pytest.raises(asyncio.CancelledError):
            await running
        assert dispatcher.is_stopped()
        assert dispatcher.stats().handled == 1

    run(main())


def test_cancelled_while_it_starts_it_stops_what_has_started() -> None:
    async def main() -> None:
        may_start = threading.Event()
        service = Recorder(start=lambda: may_start.wait(TIMEOUT_S))
        running = asyncio.ensure_future(aio.run_until_signal(service))
        while service.calls != ["init", "start"]:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        may_start.set()

        with pytest.raises(asyncio.CancelledError):
            await running
        assert service.calls == ["init", "start", "stop"]

    run(main())


def test_signal_handlers_of_the_loop_stay_and_may_come_meanwhile() -> None:
    async def main() -> None:
        loop, before, amid = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, before.set)

        async def reload_and_terminate() -> None:
            loop.add_signal_handler(signal.SIGUSR2, amid.set)
            send(signal.SIGUSR1)
            send(signal.SIGUSR2)
            await before.wait()
            await amid.wait()
            send(signal.SIGTERM)

        assert await beside(AsyncDispatcher(), reload_and_terminate) == 143
        amid.clear()
        threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)).start()
        await amid.wait()
        loop.remove_signal_handler(signal.SIGUSR1)
        loop.remove_signal_handler(signal.SIGUSR2)

    run(main())


def test_one_at_a_time_has_the_signals() -> None:
    async def main() -> None:
        second = Recorder()

        async def run_another() -> None:
            with pytest.raises(ValueError, match="one CompositeService"):
                await aio.run_until_signal(second)
            send(signal.SIGTERM)

        assert await beside(AsyncDispatcher(), run_another) == 143
        assert second.calls == []

    run(main())


def test_health_and_systemd_know_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(TIMEOUT_S)
        starting: list[str | None] = []

        def look_and_terminate() -> None:
            starting.extend(reason.service for reason in health.ready(waits_for_checks=False).reasons)
            send(signal.SIGTERM)

        assert run(aio.run_until_signal(Recorder(start=look_and_terminate))) == 143
        assert "recorder" in starting
        told: list[str] = []
        while not any(line.startswith("STOPPING") for line in told):
            told += manager.recv(4096).decode().splitlines()

    assert told.index("READY=1") < told.index("STOPPING=1")

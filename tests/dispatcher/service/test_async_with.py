"""`async with service:` starts it, and stops it while the event loop goes on; `with` refuses to block that loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, CompositeService, DispatcherGroup, MultiDispatcher, Service, ServiceState, aio

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance
from ...kit.coroutines import Keyed, running_loop


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, TIMEOUT_S))


def loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def enter(service: Service) -> None:
    async with service:
        assert service.failure_cause is None, "the body does not run after a failed start"


async def ignore(event: Any) -> None: ...


def made(kind: str, handler: Any) -> Service:
    dispatcher = MultiDispatcher(partitions=2) if kind == "partitions" else AsyncDispatcher()
    dispatcher.register(Work, handler)
    if kind == "group":
        return DispatcherGroup([AsyncDispatcher(), dispatcher], name="group")  # type: ignore[list-item]
    if kind == "daemon":
        daemon = CompositeService("daemon")
        daemon.add_service(dispatcher)
        return daemon
    return dispatcher


KINDS = pytest.mark.parametrize("kind", ["dispatcher", "partitions", "group", "daemon"])


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_block_starts_and_at_its_end_waits_for_coroutines_on_its_loop(partitioned: bool) -> None:
    ended: list[int] = []

    async def handle(event: Keyed) -> None:
        await asyncio.sleep(0)
        ended.append(event.number)

    async def main() -> None:
        dispatcher = MultiDispatcher(partitions=2, loop=loop()) if partitioned else AsyncDispatcher(loop=loop())
        dispatcher.register(Work, handle)
        async with dispatcher as entered:
            assert entered is dispatcher
            assert dispatcher.in_state(ServiceState.STARTED)
            for number in range(6):
                assert await aio.post(dispatcher, Keyed(number, number % 2))
        assert dispatcher.is_stopped()

    run(main())
    assert sorted(ended) == list(range(6))


def test_the_loop_goes_on_while_the_end_of_the_block_waits(gate: Gate) -> None:
    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, gate)

    async def open_the_gate() -> None:
        while not dispatcher.in_state(ServiceState.STOPPED):
            await asyncio.sleep(0)
        gate.opened.set()

    async def main() -> None:
        async with dispatcher:
            dispatcher.post(Numbered())
            opening = asyncio.create_task(open_the_gate())
        assert len(gate.events) == 1
        await opening

    run(main())


def test_a_failed_start_raises_and_stops_the_service() -> None:
    class Broken(Service):
        def service_start(self) -> None:
            raise LookupError("no port")

    daemon, dispatcher = CompositeService("daemon"), AsyncDispatcher()
    daemon.add_services([dispatcher, Broken()])

    with pytest.raises(LookupError, match="no port"):
        run(enter(daemon))
    assert isinstance(daemon.failure_cause, LookupError)
    assert daemon.in_state(ServiceState.STOPPED)
    assert dispatcher.is_stopped()


def test_an_error_of_the_stop_is_raised() -> None:
    class Broken(Service):
        def service_stop(self) -> None:
            raise LookupError("no disk")

    with pytest.raises(LookupError, match="no disk"):
        run(enter(Broken()))


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
def test_a_body_that_raises_or_is_cancelled_is_followed_by_the_drain(error: type[BaseException]) -> None:
    handled: list[int] = []

    async def handle(event: Keyed) -> None:
        await asyncio.sleep(0)
        handled.append(event.number)

    async def main() -> None:
        dispatcher = AsyncDispatcher(loop=loop())
        dispatcher.register(Work, handle)
        entered = asyncio.Event()

        async def serve() -> None:
            async with dispatcher:
                dispatcher.post(Keyed(0))
                entered.set()
                if error is LookupError:
                    raise LookupError("in the body")
                await asyncio.Event().wait()

        serving = asyncio.create_task(serve())
        await entered.wait()
        if error is asyncio.CancelledError:
            serving.cancel()
        with pytest.raises(error):
            await serving
        assert dispatcher.is_stopped()
        assert dispatcher.failure_cause is None
        assert_accounts_balance(dispatcher, accepted=1)

    run(main())
    assert handled == [0]


@KINDS
def test_with_on_the_loop_of_its_own_handlers_raises_and_names_async_with(kind: str) -> None:
    async def main() -> None:
        service = made(kind, aio.AsyncioHandler(ignore, loop=loop()))
        with pytest.raises(RuntimeError, match=f"{service.name}: .*use `async with`"):
            service.__enter__()
        assert service.in_state(ServiceState.NOTINITED)
        async with service:
            pass

    run(main())


def test_with_raises_where_handlers_for_its_loop_may_still_come() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="use `async with`"):
            AsyncDispatcher(loop=loop()).__enter__()

    run(main())


@KINDS
def test_with_works_on_a_loop_that_runs_none_of_its_handlers(kind: str) -> None:
    async def main() -> None:
        with running_loop() as other:
            for handler in (lambda _: None, aio.AsyncioHandler(ignore, loop=other)):
                with made(kind, handler) as service:
                    assert service.in_state(ServiceState.STARTED)

    run(main())

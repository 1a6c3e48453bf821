"""`async with service:` starts it, and stops it while the event loop goes on; `with` refuses to block that loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
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


def a_dispatcher(handler: Any) -> Service:
    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, handler)
    return dispatcher


def partitions(handler: Any) -> Service:
    dispatcher = MultiDispatcher(partitions=2)
    dispatcher.register(Work, handler)
    return dispatcher


def a_group(handler: Any) -> Service:
    return DispatcherGroup([AsyncDispatcher(), a_dispatcher(handler)], name="group")  # type: ignore[list-item]


def a_daemon(handler: Any) -> Service:
    daemon = CompositeService("daemon")
    daemon.add_service(a_dispatcher(handler))
    return daemon


MAKERS = pytest.mark.parametrize("make_service", [a_dispatcher, partitions, a_group, a_daemon])


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


def test_an_error_in_the_body_is_raised_after_the_drain() -> None:
    handled: list[Any] = []
    dispatcher = AsyncDispatcher()
    dispatcher.register(Work, handled.append)

    async def main() -> None:
        async with dispatcher:
            dispatcher.post(Numbered())
            raise LookupError("in the body")

    with pytest.raises(LookupError, match="in the body"):
        run(main())
    assert len(handled) == 1
    assert dispatcher.is_stopped()
    assert dispatcher.failure_cause is None


def test_an_error_of_the_stop_is_raised() -> None:
    class Broken(Service):
        def service_stop(self) -> None:
            raise LookupError("no disk")

    with pytest.raises(LookupError, match="no disk"):
        run(enter(Broken()))


def test_a_task_that_is_cancelled_in_the_body_drains_first() -> None:
    async def main() -> None:
        dispatcher = AsyncDispatcher(loop=loop())
        dispatcher.register(Work, handle)
        entered = asyncio.Event()

        async def serve() -> None:
            async with dispatcher:
                dispatcher.post(Keyed(0))
                entered.set()
                await asyncio.Event().wait()

        serving = asyncio.create_task(serve())
        await entered.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert dispatcher.is_stopped()
        assert_accounts_balance(dispatcher, accepted=1)

    async def handle(event: Keyed) -> None:
        await asyncio.sleep(0)
        ended.append(event.number)

    ended: list[int] = []
    run(main())
    assert ended == [0]


@MAKERS
def test_with_on_the_loop_of_its_own_handlers_raises_and_names_async_with(
    make_service: Callable[[Any], Service],
) -> None:
    async def main() -> None:
        service = make_service(aio.AsyncioHandler(ignore, loop=loop()))
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


@MAKERS
def test_with_works_on_a_loop_that_runs_none_of_its_handlers(make_service: Callable[[Any], Service]) -> None:
    async def main() -> None:
        with running_loop() as other:
            for handler in (lambda _: None, aio.AsyncioHandler(ignore, loop=other)):
                with make_service(handler) as service:
                    assert service.in_state(ServiceState.STARTED)

    run(main())

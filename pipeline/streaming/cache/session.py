"""The thread that reads and writes a cache for one host's calls.

Operators ask it for results before their calls wait for limits; the calls themselves claim their keys right before the
function is called, and report how they ended. The thread takes whatever is waiting and makes one step of it: a few
statements for any number of keys. No other thread touches the store.

A claim finds its key free, and then the caller makes the call; or done; or unknown; or busy, while another process or
another call of this one makes the call. A busy claim waits here, unless it says not to, and is judged again when the
key's call ends.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final

from dispatcher.util.figures import counted
from dispatcher.util.foreign import tell
from dispatcher.util.log_throttle import LogThrottle
from pipeline.streaming.cache.encoding import load_results
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.cache.store import CUT_OFF, DONE, UNDER_WAY, CacheEntry, Claim, ResultKey, ResultStore
from pipeline.streaming.errors import ResultCacheAwayError, ResultCacheError, UnknownOutcomeError
from pipeline.streaming.single_flight import SingleFlight

log: logging.Logger = logging.getLogger(__name__)

_STEP_REQUESTS: Final = 1_000
"""Maximum requests and reports of one step."""
_LOOK_AGAIN_S: Final = 0.05
"""How often a claim of a key that is busy in another process is judged again."""
_FIRST_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 5.0
_WARN_EVERY_NS: Final = 60_000_000_000


class CacheRequest:
    """A question about a key. The session's thread answers it and passes it to `reply`; then it is the asker's.

    `wants_call`: claim the key, to make its call. `waits`: while the key is busy, instead of an answer.
    """

    __slots__ = (
        *("error", "is_answered", "is_busy", "is_mine", "key", "reply", "results", "waits", "wants_call"),
        "was_unknown",
    )

    def __init__(
        self,
        key: ResultKey,
        reply: Callable[[list[CacheRequest]], None],
        *,
        wants_call: bool = False,
        waits: bool = True,
    ) -> None:
        self.key = key
        self.reply = reply  # called on the session's thread with requests of the same reply; must not block
        self.wants_call = wants_call
        self.waits = waits
        self.is_answered = False
        self.results: list[Any] | None = None
        self.error: BaseException | None = None
        self.is_mine = False  # claimed: the asker makes the call and reports its end
        self.is_busy = False  # its call is in flight elsewhere, and `waits` is not set
        self.was_unknown = False  # its call was cut off earlier


class FoundResults(list[Any]):
    """Results of a call that was made elsewhere while the caller's own attempt waited for its key."""


class _StoreStep:
    """What the session's thread works on at once."""

    def __init__(self) -> None:
        self.requests: list[CacheRequest] = []
        self.finished: list[tuple[bytes, bytes]] = []
        self.released: list[bytes] = []
        self.cut_off: list[bytes] = []
        self.flushes: list[threading.Event] = []
        self.is_last = False

    @property
    def ended(self) -> list[bytes]:
        return [*(digest for digest, _ in self.finished), *self.released, *self.cut_off]


class ResultSession:
    """A cache in use by the calls of one host. Any thread, but for `open` and `close`, which are its owner's."""

    def __init__(
        self, cache: ResultCache, function: str, form: str = "", clock_s: Callable[[], float] = time.time
    ) -> None:
        """`function`: its name in the cache. `form`: describes the results; see ResultCache.keys_of."""
        self.key_of: Callable[[Any], ResultKey] = cache.keys_of(function, form)
        """value -> its key. Raises TypeError if it has none."""
        self._cache = cache  # never changes
        self._function = function  # never changes
        self._clock_s = clock_s  # never changes
        self._inbox: queue.SimpleQueue[Callable[[_StoreStep], None]] = queue.SimpleQueue()  # thread-safe
        self._thread: threading.Thread | None = None  # set once, by the owner in open
        self._store: ResultStore | None = None  # session's thread only, once open
        # Session's thread only: the calls that this session's claims have allowed, and the claims that wait for them.
        self._own: SingleFlight[bytes, CacheRequest] = SingleFlight()
        self._busy: list[CacheRequest] = []  # session's thread only: claims that wait for a call of another process
        self._failure: ResultCacheError | None = None  # written by the session's thread, and by any once that is over
        self._lock = threading.Lock()  # leaf lock
        self._listeners: list[Callable[[ResultCacheError], None]] = []  # guarded by _lock
        self._is_closed = threading.Event()
        # The thread takes no more from the inbox. Each request is answered, in either order:
        #   submit: puts r, reads False; thread: sets True, refuses r in its last look.
        #   thread: sets True, looks, finds nothing; submit: puts r, reads True, refuses r itself.
        self._is_over = False
        self._warnings: LogThrottle[str] = LogThrottle(_WARN_EVERY_NS)  # never changes

    def open(self) -> None:
        """Open the store and start the thread. Blocks.

        Raises:
            ResultCacheError: it cannot be opened.
        """
        self._store = self._retried(lambda: self._cache.connect(self._function))
        self._thread = threading.Thread(target=self._run, name=f"cache of {self._function}", daemon=True)
        self._thread.start()

    def submit(self, request: CacheRequest) -> None:
        """Answer a request soon; does not block."""
        self._inbox.put(lambda step: step.requests.append(request))
        if self._is_over:
            self._refuse_waiting()

    def finish(self, key: ResultKey, stored: bytes) -> None:
        """The call of a claimed key has given results, which `dump_results` made text; does not block."""
        self._inbox.put(lambda step: step.finished.append((key.digest, stored)))

    def release(self, key: ResultKey) -> None:
        """The call of a claimed key has failed, or is not made; does not block."""
        self._inbox.put(lambda step: step.released.append(key.digest))

    def cut_off(self, key: ResultKey) -> None:
        """The call of a claimed key was given up while it was in flight; does not block."""
        self._inbox.put(lambda step: step.cut_off.append(key.digest))

    def flush(self) -> None:
        """Wait until everything reported so far is stored.

        Raises:
            ResultCacheError: it is not.
        """
        stored = threading.Event()
        self._inbox.put(lambda step: step.flushes.append(stored))
        if self._is_over:
            self._refuse_waiting()
        stored.wait()
        if self._failure is not None:
            raise self._failure

    def on_failure(self, listener: Callable[[ResultCacheError], None]) -> None:
        """Call `listener` once if the cache fails permanently, on the session's thread; at once if it has failed."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._listeners.append(listener)
        if failure is not None:
            listener(failure)

    def forget_listener(self, listener: Callable[[ResultCacheError], None]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def close(self) -> None:
        """Store what was reported, and end. Blocks for up to _CLOSE_TIMEOUT_S."""
        thread = self._thread
        if thread is None:
            return
        self._is_closed.set()
        self._inbox.put(lambda step: setattr(step, "is_last", True))
        thread.join(_CLOSE_TIMEOUT_S)
        if thread.is_alive():
            message = "%s does not answer; results of the last calls may not be stored"
            tell(log, logging.WARNING, message, self._cache.where)

    def _run(self) -> None:
        """The session's thread."""
        store = self._store
        assert store is not None
        step = _StoreStep()
        try:
            while not step.is_last:
                step = self._next_step()
                try:
                    if self._failure is None:
                        self._retried(partial(self._work, store, step))
                except ResultCacheError as error:
                    self._fail(error)
                except Exception as error:  # a mistake of this project: the calls must end even so
                    tell(log, logging.ERROR, "%s: a step has failed", self._cache.where, error=error)
                    self._fail(ResultCacheError(f"{self._cache.where}: {error!r}"))
                self._close_step(step)
        finally:
            self._is_over = True
            step.is_last = True
            self._close_step(step)
            self._refuse_waiting()
            store.close()

    def _close_step(self, step: _StoreStep) -> None:
        """Answer what the step could not answer, if no other step will."""
        if self._failure is not None or step.is_last:
            waiting = [*self._busy, *self._own.end_all([*self._own.leaders])]
            step.requests, self._busy = [*step.requests, *waiting], []
            _refuse(step, self._failure or self._closed())
        for stored in step.flushes:
            stored.set()

    def _refuse_waiting(self) -> None:
        """Refuse what is in the inbox. Any thread, once this session is over."""
        step = _StoreStep()
        with suppress(queue.Empty):
            while True:
                self._inbox.get_nowait()(step)
        if step.finished and self._failure is None:
            self._failure = self._closed()  # these results are not stored
        _refuse(step, self._failure or self._closed())
        for stored in step.flushes:
            stored.set()

    def _closed(self) -> ResultCacheError:
        return ResultCacheError(f"{self._cache.where}: it was closed while a call waited for it")

    def _next_step(self) -> _StoreStep:
        """Wait for work, or until busy claims are due, and take all there is."""
        step = _StoreStep()
        try:
            self._inbox.get(timeout=_LOOK_AGAIN_S if self._busy else None)(step)
            for _ in range(_STEP_REQUESTS):
                self._inbox.get_nowait()(step)
        except queue.Empty:
            pass
        step.requests[:0], self._busy = [*self._own.end_all(step.ended), *self._busy], []
        return step

    def _retried(self, work: Callable[[], Any]) -> Any:
        """Do the work, again and again while the database is away, as long as the cache's options say."""
        deadline_s = time.monotonic() + self._cache.retry_for_s
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                return work()
            except ResultCacheAwayError as error:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._is_closed.is_set():
                    raise
                self._warnings.warn(log, "away", f"{error}; it is asked again for {left_s:.0f} s")
            self._is_closed.wait(min(delay_s, left_s))
            delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    def _work(self, store: ResultStore, step: _StoreStep) -> None:
        """One step. After an error it may be made again from the start."""
        now_s = self._clock_s()
        asked = [each for each in step.requests if each.key.digest not in self._own.leaders]
        granted: dict[bytes, CacheRequest] = {}
        with store.step() if step.ended or any(each.wants_call for each in asked) else nullcontext():
            if step.finished:
                store.finish(step.finished, now_s)
            if step.released:
                store.release(step.released)
            if step.cut_off:
                store.cut_off(step.cut_off)
            if asked:
                entries = store.read(list({each.key.digest: None for each in asked}))
                granted = self._claim(store, self._free(store, asked, entries, now_s), now_s)
        self._own.lead(granted.keys(), granted.values())
        for request in granted.values():
            request.is_mine = True
        self._reply(step.requests)

    def _free(
        self, store: ResultStore, asked: Sequence[CacheRequest], entries: Mapping[bytes, CacheEntry], now_s: float
    ) -> list[tuple[CacheRequest, CacheEntry | None]]:
        """Judge the requests by the entries; return those whose call may be made, with what was seen."""
        under_way = {entry.owner for entry in entries.values() if entry.state == UNDER_WAY}
        alive = store.alive(under_way - {store.owner})
        expires_after_s = self._cache.expires_after_s
        free = []
        for request in asked:
            entry = entries.get(request.key.digest)
            request.results, request.error, request.was_unknown = None, None, False
            if entry is not None and entry.state == DONE:
                if expires_after_s is None or now_s - entry.at < expires_after_s:
                    request.results = self._loaded(entry)
                    continue
            elif entry is not None and entry.state == UNDER_WAY and entry.owner in alive:
                continue
            elif entry is not None and (entry.state == CUT_OFF or entry.owner != store.owner):
                request.was_unknown = True
                if self._cache.on_unknown == "capture":
                    request.error = UnknownOutcomeError(request.key.text, entry.at)
                    continue
            free.append((request, entry))
        return free

    def _claim(
        self, store: ResultStore, free: Sequence[tuple[CacheRequest, CacheEntry | None]], now_s: float
    ) -> dict[bytes, CacheRequest]:
        """Claim free keys for the requests that want it, one for each key; return those that got theirs."""
        wanted: dict[bytes, tuple[CacheRequest, CacheEntry | None]] = {}
        for request, entry in free:
            if request.wants_call:
                wanted.setdefault(request.key.digest, (request, entry))
        if not wanted:
            return {}
        won = store.claim([Claim(request.key, entry) for request, entry in wanted.values()], now_s)
        again = [request.key.text for digest, (request, _) in wanted.items() if digest in won and request.was_unknown]
        if again:
            they, are = ("it was", "it is") if len(again) == 1 else ("they were", "they are")
            self._warnings.warn(
                log,
                "unknown",
                f"{self._cache.where}: the outcome of {counted(len(again), 'call')} of {self._function} is unknown, "
                f"since {they} cut off in flight; {are} made again, such as the one for {again[0]}",
            )
        return {digest: request for digest, (request, _) in wanted.items() if digest in won}

    def _reply(self, requests: Sequence[CacheRequest]) -> None:
        """Pass on the requests that have an answer; keep the others for the next step."""
        answered = []
        for request in requests:
            is_open = request.wants_call and not request.is_mine and request.results is None and request.error is None
            if is_open and request.waits:
                if not self._own.follow(request.key.digest, request):
                    self._busy.append(request)
            else:
                request.is_busy = is_open
                answered.append(request)
        _pass_on(answered)

    def _loaded(self, entry: CacheEntry) -> list[Any]:
        try:
            return load_results(entry.value or b"")
        except ValueError as error:
            raise ResultCacheError(
                f"{self._cache.where}: {error}. Give another path or table, or delete it."
            ) from error

    def _fail(self, error: ResultCacheError) -> None:
        with self._lock:
            self._failure = error
            listeners, self._listeners = self._listeners, []
        # First the tasks fail, and then the calls: with on_error="drop" no row may be lost for it.
        for listener in listeners:
            listener(error)


def _refuse(step: _StoreStep, error: ResultCacheError) -> None:
    """Answer the requests without an answer."""
    # Each once: what the last step has kept waiting is also among its own requests.
    refused = [each for each in dict.fromkeys(step.requests) if not each.is_answered]
    for request in refused:
        request.error = error
    _pass_on(refused)


def _pass_on(requests: Iterable[CacheRequest]) -> None:
    groups: defaultdict[Callable[[list[CacheRequest]], None], list[CacheRequest]] = defaultdict(list)
    for request in requests:
        request.is_answered = True
        groups[request.reply].append(request)
    for reply, group in groups.items():
        reply(group)

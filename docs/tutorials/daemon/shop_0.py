import queue
import sys
import threading

events: queue.Queue[tuple[str, str]] = queue.Queue()


def work() -> None:
    while True:
        event_type, order = events.get()
        print(f"{order} is {event_type}")
        events.task_done()


threading.Thread(target=work, daemon=True).start()
for line in sys.stdin:
    event_type, order = line.split()
    events.put((event_type, order))
events.join()

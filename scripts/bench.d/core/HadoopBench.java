import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.event.AbstractEvent;
import org.apache.hadoop.yarn.event.AsyncDispatcher;
import org.apache.hadoop.yarn.event.Event;
import org.apache.hadoop.yarn.event.EventHandler;
import org.apache.hadoop.yarn.state.StateMachine;
import org.apache.hadoop.yarn.state.StateMachineFactory;

/**
 * Hadoop's own AsyncDispatcher and StateMachineFactory under the same load as ours.
 *
 * <p>Reads lines "ROW COUNT" and answers each with "ROW SECONDS"; ends with its input. The caller warms the JIT up.
 */
public class HadoopBench {
  enum Kind { TICK }

  enum Control { END }

  static final class Tick extends AbstractEvent<Kind> {
    Tick() {
      super(Kind.TICK, 0L);
    }
  }

  static final class End extends AbstractEvent<Control> {
    End() {
      super(Control.END, 0L);
    }
  }

  static final class Counting implements EventHandler<Tick> {
    long handled;

    @Override
    public void handle(Tick event) {
      handled++;
    }
  }

  enum Door { OPEN, CLOSED }

  enum DoorEvent { OPEN, CLOSE }

  static final class Hinge {
    long moved;
  }

  static final StateMachineFactory<Hinge, Door, DoorEvent, Object> DOORS =
      new StateMachineFactory<Hinge, Door, DoorEvent, Object>(Door.OPEN)
          .addTransition(Door.OPEN, Door.CLOSED, DoorEvent.CLOSE, (hinge, event) -> hinge.moved++)
          .addTransition(Door.CLOSED, Door.OPEN, DoorEvent.OPEN, (hinge, event) -> hinge.moved++)
          .installTopology();

  private static final Configuration CONFIGURATION = new Configuration();
  private static Tick[] premade = new Tick[0];

  public static void main(String[] args) throws Exception {
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      String[] words = line.split(" ");
      System.out.println(words[0] + " " + measure(words[0], Integer.parseInt(words[1])) / 1e9);
    }
    System.exit(0);
  }

  /** Nanoseconds of one run. */
  static long measure(String row, int count) throws Exception {
    return switch (row) {
      case "one-premade" -> dispatch(1, count, premade(count), 0);
      case "one-made" -> dispatch(1, count, null, 0);
      case "one-bounded" -> dispatch(1, count, premade(count), 10_000);
      case "four-premade" -> dispatch(4, count, premade(count), 0);
      case "four-made" -> dispatch(4, count, null, 0);
      case "four-bounded" -> dispatch(4, count, premade(count), 10_000);
      case "machine" -> move(count);
      default -> throw new IllegalArgumentException("no row " + row);
    };
  }

  static Tick[] premade(int count) {
    if (premade.length != count) {
      premade = new Tick[count];
      for (int place = 0; place < count; place++) {
        premade[place] = new Tick();
      }
    }
    return premade;
  }

  /** From the first post to the handling of an event behind the last one. Bound 0: Hadoop's default queue, unbounded. */
  static long dispatch(int producers, int count, Tick[] events, int bound) throws Exception {
    AsyncDispatcher dispatcher =
        bound == 0 ? new AsyncDispatcher() : new AsyncDispatcher(new LinkedBlockingQueue<>(bound));
    Counting counting = new Counting();
    CountDownLatch handled = new CountDownLatch(1);
    dispatcher.register(Kind.class, counting);
    dispatcher.register(Control.class, event -> handled.countDown());
    dispatcher.init(CONFIGURATION);
    dispatcher.start();
    EventHandler<Event> handler = dispatcher.getEventHandler();
    CountDownLatch go = new CountDownLatch(1);
    Thread[] threads = new Thread[producers == 1 ? 0 : producers];
    int each = count / producers;
    for (int place = 0; place < threads.length; place++) {
      int start = place * each;
      threads[place] = new Thread(() -> {
        await(go);
        produce(handler, events, start, each);
      });
      threads[place].start();
    }
    System.gc(); // outside the time taken, as with the rows in Python
    long started = System.nanoTime();
    go.countDown();
    if (producers == 1) {
      produce(handler, events, 0, count);
    }
    for (Thread thread : threads) {
      thread.join();
    }
    handler.handle(new End());
    handled.await();
    long took = System.nanoTime() - started;
    dispatcher.stop();
    if (counting.handled != count) {
      throw new IllegalStateException("handled " + counting.handled + " of " + count);
    }
    return took;
  }

  static void await(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  static void produce(EventHandler<Event> handler, Tick[] events, int start, int count) {
    if (events != null) {
      for (int place = start; place < start + count; place++) {
        handler.handle(events[place]);
      }
    } else {
      for (int made = 0; made < count; made++) {
        handler.handle(new Tick());
      }
    }
  }

  static long move(int count) {
    Hinge hinge = new Hinge();
    StateMachine<Door, DoorEvent, Object> machine = DOORS.make(hinge);
    Object event = new Object();
    long started = System.nanoTime();
    for (int pair = 0; pair < count / 2; pair++) {
      machine.doTransition(DoorEvent.CLOSE, event);
      machine.doTransition(DoorEvent.OPEN, event);
    }
    long took = System.nanoTime() - started;
    if (hinge.moved != count / 2 * 2) {
      throw new IllegalStateException("made " + hinge.moved + " transitions of " + count);
    }
    return took;
  }
}

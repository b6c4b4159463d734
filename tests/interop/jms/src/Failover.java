import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** What clients with failover see when processes of the broker are killed: nothing accepted is lost. */
final class Failover {
    private static final int BEFORE = 200;
    private static final int AFTER = 200;

    /** Sends one by one and notes what was accepted; what fails is sent again under the same number. */
    private static void produce(Scene scene, Queue queue, Topic topic, Set<Integer> accepted, AtomicInteger goal)
            throws JMSException {
        Session session = scene.connectForGood(null).createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer toQueue = session.createProducer(queue);
        MessageProducer toTopic = session.createProducer(topic);
        for (int number = 0; number < goal.get(); ) {
            try {
                toQueue.send(session.createTextMessage("m" + number));
                toTopic.send(session.createTextMessage("m" + number));
                accepted.add(number++);
            } catch (JMSException again) {
                // Nobody knows whether it was stored: it is sent again.
            }
        }
    }

    /** Receives until every number has come, or too much time has passed. */
    private static Set<Integer> consume(MessageConsumer consumer, AtomicInteger goal) throws JMSException {
        Set<Integer> seen = new TreeSet<>();
        long deadline = System.currentTimeMillis() + 30_000;
        while (seen.size() < goal.get() && System.currentTimeMillis() < deadline) {
            Message message = consumer.receive(500);
            if (message == null) {
                continue;
            }
            seen.add(Integer.parseInt(Scene.text(message).substring(1)));
            try {
                message.acknowledge();
            } catch (JMSException lost) {
                // The connection was lost with it: it comes again.
            }
        }
        return seen;
    }

    private static void survives(Scene scene, String what) throws Exception {
        Session setup = scene.session();
        Queue queue = setup.createQueue(scene.name("q"));
        Topic topic = setup.createTopic(scene.name("t"));
        setup.createConsumer(queue).close();
        Session one = scene.connectForGood("one").createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Session two = scene.connectForGood("two").createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer fromQueue = one.createConsumer(queue);
        MessageConsumer fromTopic = two.createDurableConsumer(topic, "s");
        Set<Integer> accepted = new ConcurrentSkipListSet<>();
        AtomicInteger goal = new AtomicInteger(Integer.MAX_VALUE);
        ExecutorService threads = Executors.newFixedThreadPool(3);
        try {
            Future<?> sending = threads.submit((Callable<Void>) () -> {
                produce(scene, queue, topic, accepted, goal);
                return null;
            });
            List<Future<Set<Integer>>> receiving = List.of(
                    threads.submit(() -> consume(fromQueue, goal)),
                    threads.submit(() -> consume(fromTopic, goal)));
            until(() -> accepted.size() >= BEFORE || sending.isDone());
            Scene.ask(what);
            goal.set(accepted.size() + AFTER);
            sending.get(Scene.SOON_MS * 2, TimeUnit.MILLISECONDS);
            for (Future<Set<Integer>> each : receiving) {
                Set<Integer> missing = new TreeSet<>(accepted);
                missing.removeAll(each.get(Scene.SOON_MS * 2, TimeUnit.MILLISECONDS));
                Scene.check(missing.isEmpty(), "accepted and never delivered: " + missing);
            }
        } finally {
            threads.shutdownNow();
        }
    }

    private static void until(Callable<Boolean> holds) throws Exception {
        long deadline = System.currentTimeMillis() + Scene.SOON_MS;
        while (!holds.call()) {
            Scene.check(System.currentTimeMillis() < deadline, "expected more to be accepted in time");
            Thread.sleep(5);
        }
    }

    @Law
    void nothing_is_lost_when_every_frontend_is_killed(Scene scene) throws Exception {
        survives(scene, "kill frontend");
    }

    @Law
    void nothing_is_lost_when_every_shard_is_killed(Scene scene) throws Exception {
        survives(scene, "kill shard");
    }

    @Law
    void nothing_is_lost_when_the_broker_is_killed_and_started_again(Scene scene) throws Exception {
        survives(scene, "restart");
    }
}

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import jakarta.jms.TransactionRolledBackException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.jms.JmsComponent;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Transactions over several queues, which may be at several shards; the one of a route of Camel, too. */
final class TransactionsOverShards {
    private static Session transacted(Connection connection) throws JMSException {
        return connection.createSession(true, Session.SESSION_TRANSACTED);
    }

    @Law
    void a_commit_sends_to_several_queues_and_topics_at_once(Scene scene) throws Exception {
        Session session = transacted(scene.connect());
        Session other = scene.session();
        List<MessageConsumer> consumers = new ArrayList<>();
        // Queues of both shards.
        for (int number = 0; number < 6; number++) {
            Queue queue = session.createQueue(scene.name("q" + number));
            consumers.add(other.createConsumer(queue));
            Scene.send(session, session.createProducer(queue), "m0", "m1");
        }
        Topic topic = session.createTopic(scene.name("t"));
        consumers.add(other.createConsumer(topic));
        consumers.add(other.createConsumer(topic));
        Scene.send(session, session.createProducer(topic), "m0", "m1");
        for (MessageConsumer each : consumers) {
            Scene.equal(null, each.receiveNoWait());
        }
        session.commit();
        for (MessageConsumer each : consumers) {
            Scene.expect(each, "m0", "m1");
        }
    }

    @Law
    void a_producer_without_a_destination_sends_in_the_transaction(Scene scene) throws Exception {
        Session session = transacted(scene.connect());
        MessageProducer producer = session.createProducer(null);
        Session other = scene.session();
        Queue one = session.createQueue(scene.name("one"));
        Queue two = session.createQueue(scene.name("two"));
        MessageConsumer first = other.createConsumer(one);
        MessageConsumer second = other.createConsumer(two);
        producer.send(one, session.createTextMessage("rolled back"));
        session.rollback();
        producer.send(one, session.createTextMessage("a"));
        producer.send(two, session.createTextMessage("b"));
        session.commit();
        Scene.expect(first, "a");
        Scene.expect(second, "b");
        Scene.expectNothing(first);
    }

    @Law
    void receiving_and_sending_on_are_one(Scene scene) throws Exception {
        Session session = transacted(scene.connectWithoutPrefetch("c"));
        Queue from = session.createQueue(scene.name("from"));
        Queue to = session.createQueue(scene.name("to"));
        Session other = scene.session();
        Scene.send(other, other.createProducer(from), Scene.numbered(0, 10));
        MessageConsumer consumer = session.createConsumer(from);
        MessageProducer producer = session.createProducer(to);
        List<String> expected = new ArrayList<>();
        for (int round = 0; expected.size() < 10; round++) {
            String body = Scene.text(Scene.next(consumer));
            Scene.send(session, producer, body + " sent on");
            if (round % 3 == 1) {
                session.rollback();
            } else {
                session.commit();
                expected.add(body + " sent on");
            }
        }
        Scene.equal("m9 sent on", expected.get(9));
        MessageConsumer result = other.createConsumer(to);
        Scene.equal(expected, Scene.texts(result, 10));
        Scene.expectNothing(result);
        Scene.expectNothing(other.createConsumer(from));
    }

    @Law
    void what_a_listener_received_is_committed_by_it(Scene scene) throws Exception {
        Connection connection = scene.connectWithoutPrefetch("c");
        Session session = transacted(connection);
        Queue from = session.createQueue(scene.name("from"));
        Queue to = session.createQueue(scene.name("to"));
        MessageProducer producer = session.createProducer(to);
        AtomicBoolean failed = new AtomicBoolean();
        session.createConsumer(from).setMessageListener(message -> {
            try {
                producer.send(session.createTextMessage(Scene.text(message)));
                if (Scene.text(message).equals("m3") && failed.compareAndSet(false, true)) {
                    session.rollback();
                } else {
                    session.commit();
                }
            } catch (JMSException error) {
                throw new IllegalStateException(error);
            }
        });
        Session other = scene.session();
        Scene.send(other, other.createProducer(from), Scene.numbered(0, 10));
        MessageConsumer result = other.createConsumer(to);
        Scene.expect(result, Scene.numbered(0, 10));
        Scene.expectNothing(result);
    }

    @Law
    void a_transacted_route_of_camel_sends_on_what_it_received_or_neither(Scene scene) throws Exception {
        JmsComponent component =
                JmsComponent.jmsComponentTransacted(new JmsConnectionFactory("amqp://" + scene.address));
        AtomicBoolean failed = new AtomicBoolean();
        try (Frameworks.Camel camel = Frameworks.Camel.of(component, new RouteBuilder() {
            @Override
            public void configure() {
                from("jms:queue:" + scene.name("in")).to("jms:queue:" + scene.name("out")).process(exchange -> {
                    if (exchange.getMessage().getBody(String.class).equals("m3")
                            && failed.compareAndSet(false, true)) {
                        throw new IllegalStateException("the first time fails");
                    }
                });
            }
        })) {
            Scene.check(camel.context().isStarted(), "expected routes that run");
            Session session = scene.session();
            Scene.send(session, session.createProducer(session.createQueue(scene.name("in"))), Scene.numbered(0, 10));
            MessageConsumer result = session.createConsumer(session.createQueue(scene.name("out")));
            Set<String> found = new TreeSet<>(Scene.texts(result, 10));
            Scene.equal(new TreeSet<>(List.of(Scene.numbered(0, 10))), found);
            Scene.expectNothing(result);
        }
    }

    // --- the broker is killed ----------------------------------------------------------------------------

    private static void survives(Scene scene, String what) throws Exception {
        Session setup = scene.session();
        Queue from = setup.createQueue(scene.name("from"));
        Queue to = setup.createQueue(scene.name("to"));
        int count = 300;
        Scene.send(setup, setup.createProducer(from), Scene.numbered(0, count));
        Session session = transacted(scene.connectForGood("c"));
        MessageConsumer consumer = session.createConsumer(from);
        MessageProducer producer = session.createProducer(to);
        Set<String> committed = new TreeSet<>();
        List<String> pending = new ArrayList<>();
        boolean killed = false;
        int quiet = 0;
        long deadline = System.currentTimeMillis() + 30_000;
        while (System.currentTimeMillis() < deadline && quiet < 4) {
            try {
                Message message = consumer.receive(500);
                if (message != null) {
                    pending.add(Scene.text(message));
                    producer.send(session.createTextMessage(Scene.text(message)));
                    if (pending.size() < 3) {
                        continue;
                    }
                }
                session.commit();
                committed.addAll(pending);
                pending.clear();
                quiet = message == null && killed ? quiet + 1 : 0;
                if (committed.size() >= 60 && !killed) {
                    killed = true;
                    Scene.ask(what);
                }
            } catch (TransactionRolledBackException rolledBack) {
                pending.clear();
            } catch (JMSException lost) {
                pending.clear();
                try {
                    session.rollback();
                } catch (JMSException again) {
                    // The connection is not back yet; the next receive waits for it.
                }
            }
        }
        consumer.close();
        Session after = scene.connectForGood("after").createSession(false, Session.AUTO_ACKNOWLEDGE);
        List<String> sent = everything(after, to);
        List<String> left = everything(after, from);
        Set<String> once = new TreeSet<>(sent);
        Scene.equal(once.size(), sent.size());
        Scene.check(once.containsAll(committed), "expected all that was committed");
        // Each message is in one of both queues, not in both and not in none. Some may be left where they were: the
        // client does not settle what it received while its transaction was in doubt, until its consumer is closed.
        Scene.check(left.stream().noneMatch(once::contains), "expected no message in both queues");
        once.addAll(left);
        Scene.equal(count, once.size());
    }

    private static List<String> everything(Session session, Queue queue) throws JMSException {
        List<String> found = new ArrayList<>();
        try (MessageConsumer consumer = session.createConsumer(queue)) {
            for (Message message; (message = consumer.receive(1_000)) != null; ) {
                found.add(Scene.text(message));
            }
        }
        return found;
    }

    @Law
    void each_message_is_sent_on_once_when_every_shard_is_killed(Scene scene) throws Exception {
        survives(scene, "kill shard");
    }

    @Law
    void each_message_is_sent_on_once_when_every_frontend_is_killed(Scene scene) throws Exception {
        survives(scene, "kill frontend");
    }
}

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Acknowledgement, recovery, and how messages say that they were delivered before. */
final class Acknowledging {
    private static void delivered(Message message, String body, int count) throws JMSException {
        Scene.equal(body, Scene.text(message));
        Scene.equal(count, message.getIntProperty("JMSXDeliveryCount"));
        Scene.equal(count > 1, message.getJMSRedelivered());
    }

    private static Queue filled(Scene scene, int count) throws JMSException {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        Scene.send(session, session.createProducer(queue), Scene.numbered(0, count));
        return queue;
    }

    @Law
    void what_was_acknowledged_by_receiving_is_gone(Scene scene) throws Exception {
        Queue queue = filled(scene, 3);
        Connection first = scene.connectWithoutPrefetch("c");
        Scene.expect(first.createSession(false, Session.AUTO_ACKNOWLEDGE).createConsumer(queue), "m0", "m1");
        first.close();
        delivered(Scene.next(scene.session().createConsumer(queue)), "m2", 1);
    }

    @Law
    void a_lazy_acknowledgement_reaches_everything_that_was_received(Scene scene) throws Exception {
        Queue queue = filled(scene, 20);
        Connection first = scene.connect();
        Session lazy = first.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
        Scene.expect(lazy.createConsumer(queue), Scene.numbered(0, 20));
        first.close();
        Scene.expectNothing(scene.session().createConsumer(queue));
    }

    @Law
    void acknowledging_one_message_acknowledges_all_of_the_session(Scene scene) throws Exception {
        Queue queue = filled(scene, 5);
        Connection first = scene.connectWithoutPrefetch("c");
        MessageConsumer consumer = first.createSession(false, Session.CLIENT_ACKNOWLEDGE).createConsumer(queue);
        Scene.next(consumer);
        Scene.next(consumer);
        Scene.next(consumer).acknowledge();
        Scene.equal("m3", Scene.text(Scene.next(consumer)));
        first.close();
        MessageConsumer second = scene.session().createConsumer(queue);
        delivered(Scene.next(second), "m3", 2);
        delivered(Scene.next(second), "m4", 1);
        Scene.expectNothing(second);
    }

    @Law
    void what_was_not_acknowledged_comes_again_and_says_so(Scene scene) throws Exception {
        Queue queue = filled(scene, 3);
        for (int count = 1; count <= 3; count++) {
            Connection connection = scene.connectWithoutPrefetch("c");
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(queue);
            for (String body : Scene.numbered(0, 3)) {
                delivered(Scene.next(consumer), body, count);
            }
            connection.close();
        }
    }

    @Law
    void recovering_delivers_again_in_order(Scene scene) throws Exception {
        Queue queue = filled(scene, 4);
        Session session = scene.connect().createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(queue);
        Scene.next(consumer).acknowledge();
        Scene.expect(consumer, "m1", "m2");
        session.recover();
        delivered(Scene.next(consumer), "m1", 2);
        delivered(Scene.next(consumer), "m2", 2);
        Message last = Scene.next(consumer);
        delivered(last, "m3", 1);
        last.acknowledge();
        Scene.expectNothing(consumer);
    }

    @Law
    void what_a_listener_fails_at_comes_again(Scene scene) throws Exception {
        Queue queue = filled(scene, 2);
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        MessageConsumer consumer = scene.session().createConsumer(queue);
        boolean[] failed = {false};
        consumer.setMessageListener(message -> {
            try {
                seen.add(Scene.text(message));
            } catch (JMSException error) {
                seen.add(error.toString());
            }
            if (!failed[0]) {
                failed[0] = true;
                throw new IllegalStateException("the first time fails");
            }
        });
        List<String> found = new ArrayList<>();
        while (found.size() < 3) {
            String next = seen.poll(Scene.SOON_MS, TimeUnit.MILLISECONDS);
            Scene.check(next != null, "expected three deliveries, found " + found);
            found.add(next);
        }
        // The client releases it, so that the broker counts no failed delivery; m1 was on its way by then.
        Scene.equal(2, Collections.frequency(found, "m0"));
        Scene.equal(1, Collections.frequency(found, "m1"));
    }

    @Law
    void closing_a_consumer_gives_back_what_it_had_not_handed_out(Scene scene) throws Exception {
        Queue queue = filled(scene, 50);
        Session session = scene.connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer first = session.createConsumer(queue);
        Scene.expect(first, "m0", "m1");
        first.close();
        Scene.expect(scene.session().createConsumer(queue), Scene.numbered(2, 48));
    }

    /** INDIVIDUAL_ACKNOWLEDGE of Qpid JMS. */
    private static final int INDIVIDUALLY = 101;

    @Law
    void acknowledging_individually_acknowledges_one_message(Scene scene) throws Exception {
        Queue queue = filled(scene, 5);
        Connection connection = scene.connectWithoutPrefetch("c");
        MessageConsumer consumer = connection.createSession(false, INDIVIDUALLY).createConsumer(queue);
        List<Message> received = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            received.add(Scene.next(consumer));
        }
        received.get(3).acknowledge();
        received.get(1).acknowledge();
        connection.close();
        MessageConsumer again = scene.session().createConsumer(queue);
        // The broker does not see what the application received: an end in order counts nothing.
        delivered(Scene.next(again), "m0", 1);
        delivered(Scene.next(again), "m2", 1);
        delivered(Scene.next(again), "m4", 1);
        Scene.expectNothing(again);
    }

    @Law
    void what_comes_back_too_often_is_a_dead_letter(Scene scene) throws Exception {
        Scene.ask("policy " + scene.name("q") + " {\"role\": \"queue\", \"max_delivery_count\": 3}");
        Queue queue = filled(scene, 2);
        for (int count = 1; count <= 3; count++) {
            Connection connection = scene.connectWithoutPrefetch("c");
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            delivered(Scene.next(session.createConsumer(queue)), "m0", count);
            connection.close();
        }
        Session other = scene.session();
        delivered(Scene.next(other.createConsumer(queue)), "m1", 1);
        Scene.expect(other.createConsumer(other.createQueue(scene.name("q") + "/$dlq")), "m0");
    }

    @Law
    void recovering_one_session_leaves_others_alone(Scene scene) throws Exception {
        Queue queue = filled(scene, 2);
        Connection connection = scene.connectWithoutPrefetch("c");
        Session one = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Session two = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer first = one.createConsumer(queue);
        Scene.equal("m0", Scene.text(Scene.next(first)));
        MessageConsumer second = two.createConsumer(queue);
        Message kept = Scene.next(second);
        Scene.equal("m1", Scene.text(kept));
        one.recover();
        delivered(Scene.next(first), "m0", 2);
        kept.acknowledge();
        first.close();
        one.close();
        MessageConsumer rest = scene.session().createConsumer(queue);
        Scene.equal("m0", Scene.text(Scene.next(rest)));
        Scene.expectNothing(rest);
    }

    @Law
    void an_asynchronous_acknowledgement_reaches_the_broker(Scene scene) throws Exception {
        Queue queue = filled(scene, 50);
        Connection connection = scene.connect();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        session.createConsumer(queue).setMessageListener(message -> {
            try {
                seen.add(Scene.text(message));
            } catch (JMSException error) {
                seen.add(error.toString());
            }
        });
        for (String body : Scene.numbered(0, 50)) {
            Scene.equal(body, seen.poll(Scene.SOON_MS, TimeUnit.MILLISECONDS));
        }
        connection.close();
        Scene.expectNothing(scene.session().createConsumer(queue));
    }
}

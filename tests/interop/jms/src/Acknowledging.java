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
        Place.equal(body, Place.text(message));
        Place.equal(count, message.getIntProperty("JMSXDeliveryCount"));
        Place.equal(count > 1, message.getJMSRedelivered());
    }

    private static Queue filled(Place place, int count) throws JMSException {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        Place.send(session, session.createProducer(queue), Place.numbered(0, count));
        return queue;
    }

    @Law
    void what_was_acknowledged_by_receiving_is_gone(Place place) throws Exception {
        Queue queue = filled(place, 3);
        Connection first = place.connectWithoutPrefetch("c");
        Place.expect(first.createSession(false, Session.AUTO_ACKNOWLEDGE).createConsumer(queue), "m0", "m1");
        first.close();
        delivered(Place.next(place.session().createConsumer(queue)), "m2", 1);
    }

    @Law
    void a_lazy_acknowledgement_reaches_everything_that_was_received(Place place) throws Exception {
        Queue queue = filled(place, 20);
        Connection first = place.connect();
        Session lazy = first.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
        Place.expect(lazy.createConsumer(queue), Place.numbered(0, 20));
        first.close();
        Place.expectNothing(place.session().createConsumer(queue));
    }

    @Law
    void acknowledging_one_message_acknowledges_all_of_the_session(Place place) throws Exception {
        Queue queue = filled(place, 5);
        Connection first = place.connectWithoutPrefetch("c");
        MessageConsumer consumer = first.createSession(false, Session.CLIENT_ACKNOWLEDGE).createConsumer(queue);
        Place.next(consumer);
        Place.next(consumer);
        Place.next(consumer).acknowledge();
        Place.equal("m3", Place.text(Place.next(consumer)));
        first.close();
        MessageConsumer second = place.session().createConsumer(queue);
        delivered(Place.next(second), "m3", 2);
        delivered(Place.next(second), "m4", 1);
        Place.expectNothing(second);
    }

    @Law
    void what_was_not_acknowledged_comes_again_and_says_so(Place place) throws Exception {
        Queue queue = filled(place, 3);
        for (int count = 1; count <= 3; count++) {
            Connection connection = place.connectWithoutPrefetch("c");
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(queue);
            for (String body : Place.numbered(0, 3)) {
                delivered(Place.next(consumer), body, count);
            }
            connection.close();
        }
    }

    @Law
    void recovering_delivers_again_in_order(Place place) throws Exception {
        Queue queue = filled(place, 4);
        Session session = place.connect().createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(queue);
        Place.next(consumer).acknowledge();
        Place.expect(consumer, "m1", "m2");
        session.recover();
        delivered(Place.next(consumer), "m1", 2);
        delivered(Place.next(consumer), "m2", 2);
        Message last = Place.next(consumer);
        delivered(last, "m3", 1);
        last.acknowledge();
        Place.expectNothing(consumer);
    }

    @Law
    void what_a_listener_fails_at_comes_again(Place place) throws Exception {
        Queue queue = filled(place, 2);
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        MessageConsumer consumer = place.session().createConsumer(queue);
        boolean[] failed = {false};
        consumer.setMessageListener(message -> {
            try {
                seen.add(Place.text(message));
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
            String next = seen.poll(Place.SOON_MS, TimeUnit.MILLISECONDS);
            Place.check(next != null, "expected three deliveries, found " + found);
            found.add(next);
        }
        // The client releases it, so that the broker counts no failed delivery; m1 was on its way by then.
        Place.equal(2, Collections.frequency(found, "m0"));
        Place.equal(1, Collections.frequency(found, "m1"));
    }

    @Law
    void closing_a_consumer_gives_back_what_it_had_not_handed_out(Place place) throws Exception {
        Queue queue = filled(place, 50);
        Session session = place.connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer first = session.createConsumer(queue);
        Place.expect(first, "m0", "m1");
        first.close();
        Place.expect(place.session().createConsumer(queue), Place.numbered(2, 48));
    }
}

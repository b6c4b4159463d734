import jakarta.jms.Connection;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Topics: who gets a message, and subscriptions that are durable, shared, or both. */
final class Subscriptions {
    private static Session session(Connection connection) throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    private static void colours(Session session, MessageProducer producer, String... colours) throws JMSException {
        for (String colour : colours) {
            Message message = session.createTextMessage(colour);
            message.setStringProperty("colour", colour);
            producer.send(message);
        }
    }

    /** What consumers get of `count` messages: each exactly once, in whatever way they are divided. */
    private static void divided(int count, MessageConsumer... consumers) throws JMSException {
        List<String> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + Place.SOON_MS;
        while (found.size() < count && System.currentTimeMillis() < deadline) {
            for (MessageConsumer each : consumers) {
                Message message = each.receive(20);
                if (message != null) {
                    found.add(Place.text(message));
                }
            }
        }
        for (MessageConsumer each : consumers) {
            Place.expectNothing(each);
        }
        Place.equal(new TreeSet<>(List.of(Place.numbered(0, count))), new TreeSet<>(found));
        Place.equal(count, found.size());
    }

    // --- topics ------------------------------------------------------------------------------------------

    @Law
    void every_subscriber_of_a_new_topic_gets_every_message(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer two = place.session().createConsumer(topic);
        Place.send(session, session.createProducer(topic), Place.numbered(0, 10));
        Place.expect(one, Place.numbered(0, 10));
        Place.expect(two, Place.numbered(0, 10));
    }

    @Law
    void a_message_for_a_topic_without_subscribers_is_dropped(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        MessageProducer producer = session.createProducer(topic);
        Place.send(session, producer, "nobody");
        MessageConsumer consumer = session.createConsumer(topic);
        Place.send(session, producer, "somebody");
        Place.expect(consumer, "somebody");
        Place.expectNothing(consumer);
    }

    @Law
    void a_producer_without_a_destination_makes_a_topic_of_what_is_one(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        Queue queue = session.createQueue(place.name("q"));
        MessageProducer producer = session.createProducer(null);
        producer.send(topic, session.createTextMessage("nobody"));
        producer.send(queue, session.createTextMessage("waits"));
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer two = session.createConsumer(topic);
        producer.send(topic, session.createTextMessage("both"));
        Place.expect(one, "both");
        Place.expect(two, "both");
        Place.expect(session.createConsumer(queue), "waits");
    }

    @Law
    void a_queue_is_refused_as_a_topic_and_a_topic_as_a_queue(Place place) throws Exception {
        Session session = place.session();
        String topic = place.name("t");
        String queue = place.name("q");
        session.createConsumer(session.createTopic(topic));
        session.createConsumer(session.createQueue(queue));
        String isQueue = queue + " is a queue, and a topic was asked for";
        String isTopic = topic + " is a router, and a queue was asked for";
        Place.refused(JMSException.class, isQueue, () -> session.createConsumer(session.createTopic(queue)));
        Place.refused(JMSException.class, isQueue, () -> session.createProducer(session.createTopic(queue)));
        Place.refused(JMSException.class, isTopic, () -> session.createConsumer(session.createQueue(topic)));
        Place.refused(JMSException.class, isTopic, () -> session.createProducer(session.createQueue(topic)));
    }

    @Law
    void a_consumer_that_wants_no_messages_of_its_own_connection_is_refused_clearly(Place place) throws Exception {
        Session session = session(place.connectAs("c"));
        Topic topic = session.createTopic(place.name("t"));
        String clearly = "no-local filters are not available";
        Place.refused(JMSException.class, clearly, () -> session.createConsumer(topic, null, true));
        Place.refused(JMSException.class, clearly, () -> session.createDurableConsumer(topic, "s", null, true));
        Place.expectNothing(session.createConsumer(topic));
    }

    @Law
    void a_selector_filters_what_a_subscriber_gets(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer red = session.createConsumer(topic, "colour = 'red'");
        MessageConsumer all = session.createConsumer(topic);
        colours(session, session.createProducer(topic), "red", "blue", "red");
        Place.expect(red, "red", "red");
        Place.expectNothing(red);
        Place.expect(all, "red", "blue", "red");
    }

    @Law
    void the_simplified_interface_sends_to_topics_and_receives(Place place) throws Exception {
        try (JMSContext context = new JmsConnectionFactory("amqp://" + place.address).createContext()) {
            Topic topic = context.createTopic(place.name("t"));
            var consumer = context.createConsumer(topic);
            var shared = context.createSharedConsumer(topic, place.name("s"));
            context.createProducer().setProperty("colour", "red").send(topic, "hello");
            Place.equal("hello", consumer.receiveBody(String.class, Place.SOON_MS));
            Place.equal("hello", shared.receiveBody(String.class, Place.SOON_MS));
        }
    }

    // --- durable -----------------------------------------------------------------------------------------

    @Law
    void a_durable_subscriber_gets_each_message_once(Place place) throws Exception {
        Connection connection = place.connectAs("c");
        Session session = session(connection);
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer first = session.createDurableSubscriber(topic, "s");
        Place.send(session, session.createProducer(topic), Place.numbered(0, 5));
        Place.expect(first, Place.numbered(0, 5));
        first.close();
        MessageConsumer second = session.createDurableSubscriber(topic, "s");
        Place.expectNothing(second);
    }

    @Law
    void a_durable_subscription_keeps_what_is_sent_meanwhile(Place place) throws Exception {
        Connection connection = place.connectAs("c");
        Session session = session(connection);
        Topic topic = session.createTopic(place.name("t"));
        session.createDurableConsumer(topic, "s");
        connection.close();
        Session sending = place.session();
        Place.send(sending, sending.createProducer(topic), "one", "two");
        Place.expect(session(place.connectAs("c")).createDurableConsumer(topic, "s"), "one", "two");
    }

    @Law
    void durable_messages_that_were_not_acknowledged_come_again(Place place) throws Exception {
        Connection connection = place.connectWithoutPrefetch("c");
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Place.send(session, session.createProducer(topic), "one", "two");
        Place.next(consumer).acknowledge();
        Place.equal("two", Place.text(Place.next(consumer)));
        connection.close();
        MessageConsumer again = session(place.connectWithoutPrefetch("c")).createDurableConsumer(topic, "s");
        Message found = Place.next(again);
        Place.equal("two", Place.text(found));
        Place.equal(2, found.getIntProperty("JMSXDeliveryCount"));
        Place.expectNothing(again);
    }

    @Law
    void a_durable_subscription_with_another_selector_begins_anew(Place place) throws Exception {
        Session session = session(place.connectAs("c"));
        Topic topic = session.createTopic(place.name("t"));
        MessageProducer producer = session.createProducer(topic);
        session.createDurableConsumer(topic, "s", "colour = 'red'", false).close();
        colours(session, producer, "red", "blue");
        MessageConsumer blue = session.createDurableConsumer(topic, "s", "colour = 'blue'", false);
        Place.expectNothing(blue);
        colours(session, producer, "red", "blue");
        Place.expect(blue, "blue");
    }

    @Law
    void unsubscribing_ends_a_durable_subscription(Place place) throws Exception {
        Session session = session(place.connectAs("c"));
        Topic topic = session.createTopic(place.name("t"));
        session.createDurableConsumer(topic, "s").close();
        Place.send(session, session.createProducer(topic), "lost");
        session.unsubscribe("s");
        Place.expectNothing(session.createDurableConsumer(topic, "s"));
    }

    @Law
    void subscribing_and_unsubscribing_a_hundred_times(Place place) throws Exception {
        Session session = session(place.connectAs("c"));
        Topic topic = session.createTopic(place.name("t"));
        MessageProducer producer = session.createProducer(topic);
        for (int round = 0; round < 100; round++) {
            MessageConsumer consumer = session.createDurableConsumer(topic, "s");
            Place.send(session, producer, "round " + round);
            Place.expect(consumer, "round " + round);
            consumer.close();
            session.unsubscribe("s");
        }
    }

    @Law
    void unsubscribing_what_is_not_there_is_an_error(Place place) throws Exception {
        Session session = session(place.connectAs("c"));
        Place.refused(InvalidDestinationException.class, "", () -> {
            session.unsubscribe("never");
            return "no error";
        });
    }

    @Law
    void unsubscribing_what_is_in_use_is_an_error(Place place) throws Exception {
        Session session = session(place.connectAs("c"));
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Place.refused(JMSException.class, "", () -> {
            session.unsubscribe("s");
            return "no error";
        });
        Place.send(session, session.createProducer(topic), "still there");
        Place.expect(consumer, "still there");
    }

    @Law
    void a_durable_subscription_with_another_topic_begins_anew(Place place) throws Exception {
        Session session = session(place.connectAs("c"));
        Topic former = session.createTopic(place.name("former"));
        Topic topic = session.createTopic(place.name("t"));
        session.createDurableConsumer(former, "s").close();
        Place.send(session, session.createProducer(former), "lost");
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Place.send(session, session.createProducer(topic), "new");
        Place.expect(consumer, "new");
        consumer.close();
        Place.expectNothing(session.createDurableConsumer(former, "s"));
    }

    // --- shared ------------------------------------------------------------------------------------------

    @Law
    void shared_consumers_divide_the_messages(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer one = session.createSharedConsumer(topic, place.name("s"));
        MessageConsumer two = place.session().createSharedConsumer(topic, place.name("s"));
        Place.send(session, session.createProducer(topic), Place.numbered(0, 20));
        divided(20, one, two);
    }

    @Law
    void a_shared_subscription_goes_with_its_last_consumer(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        MessageProducer producer = session.createProducer(topic);
        MessageConsumer one = session.createSharedConsumer(topic, place.name("s"));
        MessageConsumer two = session.createSharedConsumer(topic, place.name("s"));
        one.close();
        Place.send(session, producer, "kept");
        Place.expect(two, "kept");
        two.close();
        Place.send(session, producer, "lost");
        MessageConsumer three = session.createSharedConsumer(topic, place.name("s"));
        Place.send(session, producer, "new");
        Place.expect(three, "new");
    }

    @Law
    void shared_durable_consumers_divide_the_messages(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer one = session.createSharedDurableConsumer(topic, place.name("s"));
        MessageConsumer two = place.session().createSharedDurableConsumer(topic, place.name("s"));
        Place.send(session, session.createProducer(topic), Place.numbered(0, 20));
        divided(20, one, two);
    }

    @Law
    void a_shared_durable_subscription_outlives_its_consumers(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        session.createSharedDurableConsumer(topic, place.name("s")).close();
        Place.send(session, session.createProducer(topic), "kept");
        MessageConsumer again = place.session().createSharedDurableConsumer(topic, place.name("s"));
        Place.expect(again, "kept");
        again.close();
        session.unsubscribe(place.name("s"));
        Place.refused(InvalidDestinationException.class, "", () -> {
            session.unsubscribe(place.name("s"));
            return "no error";
        });
    }

    @Law
    void a_shared_durable_subscription_of_a_client_is_its_own(Place place) throws Exception {
        Connection mine = place.connectAs("mine");
        Session session = session(mine);
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer one = session.createSharedDurableConsumer(topic, place.name("s"));
        MessageConsumer two = session(mine).createSharedDurableConsumer(topic, place.name("s"));
        MessageConsumer other = session(place.connectAs("yours")).createSharedDurableConsumer(topic, place.name("s"));
        Place.send(session, session.createProducer(topic), Place.numbered(0, 20));
        divided(20, one, two);
        divided(20, other);
        one.close();
        two.close();
        session.unsubscribe(place.name("s"));
        Place.refused(InvalidDestinationException.class, "", () -> {
            session.unsubscribe(place.name("s"));
            return "no error";
        });
        Place.send(session, session.createProducer(topic), "yours stays");
        Place.expect(other, "yours stays");
    }

    @Law
    void unsubscribing_what_another_connection_uses_is_an_error(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        MessageConsumer theirs = place.session().createSharedDurableConsumer(topic, place.name("s"));
        Place.refused(JMSException.class, "", () -> {
            session.unsubscribe(place.name("s"));
            return "no error";
        });
        Place.send(session, session.createProducer(topic), "still there");
        Place.expect(theirs, "still there");
    }

    @Law
    void a_shared_subscription_has_one_selector(Place place) throws Exception {
        Session session = place.session();
        Topic topic = session.createTopic(place.name("t"));
        session.createSharedConsumer(topic, place.name("s"), "colour = 'red'");
        Place.refused(JMSException.class, "shared subscription has the filter", () ->
                place.session().createSharedConsumer(topic, place.name("s"), "colour = 'blue'"));
    }
}

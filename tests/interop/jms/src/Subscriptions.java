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
        long deadline = System.currentTimeMillis() + Scene.SOON_MS;
        while (found.size() < count && System.currentTimeMillis() < deadline) {
            for (MessageConsumer each : consumers) {
                Message message = each.receive(20);
                if (message != null) {
                    found.add(Scene.text(message));
                }
            }
        }
        for (MessageConsumer each : consumers) {
            Scene.expectNothing(each);
        }
        Scene.equal(new TreeSet<>(List.of(Scene.numbered(0, count))), new TreeSet<>(found));
        Scene.equal(count, found.size());
    }

    // --- topics ------------------------------------------------------------------------------------------

    @Law
    void every_subscriber_of_a_new_topic_gets_every_message(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer two = scene.session().createConsumer(topic);
        Scene.send(session, session.createProducer(topic), Scene.numbered(0, 10));
        Scene.expect(one, Scene.numbered(0, 10));
        Scene.expect(two, Scene.numbered(0, 10));
    }

    @Law
    void a_message_for_a_topic_without_subscribers_is_dropped(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        MessageProducer producer = session.createProducer(topic);
        Scene.send(session, producer, "nobody");
        MessageConsumer consumer = session.createConsumer(topic);
        Scene.send(session, producer, "somebody");
        Scene.expect(consumer, "somebody");
        Scene.expectNothing(consumer);
    }

    @Law
    void a_producer_without_a_destination_makes_a_topic_of_what_is_one(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(null);
        producer.send(topic, session.createTextMessage("nobody"));
        producer.send(queue, session.createTextMessage("waits"));
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer two = session.createConsumer(topic);
        producer.send(topic, session.createTextMessage("both"));
        Scene.expect(one, "both");
        Scene.expect(two, "both");
        Scene.expect(session.createConsumer(queue), "waits");
    }

    @Law
    void a_queue_is_refused_as_a_topic_and_a_topic_as_a_queue(Scene scene) throws Exception {
        Session session = scene.session();
        String topic = scene.name("t");
        String queue = scene.name("q");
        session.createConsumer(session.createTopic(topic));
        session.createConsumer(session.createQueue(queue));
        String isQueue = queue + " is a queue, and a topic was asked for";
        String isTopic = topic + " is a router, and a queue was asked for";
        Scene.refused(JMSException.class, isQueue, () -> session.createConsumer(session.createTopic(queue)));
        Scene.refused(JMSException.class, isQueue, () -> session.createProducer(session.createTopic(queue)));
        Scene.refused(JMSException.class, isTopic, () -> session.createConsumer(session.createQueue(topic)));
        Scene.refused(JMSException.class, isTopic, () -> session.createProducer(session.createQueue(topic)));
    }

    @Law
    void a_subscriber_without_local_messages_gets_those_of_others(Scene scene) throws Exception {
        Connection mine = scene.connect();
        Session session = session(mine);
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer others = session.createConsumer(topic, null, true);
        MessageConsumer all = session(mine).createConsumer(topic, null, false);
        MessageConsumer red = session.createConsumer(topic, "colour = 'red'", true);
        Session elsewhere = scene.session();
        colours(session, session.createProducer(topic), "red", "blue");
        session.createProducer(null).send(topic, session.createTextMessage("without a target"));
        colours(elsewhere, elsewhere.createProducer(topic), "blue", "red");
        Scene.expect(all, "red", "blue", "without a target", "blue", "red");
        Scene.expect(others, "blue", "red");
        Scene.expect(red, "red");
        Scene.expectNothing(others);
        Scene.expectNothing(red);
    }

    @Law
    void a_durable_subscription_keeps_out_messages_of_its_client_identifier(Scene scene) throws Exception {
        Connection first = scene.connectAs("c");
        Topic topic = session(first).createTopic(scene.name("t"));
        session(first).createDurableConsumer(topic, "s", null, true);
        first.close();
        Connection second = scene.connectAs("c");
        Session session = session(second);
        Scene.send(session, session.createProducer(topic), "of the same client");
        Session other = scene.session();
        Scene.send(other, other.createProducer(topic), "of another");
        MessageConsumer consumer = session.createDurableConsumer(topic, "s", null, true);
        Scene.expect(consumer, "of another");
        Scene.expectNothing(consumer);
        consumer.close();
        Scene.send(other, other.createProducer(topic), "lost with the former subscription");
        MessageConsumer changed = session.createDurableConsumer(topic, "s", null, false);
        Scene.expectNothing(changed);
        Scene.send(session, session.createProducer(topic), "of the same client");
        Scene.expect(changed, "of the same client");
    }

    @Law
    void a_consumer_of_a_queue_that_wants_no_local_messages_is_refused_clearly(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        String clearly = "a no-local filter is for receivers at routers";
        Scene.refused(JMSException.class, clearly, () -> session.createConsumer(queue, null, true));
    }

    @Law
    void a_selector_filters_what_a_subscriber_gets(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer red = session.createConsumer(topic, "colour = 'red'");
        MessageConsumer all = session.createConsumer(topic);
        colours(session, session.createProducer(topic), "red", "blue", "red");
        Scene.expect(red, "red", "red");
        Scene.expectNothing(red);
        Scene.expect(all, "red", "blue", "red");
    }

    @Law
    void the_simplified_interface_sends_to_topics_and_receives(Scene scene) throws Exception {
        try (JMSContext context = new JmsConnectionFactory("amqp://" + scene.address).createContext()) {
            Topic topic = context.createTopic(scene.name("t"));
            var consumer = context.createConsumer(topic);
            var shared = context.createSharedConsumer(topic, scene.name("s"));
            context.createProducer().setProperty("colour", "red").send(topic, "hello");
            Scene.equal("hello", consumer.receiveBody(String.class, Scene.SOON_MS));
            Scene.equal("hello", shared.receiveBody(String.class, Scene.SOON_MS));
        }
    }

    // --- durable -----------------------------------------------------------------------------------------

    @Law
    void a_durable_subscriber_gets_each_message_once(Scene scene) throws Exception {
        Connection connection = scene.connectAs("c");
        Session session = session(connection);
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer first = session.createDurableSubscriber(topic, "s");
        Scene.send(session, session.createProducer(topic), Scene.numbered(0, 5));
        Scene.expect(first, Scene.numbered(0, 5));
        first.close();
        MessageConsumer second = session.createDurableSubscriber(topic, "s");
        Scene.expectNothing(second);
    }

    @Law
    void a_durable_subscription_keeps_what_is_sent_meanwhile(Scene scene) throws Exception {
        Connection connection = scene.connectAs("c");
        Session session = session(connection);
        Topic topic = session.createTopic(scene.name("t"));
        session.createDurableConsumer(topic, "s");
        connection.close();
        Session sending = scene.session();
        Scene.send(sending, sending.createProducer(topic), "one", "two");
        Scene.expect(session(scene.connectAs("c")).createDurableConsumer(topic, "s"), "one", "two");
    }

    @Law
    void durable_messages_that_were_not_acknowledged_come_again(Scene scene) throws Exception {
        Connection connection = scene.connectWithoutPrefetch("c");
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Scene.send(session, session.createProducer(topic), "one", "two");
        Scene.next(consumer).acknowledge();
        Scene.equal("two", Scene.text(Scene.next(consumer)));
        connection.close();
        MessageConsumer again = session(scene.connectWithoutPrefetch("c")).createDurableConsumer(topic, "s");
        Message found = Scene.next(again);
        Scene.equal("two", Scene.text(found));
        Scene.equal(2, found.getIntProperty("JMSXDeliveryCount"));
        Scene.expectNothing(again);
    }

    @Law
    void a_durable_subscription_with_another_selector_begins_anew(Scene scene) throws Exception {
        Session session = session(scene.connectAs("c"));
        Topic topic = session.createTopic(scene.name("t"));
        MessageProducer producer = session.createProducer(topic);
        session.createDurableConsumer(topic, "s", "colour = 'red'", false).close();
        colours(session, producer, "red", "blue");
        MessageConsumer blue = session.createDurableConsumer(topic, "s", "colour = 'blue'", false);
        Scene.expectNothing(blue);
        colours(session, producer, "red", "blue");
        Scene.expect(blue, "blue");
    }

    @Law
    void unsubscribing_ends_a_durable_subscription(Scene scene) throws Exception {
        Session session = session(scene.connectAs("c"));
        Topic topic = session.createTopic(scene.name("t"));
        session.createDurableConsumer(topic, "s").close();
        Scene.send(session, session.createProducer(topic), "lost");
        session.unsubscribe("s");
        Scene.expectNothing(session.createDurableConsumer(topic, "s"));
    }

    @Law
    void subscribing_and_unsubscribing_a_hundred_times(Scene scene) throws Exception {
        Session session = session(scene.connectAs("c"));
        Topic topic = session.createTopic(scene.name("t"));
        MessageProducer producer = session.createProducer(topic);
        for (int round = 0; round < 100; round++) {
            MessageConsumer consumer = session.createDurableConsumer(topic, "s");
            Scene.send(session, producer, "round " + round);
            Scene.expect(consumer, "round " + round);
            consumer.close();
            session.unsubscribe("s");
        }
    }

    @Law
    void unsubscribing_what_is_not_there_is_an_error(Scene scene) throws Exception {
        Session session = session(scene.connectAs("c"));
        Scene.refused(InvalidDestinationException.class, "", () -> {
            session.unsubscribe("never");
            return "no error";
        });
    }

    @Law
    void unsubscribing_what_is_in_use_is_an_error(Scene scene) throws Exception {
        Session session = session(scene.connectAs("c"));
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Scene.refused(JMSException.class, "", () -> {
            session.unsubscribe("s");
            return "no error";
        });
        Scene.send(session, session.createProducer(topic), "still there");
        Scene.expect(consumer, "still there");
    }

    @Law
    void a_durable_subscription_with_another_topic_begins_anew(Scene scene) throws Exception {
        Session session = session(scene.connectAs("c"));
        Topic former = session.createTopic(scene.name("former"));
        Topic topic = session.createTopic(scene.name("t"));
        session.createDurableConsumer(former, "s").close();
        Scene.send(session, session.createProducer(former), "lost");
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Scene.send(session, session.createProducer(topic), "new");
        Scene.expect(consumer, "new");
        consumer.close();
        Scene.expectNothing(session.createDurableConsumer(former, "s"));
    }

    // --- shared ------------------------------------------------------------------------------------------

    @Law
    void shared_consumers_divide_the_messages(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer one = session.createSharedConsumer(topic, scene.name("s"));
        MessageConsumer two = scene.session().createSharedConsumer(topic, scene.name("s"));
        Scene.send(session, session.createProducer(topic), Scene.numbered(0, 20));
        divided(20, one, two);
    }

    @Law
    void a_shared_subscription_goes_with_its_last_consumer(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        MessageProducer producer = session.createProducer(topic);
        MessageConsumer one = session.createSharedConsumer(topic, scene.name("s"));
        MessageConsumer two = session.createSharedConsumer(topic, scene.name("s"));
        one.close();
        Scene.send(session, producer, "kept");
        Scene.expect(two, "kept");
        two.close();
        Scene.send(session, producer, "lost");
        MessageConsumer three = session.createSharedConsumer(topic, scene.name("s"));
        Scene.send(session, producer, "new");
        Scene.expect(three, "new");
    }

    @Law
    void shared_durable_consumers_divide_the_messages(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer one = session.createSharedDurableConsumer(topic, scene.name("s"));
        MessageConsumer two = scene.session().createSharedDurableConsumer(topic, scene.name("s"));
        Scene.send(session, session.createProducer(topic), Scene.numbered(0, 20));
        divided(20, one, two);
    }

    @Law
    void a_shared_durable_subscription_outlives_its_consumers(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        session.createSharedDurableConsumer(topic, scene.name("s")).close();
        Scene.send(session, session.createProducer(topic), "kept");
        MessageConsumer again = scene.session().createSharedDurableConsumer(topic, scene.name("s"));
        Scene.expect(again, "kept");
        again.close();
        session.unsubscribe(scene.name("s"));
        Scene.refused(InvalidDestinationException.class, "", () -> {
            session.unsubscribe(scene.name("s"));
            return "no error";
        });
    }

    @Law
    void a_shared_durable_subscription_of_a_client_is_its_own(Scene scene) throws Exception {
        Connection mine = scene.connectAs("mine");
        Session session = session(mine);
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer one = session.createSharedDurableConsumer(topic, scene.name("s"));
        MessageConsumer two = session(mine).createSharedDurableConsumer(topic, scene.name("s"));
        MessageConsumer other = session(scene.connectAs("yours")).createSharedDurableConsumer(topic, scene.name("s"));
        Scene.send(session, session.createProducer(topic), Scene.numbered(0, 20));
        divided(20, one, two);
        divided(20, other);
        one.close();
        two.close();
        session.unsubscribe(scene.name("s"));
        Scene.refused(InvalidDestinationException.class, "", () -> {
            session.unsubscribe(scene.name("s"));
            return "no error";
        });
        Scene.send(session, session.createProducer(topic), "yours stays");
        Scene.expect(other, "yours stays");
    }

    @Law
    void unsubscribing_what_another_connection_uses_is_an_error(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer theirs = scene.session().createSharedDurableConsumer(topic, scene.name("s"));
        Scene.refused(JMSException.class, "", () -> {
            session.unsubscribe(scene.name("s"));
            return "no error";
        });
        Scene.send(session, session.createProducer(topic), "still there");
        Scene.expect(theirs, "still there");
    }

    @Law
    void a_shared_subscription_has_one_selector(Scene scene) throws Exception {
        Session session = scene.session();
        Topic topic = session.createTopic(scene.name("t"));
        session.createSharedConsumer(topic, scene.name("s"), "colour = 'red'");
        Scene.refused(JMSException.class, "shared subscription has the filter", () ->
                scene.session().createSharedConsumer(topic, scene.name("s"), "colour = 'blue'"));
    }
}

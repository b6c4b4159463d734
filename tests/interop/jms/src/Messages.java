import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Messages: their bodies, headers and properties, when they come and when they do not. */
final class Messages {
    @Law
    void bodies_of_all_kinds_arrive(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);
        producer.send(session.createMessage());
        producer.send(session.createTextMessage("Zug \ud83d\ude82"));
        producer.send(session.createTextMessage());
        BytesMessage bytes = session.createBytesMessage();
        bytes.writeBytes(new byte[] {0, 1, -1});
        producer.send(bytes);
        MapMessage map = session.createMapMessage();
        map.setInt("int", -1);
        map.setDouble("double", 0.5);
        map.setBytes("bytes", new byte[] {7});
        map.setString("null", null);
        producer.send(map);
        StreamMessage stream = session.createStreamMessage();
        stream.writeLong(1L << 40);
        stream.writeChar('x');
        producer.send(stream);
        producer.send(session.createObjectMessage(new ArrayList<>(List.of("a", 1))));

        Scene.check(!(Scene.next(consumer) instanceof BytesMessage), "expected a message without a body");
        Scene.equal("Zug \ud83d\ude82", Scene.text(Scene.next(consumer)));
        Scene.equal(null, Scene.text(Scene.next(consumer)));
        BytesMessage foundBytes = (BytesMessage) Scene.next(consumer);
        byte[] content = new byte[3];
        Scene.equal(3, foundBytes.readBytes(content));
        Scene.equal(List.of((byte) 0, (byte) 1, (byte) -1), List.of(content[0], content[1], content[2]));
        MapMessage foundMap = (MapMessage) Scene.next(consumer);
        Scene.equal(-1, foundMap.getInt("int"));
        Scene.equal(0.5, foundMap.getDouble("double"));
        Scene.equal((byte) 7, foundMap.getBytes("bytes")[0]);
        Scene.check(foundMap.itemExists("null") && foundMap.getString("null") == null, "expected an entry null");
        StreamMessage foundStream = (StreamMessage) Scene.next(consumer);
        Scene.equal(1L << 40, foundStream.readLong());
        Scene.equal('x', foundStream.readChar());
        Scene.equal(List.of("a", 1), ((ObjectMessage) Scene.next(consumer)).getObject());
    }

    @Law
    void headers_and_properties_arrive(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        Message sent = session.createMessage();
        sent.setJMSType("orders.new");
        sent.setJMSCorrelationID("mine");
        sent.setJMSReplyTo(session.createTopic(scene.name("replies")));
        sent.setBooleanProperty("boolean", true);
        sent.setByteProperty("byte", (byte) -1);
        sent.setShortProperty("short", (short) -2);
        sent.setIntProperty("int", 1 << 30);
        sent.setLongProperty("long", 1L << 60);
        sent.setFloatProperty("float", 0.25f);
        sent.setDoubleProperty("double", 1e300);
        sent.setStringProperty("string", "s");
        sent.setStringProperty("JMSXGroupID", "group");
        sent.setIntProperty("JMSXGroupSeq", 3);
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        producer.setPriority(7);
        long before = System.currentTimeMillis();
        producer.send(sent);

        Message found = Scene.next(session.createConsumer(queue));
        Scene.equal(sent.getJMSMessageID(), found.getJMSMessageID());
        Scene.check(found.getJMSMessageID().startsWith("ID:"), "expected ID:, found " + found.getJMSMessageID());
        Scene.equal("orders.new", found.getJMSType());
        Scene.equal("mine", found.getJMSCorrelationID());
        Scene.equal(session.createTopic(scene.name("replies")), found.getJMSReplyTo());
        Scene.equal(queue, found.getJMSDestination());
        Scene.equal(DeliveryMode.NON_PERSISTENT, found.getJMSDeliveryMode());
        Scene.equal(7, found.getJMSPriority());
        Scene.equal(0L, found.getJMSExpiration());
        Scene.equal(false, found.getJMSRedelivered());
        Scene.equal(1, found.getIntProperty("JMSXDeliveryCount"));
        Scene.check(found.getJMSTimestamp() >= before, "expected a time stamp of now");
        Scene.equal(true, found.getBooleanProperty("boolean"));
        Scene.equal((byte) -1, found.getObjectProperty("byte"));
        Scene.equal((short) -2, found.getObjectProperty("short"));
        Scene.equal(1 << 30, found.getObjectProperty("int"));
        Scene.equal(1L << 60, found.getObjectProperty("long"));
        Scene.equal(0.25f, found.getObjectProperty("float"));
        Scene.equal(1e300, found.getObjectProperty("double"));
        Scene.equal("s", found.getObjectProperty("string"));
        Scene.equal("group", found.getStringProperty("JMSXGroupID"));
        Scene.equal(3, found.getIntProperty("JMSXGroupSeq"));
    }

    @Law
    void messages_of_a_producer_keep_their_order(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        Scene.send(session, session.createProducer(queue), Scene.numbered(0, 300));
        Scene.expect(session.createConsumer(queue), Scene.numbered(0, 300));
    }

    @Law
    void sending_without_waiting_is_completed_for_every_message(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        CountDownLatch waiting = new CountDownLatch(500);
        List<Exception> failed = Collections.synchronizedList(new ArrayList<>());
        CompletionListener listener = new CompletionListener() {
            @Override
            public void onCompletion(Message message) {
                waiting.countDown();
            }

            @Override
            public void onException(Message message, Exception error) {
                failed.add(error);
                waiting.countDown();
            }
        };
        for (String body : Scene.numbered(0, 500)) {
            producer.send(session.createTextMessage(body), listener);
        }
        Scene.check(waiting.await(Scene.SOON_MS, TimeUnit.MILLISECONDS), "expected every send to be completed");
        Scene.equal(List.of(), failed);
        Scene.expect(session.createConsumer(queue), Scene.numbered(0, 500));
    }

    @Law
    void a_queue_with_priorities_delivers_the_highest_first(Scene scene) throws Exception {
        Scene.ask("policy " + scene.name("q") + " {\"role\": \"queue\", \"priorities\": 10}");
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        for (int priority : new int[] {4, 0, 9, 4, 7}) {
            producer.setPriority(priority);
            Scene.send(session, producer, "p" + priority);
        }
        Scene.expect(session.createConsumer(queue), "p9", "p7", "p4", "p4", "p0");
    }

    @Law
    void what_has_expired_does_not_come(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        producer.setTimeToLive(50);
        Message expiring = session.createTextMessage("expires");
        producer.send(expiring);
        Scene.equal(expiring.getJMSTimestamp() + 50, expiring.getJMSExpiration());
        producer.setTimeToLive(600_000);
        Scene.send(session, producer, "stays");
        while (System.currentTimeMillis() <= expiring.getJMSExpiration()) {
            Thread.sleep(5); // the passing of time is what this law is about
        }
        MessageConsumer consumer = session.createConsumer(queue);
        Message found = Scene.next(consumer);
        Scene.equal("stays", Scene.text(found));
        Scene.equal(found.getJMSTimestamp() + 600_000, found.getJMSExpiration());
        Scene.expectNothing(consumer);
    }

    @Law
    void a_delayed_message_comes_when_its_delay_is_over(Scene scene) throws Exception {
        Scene.ask("policy " + scene.name("q") + " {\"role\": \"queue\", \"delay\": true}");
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);
        producer.setDeliveryDelay(400);
        Scene.send(session, producer, "late");
        producer.setDeliveryDelay(0);
        Scene.send(session, producer, "at once");
        Scene.expect(consumer, "at once");
        notEarly(Scene.next(consumer), "late");
    }

    @Law
    void a_delay_needs_no_policy(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);
        Scene.send(session, producer, "before");
        producer.setDeliveryDelay(400);
        Scene.send(session, producer, "late");
        producer.setDeliveryDelay(0);
        Scene.send(session, producer, "at once");
        Scene.expect(consumer, "before", "at once");
        notEarly(Scene.next(consumer), "late");
    }

    @Law
    void a_delay_needs_no_policy_where_a_temporary_queue_receives(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(queue);
        MessageProducer producer = session.createProducer(queue);
        producer.setDeliveryDelay(300);
        Scene.send(session, producer, "late");
        notEarly(Scene.next(consumer), "late");
    }

    @Law
    void a_producer_without_a_destination_delays_what_it_sends_to_queues(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageConsumer consumer = session.createConsumer(queue);
        MessageProducer producer = session.createProducer(null);
        producer.setDeliveryDelay(300);
        producer.send(queue, session.createTextMessage("late"));
        notEarly(Scene.next(consumer), "late");
        Topic topic = session.createTopic(scene.name("t"));
        session.createConsumer(topic);
        Scene.refused(JMSException.class, "a router delays no messages", () -> {
            producer.send(topic, session.createTextMessage("late"));
            return "it was sent";
        });
        producer.setDeliveryDelay(0);
        producer.send(queue, session.createTextMessage("at once"));
        Scene.expect(consumer, "at once");
    }

    @Law
    void delays_of_messages_that_are_sent_without_waiting_are_kept(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageConsumer consumer = session.createConsumer(queue);
        try (Connection sending = scene.connect()) {
            Session other = sending.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = other.createProducer(queue);
            producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
            for (int number = 0; number < 100; number++) {
                producer.setDeliveryDelay(number % 2 == 0 ? 0 : 500);
                Scene.send(other, producer, "m" + number);
            }
        }
        for (int number = 0; number < 100; number += 2) {
            Scene.expect(consumer, "m" + number);
        }
        for (int number = 1; number < 100; number += 2) {
            notEarly(Scene.next(consumer), "m" + number);
        }
    }

    @Law
    void a_delay_is_refused_where_a_topic_receives(Scene scene) throws Exception {
        Session session = scene.session();
        MessageProducer producer = session.createProducer(session.createTopic(scene.name("t")));
        producer.setDeliveryDelay(400);
        Scene.refused(JMSException.class, "does not support delayed message delivery", () -> {
            Scene.send(session, producer, "late");
            return "it was sent";
        });
    }

    private static void notEarly(Message message, String body) throws JMSException {
        Scene.equal(body, Scene.text(message));
        long early = message.getJMSDeliveryTime() - System.currentTimeMillis();
        Scene.check(early <= 0, body + " came " + early + " ms too early");
    }
}

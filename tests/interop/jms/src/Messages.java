import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
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
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Messages: their bodies, headers and properties, when they come and when they do not. */
final class Messages {
    @Law
    void bodies_of_all_kinds_arrive(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
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

        Place.check(!(Place.next(consumer) instanceof BytesMessage), "expected a message without a body");
        Place.equal("Zug \ud83d\ude82", Place.text(Place.next(consumer)));
        Place.equal(null, Place.text(Place.next(consumer)));
        BytesMessage foundBytes = (BytesMessage) Place.next(consumer);
        byte[] content = new byte[3];
        Place.equal(3, foundBytes.readBytes(content));
        Place.equal(List.of((byte) 0, (byte) 1, (byte) -1), List.of(content[0], content[1], content[2]));
        MapMessage foundMap = (MapMessage) Place.next(consumer);
        Place.equal(-1, foundMap.getInt("int"));
        Place.equal(0.5, foundMap.getDouble("double"));
        Place.equal((byte) 7, foundMap.getBytes("bytes")[0]);
        Place.check(foundMap.itemExists("null") && foundMap.getString("null") == null, "expected an entry null");
        StreamMessage foundStream = (StreamMessage) Place.next(consumer);
        Place.equal(1L << 40, foundStream.readLong());
        Place.equal('x', foundStream.readChar());
        Place.equal(List.of("a", 1), ((ObjectMessage) Place.next(consumer)).getObject());
    }

    @Law
    void headers_and_properties_arrive(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageProducer producer = session.createProducer(queue);
        Message sent = session.createMessage();
        sent.setJMSType("orders.new");
        sent.setJMSCorrelationID("mine");
        sent.setJMSReplyTo(session.createTopic(place.name("replies")));
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

        Message found = Place.next(session.createConsumer(queue));
        Place.equal(sent.getJMSMessageID(), found.getJMSMessageID());
        Place.check(found.getJMSMessageID().startsWith("ID:"), "expected ID:, found " + found.getJMSMessageID());
        Place.equal("orders.new", found.getJMSType());
        Place.equal("mine", found.getJMSCorrelationID());
        Place.equal(session.createTopic(place.name("replies")), found.getJMSReplyTo());
        Place.equal(queue, found.getJMSDestination());
        Place.equal(DeliveryMode.NON_PERSISTENT, found.getJMSDeliveryMode());
        Place.equal(7, found.getJMSPriority());
        Place.equal(0L, found.getJMSExpiration());
        Place.equal(false, found.getJMSRedelivered());
        Place.equal(1, found.getIntProperty("JMSXDeliveryCount"));
        Place.check(found.getJMSTimestamp() >= before, "expected a time stamp of now");
        Place.equal(true, found.getBooleanProperty("boolean"));
        Place.equal((byte) -1, found.getObjectProperty("byte"));
        Place.equal((short) -2, found.getObjectProperty("short"));
        Place.equal(1 << 30, found.getObjectProperty("int"));
        Place.equal(1L << 60, found.getObjectProperty("long"));
        Place.equal(0.25f, found.getObjectProperty("float"));
        Place.equal(1e300, found.getObjectProperty("double"));
        Place.equal("s", found.getObjectProperty("string"));
        Place.equal("group", found.getStringProperty("JMSXGroupID"));
        Place.equal(3, found.getIntProperty("JMSXGroupSeq"));
    }

    @Law
    void messages_of_a_producer_keep_their_order(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        Place.send(session, session.createProducer(queue), Place.numbered(0, 300));
        Place.expect(session.createConsumer(queue), Place.numbered(0, 300));
    }

    @Law
    void sending_without_waiting_is_completed_for_every_message(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
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
        for (String body : Place.numbered(0, 500)) {
            producer.send(session.createTextMessage(body), listener);
        }
        Place.check(waiting.await(Place.SOON_MS, TimeUnit.MILLISECONDS), "expected every send to be completed");
        Place.equal(List.of(), failed);
        Place.expect(session.createConsumer(queue), Place.numbered(0, 500));
    }

    @Law
    void a_queue_with_priorities_delivers_the_highest_first(Place place) throws Exception {
        Place.ask("policy " + place.name("q") + " {\"role\": \"queue\", \"priorities\": 10}");
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageProducer producer = session.createProducer(queue);
        for (int priority : new int[] {4, 0, 9, 4, 7}) {
            producer.setPriority(priority);
            Place.send(session, producer, "p" + priority);
        }
        Place.expect(session.createConsumer(queue), "p9", "p7", "p4", "p4", "p0");
    }

    @Law
    void what_has_expired_does_not_come(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageProducer producer = session.createProducer(queue);
        producer.setTimeToLive(50);
        Message expiring = session.createTextMessage("expires");
        producer.send(expiring);
        Place.equal(expiring.getJMSTimestamp() + 50, expiring.getJMSExpiration());
        producer.setTimeToLive(600_000);
        Place.send(session, producer, "stays");
        while (System.currentTimeMillis() <= expiring.getJMSExpiration()) {
            Thread.sleep(5); // the passing of time is what this law is about
        }
        MessageConsumer consumer = session.createConsumer(queue);
        Message found = Place.next(consumer);
        Place.equal("stays", Place.text(found));
        Place.equal(found.getJMSTimestamp() + 600_000, found.getJMSExpiration());
        Place.expectNothing(consumer);
    }

    @Law
    void a_delayed_message_comes_when_its_delay_is_over(Place place) throws Exception {
        Place.ask("policy " + place.name("q") + " {\"role\": \"queue\", \"delay\": true}");
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);
        producer.setDeliveryDelay(400);
        Place.send(session, producer, "late");
        producer.setDeliveryDelay(0);
        Place.send(session, producer, "at once");
        Place.expect(consumer, "at once");
        Message late = Place.next(consumer);
        Place.equal("late", Place.text(late));
        long now = System.currentTimeMillis();
        Place.check(late.getJMSDeliveryTime() <= now, "came " + (late.getJMSDeliveryTime() - now) + " ms too early");
    }

    @Law
    void a_delay_is_refused_where_the_policy_has_none(Place place) throws Exception {
        Session session = place.session();
        MessageProducer producer = session.createProducer(session.createQueue(place.name("q")));
        producer.setDeliveryDelay(400);
        Place.refused(JMSException.class, "does not support delayed message delivery", () -> {
            Place.send(session, producer, "late");
            return "it was sent";
        });
    }

    @Law
    void a_delay_is_refused_for_a_producer_without_a_destination(Place place) throws Exception {
        Place.ask("policy " + place.name("q") + " {\"role\": \"queue\", \"delay\": true}");
        Session session = place.session();
        MessageProducer producer = session.createProducer(null);
        producer.setDeliveryDelay(400);
        Place.refused(JMSException.class, "does not support delayed message delivery", () -> {
            producer.send(session.createQueue(place.name("q")), session.createMessage());
            return "it was sent";
        });
    }

    @Law
    void a_transacted_session_is_refused_clearly(Place place) throws Exception {
        Place.refused(JMSException.class, "transactions are not available", () -> {
            Session session = place.connect().createSession(true, Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue(place.name("q"));
            session.createProducer(queue).send(session.createMessage());
            session.commit();
            return "it was committed";
        });
        // Nothing else is disturbed by it.
        bodies_of_all_kinds_arrive(place);
    }
}

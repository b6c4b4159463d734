import jakarta.jms.Connection;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;

/** Consumers of queues: selectors, browsers, stopping, receiving without waiting. */
final class Consuming {
    private static List<String> browsed(QueueBrowser browser) throws Exception {
        List<String> found = new ArrayList<>();
        Enumeration<?> messages = browser.getEnumeration();
        while (messages.hasMoreElements()) {
            found.add(Place.text((Message) messages.nextElement()));
        }
        return found;
    }

    @Law
    void a_browser_sees_everything_and_removes_nothing(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        QueueBrowser browser = session.createBrowser(queue);
        Place.equal(List.of(), browsed(browser));
        Place.send(session, session.createProducer(queue), Place.numbered(0, 30));
        Place.equal(List.of(Place.numbered(0, 30)), browsed(browser));
        Place.equal(List.of(Place.numbered(0, 30)), browsed(browser));
        MessageConsumer consumer = session.createConsumer(queue);
        Message first = Place.next(consumer);
        Place.equal("m0", Place.text(first));
        Place.equal(false, first.getJMSRedelivered());
        Place.expect(consumer, Place.numbered(1, 29));
        consumer.close();
        Place.equal(List.of(), browsed(browser));
    }

    @Law
    void a_browser_with_a_selector_sees_what_it_selects(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 10; number++) {
            Message message = session.createTextMessage("m" + number);
            message.setIntProperty("number", number);
            producer.send(message);
        }
        Place.equal(List.of("m3", "m4"), browsed(session.createBrowser(queue, "number BETWEEN 3 AND 4")));
    }

    @Law
    void a_selector_leaves_the_rest_for_others(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 6; number++) {
            Message message = session.createTextMessage("m" + number);
            message.setStringProperty("colour", number % 2 == 0 ? "red" : "blue");
            producer.send(message);
        }
        MessageConsumer red = session.createConsumer(queue, "colour = 'red'");
        Place.expect(red, "m0", "m2", "m4");
        Place.expectNothing(red);
        Place.expect(session.createConsumer(queue), "m1", "m3", "m5");
    }

    @Law
    void selectors_see_headers_and_properties(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageProducer producer = session.createProducer(queue);
        producer.setPriority(8);
        Message message = session.createTextMessage("m");
        message.setJMSType("orders.new");
        message.setJMSCorrelationID("c%1");
        message.setDoubleProperty("price", 12.5);
        message.setBooleanProperty("paid", true);
        message.setStringProperty("JMSXGroupID", "g");
        producer.send(message);
        String id = message.getJMSMessageID();
        for (String wrong : List.of(
                "JMSType = 'orders'", "JMSPriority < 8", "price > 12.5", "NOT paid", "missing = 1", "missing <> 1",
                "missing IS NOT NULL", "price NOT BETWEEN 12 AND 13", "JMSDeliveryMode = 'NON_PERSISTENT'")) {
            MessageConsumer none = session.createConsumer(queue, wrong);
            Message found = none.receiveNoWait();
            Place.check(found == null, "expected nothing for " + wrong);
            none.close();
        }
        for (String right : List.of(
                "JMSType LIKE 'orders.%' AND JMSPriority >= 8", "JMSCorrelationID LIKE 'c!%_' ESCAPE '!'",
                "price * 2 = 25 AND paid", "missing IS NULL OR FALSE", "JMSMessageID = '" + id + "'",
                "JMSXGroupID IN ('f', 'g')", "JMSDeliveryMode = 'PERSISTENT'", "JMSTimestamp > 0")) {
            QueueBrowser browser = session.createBrowser(queue, right);
            Place.check(browsed(browser).equals(List.of("m")), "expected the message for " + right);
            browser.close();
        }
    }

    @Law
    void a_selector_with_an_error_is_refused(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        Place.refused(InvalidSelectorException.class, "", () -> session.createConsumer(queue, "colour = = 'red'"));
    }

    @Law
    void receiving_without_waiting_gives_what_is_there(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageConsumer consumer = session.createConsumer(queue);
        Place.equal(null, consumer.receiveNoWait());
        consumer.close();
        Place.send(session, session.createProducer(queue), "here");
        Place.equal("here", Place.text(session.createConsumer(queue).receiveNoWait()));
    }

    @Law
    void a_stopped_connection_delivers_nothing_until_it_is_started(Place place) throws Exception {
        Connection connection = place.connect();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(place.name("q"));
        MessageConsumer consumer = session.createConsumer(queue);
        connection.stop();
        Place.send(session, session.createProducer(queue), "waits");
        Place.expectNothing(consumer);
        connection.start();
        Place.expect(consumer, "waits");
    }

    @Law
    void two_consumers_of_a_queue_divide_its_messages(Place place) throws Exception {
        Session session = place.session();
        Queue queue = session.createQueue(place.name("q"));
        MessageConsumer one = place.session().createConsumer(queue);
        MessageConsumer two = place.session().createConsumer(queue);
        Place.send(session, session.createProducer(queue), Place.numbered(0, 40));
        List<String> found = new ArrayList<>();
        for (Message message; found.size() < 40; ) {
            for (MessageConsumer each : List.of(one, two)) {
                if ((message = each.receive(20)) != null) {
                    found.add(Place.text(message));
                }
            }
        }
        Place.expectNothing(one);
        Place.expectNothing(two);
        found.sort((a, b) -> Integer.parseInt(a.substring(1)) - Integer.parseInt(b.substring(1)));
        Place.equal(List.of(Place.numbered(0, 40)), found);
    }
}

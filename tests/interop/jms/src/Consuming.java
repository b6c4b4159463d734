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
            found.add(Scene.text((Message) messages.nextElement()));
        }
        return found;
    }

    @Law
    void a_browser_sees_everything_and_removes_nothing(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        QueueBrowser browser = session.createBrowser(queue);
        Scene.equal(List.of(), browsed(browser));
        Scene.send(session, session.createProducer(queue), Scene.numbered(0, 30));
        Scene.equal(List.of(Scene.numbered(0, 30)), browsed(browser));
        Scene.equal(List.of(Scene.numbered(0, 30)), browsed(browser));
        MessageConsumer consumer = session.createConsumer(queue);
        Message first = Scene.next(consumer);
        Scene.equal("m0", Scene.text(first));
        Scene.equal(false, first.getJMSRedelivered());
        Scene.expect(consumer, Scene.numbered(1, 29));
        consumer.close();
        Scene.equal(List.of(), browsed(browser));
    }

    @Law
    void a_browser_with_a_selector_sees_what_it_selects(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 10; number++) {
            Message message = session.createTextMessage("m" + number);
            message.setIntProperty("number", number);
            producer.send(message);
        }
        Scene.equal(List.of("m3", "m4"), browsed(session.createBrowser(queue, "number BETWEEN 3 AND 4")));
    }

    @Law
    void a_selector_leaves_the_rest_for_others(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 6; number++) {
            Message message = session.createTextMessage("m" + number);
            message.setStringProperty("colour", number % 2 == 0 ? "red" : "blue");
            producer.send(message);
        }
        MessageConsumer red = session.createConsumer(queue, "colour = 'red'");
        Scene.expect(red, "m0", "m2", "m4");
        Scene.expectNothing(red);
        Scene.expect(session.createConsumer(queue), "m1", "m3", "m5");
    }

    @Law
    void selectors_see_headers_and_properties(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
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
            Scene.check(found == null, "expected nothing for " + wrong);
            none.close();
        }
        for (String right : List.of(
                "JMSType LIKE 'orders.%' AND JMSPriority >= 8", "JMSCorrelationID LIKE 'c!%_' ESCAPE '!'",
                "price * 2 = 25 AND paid", "missing IS NULL OR FALSE", "JMSMessageID = '" + id + "'",
                "JMSXGroupID IN ('f', 'g')", "JMSDeliveryMode = 'PERSISTENT'", "JMSTimestamp > 0")) {
            QueueBrowser browser = session.createBrowser(queue, right);
            Scene.check(browsed(browser).equals(List.of("m")), "expected the message for " + right);
            browser.close();
        }
    }

    @Law
    void a_selector_with_an_error_is_refused(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        Scene.refused(InvalidSelectorException.class, "", () -> session.createConsumer(queue, "colour = = 'red'"));
    }

    @Law
    void receiving_without_waiting_gives_what_is_there(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageConsumer consumer = session.createConsumer(queue);
        Scene.equal(null, consumer.receiveNoWait());
        consumer.close();
        Scene.send(session, session.createProducer(queue), "here");
        Scene.equal("here", Scene.text(session.createConsumer(queue).receiveNoWait()));
    }

    @Law
    void a_stopped_connection_delivers_nothing_until_it_is_started(Scene scene) throws Exception {
        Connection connection = scene.connect();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(scene.name("q"));
        MessageConsumer consumer = session.createConsumer(queue);
        connection.stop();
        Scene.send(session, session.createProducer(queue), "waits");
        Scene.expectNothing(consumer);
        connection.start();
        Scene.expect(consumer, "waits");
    }

    @Law
    void two_consumers_of_a_queue_divide_its_messages(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageConsumer one = scene.session().createConsumer(queue);
        MessageConsumer two = scene.session().createConsumer(queue);
        Scene.send(session, session.createProducer(queue), Scene.numbered(0, 40));
        List<String> found = new ArrayList<>();
        for (Message message; found.size() < 40; ) {
            for (MessageConsumer each : List.of(one, two)) {
                if ((message = each.receive(20)) != null) {
                    found.add(Scene.text(message));
                }
            }
        }
        Scene.expectNothing(one);
        Scene.expectNothing(two);
        found.sort((a, b) -> Integer.parseInt(a.substring(1)) - Integer.parseInt(b.substring(1)));
        Scene.equal(List.of(Scene.numbered(0, 40)), found);
    }
}

import jakarta.jms.Connection;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.JMSException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import jakarta.jms.Topic;

/** A client identifier is one connection's at a time (JMS 2.0, 6.1.2). */
final class ClientIdentifiers {
    @Law
    void a_second_connection_of_a_client_identifier_is_refused(Scene scene) throws Exception {
        Connection first = scene.connectAs("c");
        Session session = first.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Scene.refused(InvalidClientIDException.class, "", () -> scene.connectAs("c"));
        // The first one is not disturbed.
        Scene.send(session, session.createProducer(topic), "still here");
        Scene.expect(consumer, "still here");
    }

    @Law
    void a_client_identifier_is_free_when_its_connection_is_closed(Scene scene) throws Exception {
        for (int round = 0; round < 20; round++) {
            scene.connectAs("c").close();
        }
    }

    @Law
    void a_client_that_was_lost_comes_back_under_its_identifier(Scene scene) throws Exception {
        Connection connection = scene.connectForGood("c");
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Scene.ask("kill frontend");
        for (long deadline = System.currentTimeMillis() + Scene.SOON_MS; ; ) {
            try {
                Scene.send(session, session.createProducer(topic), "back");
                break;
            } catch (JMSException lost) {
                Scene.check(System.currentTimeMillis() < deadline, "expected a connection again: " + lost);
            }
        }
        Scene.expect(consumer, "back");
        Scene.refused(InvalidClientIDException.class, "", () -> scene.connectAs("c"));
    }
}

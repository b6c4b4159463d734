import jakarta.jms.Connection;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;

/** Temporary queues and topics, and requests that are answered over them. */
final class Temporary {
    private static Session session(Connection connection) throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    @Law
    void a_request_is_answered_over_a_temporary_queue(Scene scene) throws Exception {
        Session asking = scene.session();
        Session answering = scene.session();
        Queue service = asking.createQueue(scene.name("service"));
        MessageConsumer requests = answering.createConsumer(service);
        MessageProducer answers = answering.createProducer(null);
        TemporaryQueue replies = asking.createTemporaryQueue();
        MessageConsumer consumer = asking.createConsumer(replies);
        for (String body : Scene.numbered(0, 20)) {
            Message request = asking.createTextMessage(body);
            request.setJMSReplyTo(replies);
            asking.createProducer(service).send(request);
            Message came = Scene.next(requests);
            Message answer = answering.createTextMessage("answer to " + Scene.text(came));
            answer.setJMSCorrelationID(came.getJMSMessageID());
            answers.send(came.getJMSReplyTo(), answer);
            Message found = Scene.next(consumer);
            Scene.equal("answer to " + body, Scene.text(found));
            Scene.equal(request.getJMSMessageID(), found.getJMSCorrelationID());
        }
    }

    @Law
    void a_temporary_topic_reaches_every_consumer(Scene scene) throws Exception {
        Connection connection = scene.connect();
        Session session = session(connection);
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer two = session(connection).createConsumer(topic);
        Session other = scene.session();
        Scene.send(other, other.createProducer(topic), "a", "b");
        Scene.expect(one, "a", "b");
        Scene.expect(two, "a", "b");
        one.close();
        Scene.send(other, other.createProducer(topic), "c");
        Scene.expect(two, "c");
    }

    @Law
    void an_answer_comes_over_a_temporary_topic(Scene scene) throws Exception {
        Session asking = scene.session();
        Session answering = scene.session();
        Queue service = asking.createQueue(scene.name("service"));
        TemporaryTopic replies = asking.createTemporaryTopic();
        MessageConsumer consumer = asking.createConsumer(replies);
        Message request = asking.createTextMessage("question");
        request.setJMSReplyTo(replies);
        asking.createProducer(service).send(request);
        Message came = Scene.next(answering.createConsumer(service));
        Scene.equal(replies, came.getJMSReplyTo());
        answering.createProducer(null).send(came.getJMSReplyTo(), answering.createTextMessage("answer"));
        Scene.expect(consumer, "answer");
    }

    @Law
    void a_temporary_topic_without_consumers_drops(Scene scene) throws Exception {
        Session session = scene.session();
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageProducer producer = session.createProducer(topic);
        Scene.send(session, producer, "nobody");
        MessageConsumer consumer = session.createConsumer(topic);
        Scene.send(session, producer, "somebody");
        Scene.expect(consumer, "somebody");
    }

    @Law
    void temporary_destinations_can_be_deleted(Scene scene) throws Exception {
        Session session = scene.session();
        Session other = scene.session();
        TemporaryQueue queue = session.createTemporaryQueue();
        TemporaryTopic topic = session.createTemporaryTopic();
        other.createProducer(queue).close();
        other.createProducer(topic).close();
        MessageConsumer consumer = session.createConsumer(queue);
        Scene.refused(JMSException.class, "", () -> {
            queue.delete();
            return "it was deleted while it was consumed from";
        });
        consumer.close();
        queue.delete();
        topic.delete();
        Scene.refused(InvalidDestinationException.class, "", () -> other.createProducer(queue));
        Scene.refused(InvalidDestinationException.class, "", () -> other.createProducer(topic));
    }

    @Law
    void temporary_destinations_go_with_their_connection(Scene scene) throws Exception {
        Connection connection = scene.connect();
        Session session = session(connection);
        TemporaryQueue queue = session.createTemporaryQueue();
        TemporaryTopic topic = session.createTemporaryTopic();
        session.createConsumer(topic);
        connection.close();
        Session other = scene.session();
        Scene.refused(JMSException.class, "", () -> untilRefused(other, queue));
        Scene.refused(JMSException.class, "", () -> untilRefused(other, topic));
    }

    /** The names go soon after the connection: nothing answers its end that one could wait for. */
    private static Object untilRefused(Session session, jakarta.jms.Destination destination) throws Exception {
        long deadline = System.currentTimeMillis() + Scene.SOON_MS;
        while (System.currentTimeMillis() < deadline) {
            session.createProducer(destination).close();
        }
        return "it is still there";
    }

    @Law
    void only_its_connection_receives_from_a_temporary_destination(Scene scene) throws Exception {
        Session session = scene.session();
        TemporaryQueue queue = session.createTemporaryQueue();
        TemporaryTopic topic = session.createTemporaryTopic();
        Session other = scene.session();
        Scene.refused(JMSException.class, "", () -> other.createConsumer(queue));
        Scene.refused(JMSException.class, "", () -> other.createConsumer(topic));
    }
}

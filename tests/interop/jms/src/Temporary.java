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
    void a_request_is_answered_over_a_temporary_queue(Place place) throws Exception {
        Session asking = place.session();
        Session answering = place.session();
        Queue service = asking.createQueue(place.name("service"));
        MessageConsumer requests = answering.createConsumer(service);
        MessageProducer answers = answering.createProducer(null);
        TemporaryQueue replies = asking.createTemporaryQueue();
        MessageConsumer consumer = asking.createConsumer(replies);
        for (String body : Place.numbered(0, 20)) {
            Message request = asking.createTextMessage(body);
            request.setJMSReplyTo(replies);
            asking.createProducer(service).send(request);
            Message came = Place.next(requests);
            Message answer = answering.createTextMessage("answer to " + Place.text(came));
            answer.setJMSCorrelationID(came.getJMSMessageID());
            answers.send(came.getJMSReplyTo(), answer);
            Message found = Place.next(consumer);
            Place.equal("answer to " + body, Place.text(found));
            Place.equal(request.getJMSMessageID(), found.getJMSCorrelationID());
        }
    }

    @Law
    void a_temporary_topic_reaches_every_consumer(Place place) throws Exception {
        Connection connection = place.connect();
        Session session = session(connection);
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer two = session(connection).createConsumer(topic);
        Session other = place.session();
        Place.send(other, other.createProducer(topic), "a", "b");
        Place.expect(one, "a", "b");
        Place.expect(two, "a", "b");
        one.close();
        Place.send(other, other.createProducer(topic), "c");
        Place.expect(two, "c");
    }

    @Law
    void an_answer_comes_over_a_temporary_topic(Place place) throws Exception {
        Session asking = place.session();
        Session answering = place.session();
        Queue service = asking.createQueue(place.name("service"));
        TemporaryTopic replies = asking.createTemporaryTopic();
        MessageConsumer consumer = asking.createConsumer(replies);
        Message request = asking.createTextMessage("question");
        request.setJMSReplyTo(replies);
        asking.createProducer(service).send(request);
        Message came = Place.next(answering.createConsumer(service));
        Place.equal(replies, came.getJMSReplyTo());
        answering.createProducer(null).send(came.getJMSReplyTo(), answering.createTextMessage("answer"));
        Place.expect(consumer, "answer");
    }

    @Law
    void a_temporary_topic_without_consumers_drops(Place place) throws Exception {
        Session session = place.session();
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageProducer producer = session.createProducer(topic);
        Place.send(session, producer, "nobody");
        MessageConsumer consumer = session.createConsumer(topic);
        Place.send(session, producer, "somebody");
        Place.expect(consumer, "somebody");
    }

    @Law
    void temporary_destinations_can_be_deleted(Place place) throws Exception {
        Session session = place.session();
        Session other = place.session();
        TemporaryQueue queue = session.createTemporaryQueue();
        TemporaryTopic topic = session.createTemporaryTopic();
        other.createProducer(queue).close();
        other.createProducer(topic).close();
        MessageConsumer consumer = session.createConsumer(queue);
        Place.refused(JMSException.class, "", () -> {
            queue.delete();
            return "it was deleted while it was consumed from";
        });
        consumer.close();
        queue.delete();
        topic.delete();
        Place.refused(InvalidDestinationException.class, "", () -> other.createProducer(queue));
        Place.refused(InvalidDestinationException.class, "", () -> other.createProducer(topic));
    }

    @Law
    void temporary_destinations_go_with_their_connection(Place place) throws Exception {
        Connection connection = place.connect();
        Session session = session(connection);
        TemporaryQueue queue = session.createTemporaryQueue();
        TemporaryTopic topic = session.createTemporaryTopic();
        session.createConsumer(topic);
        connection.close();
        Session other = place.session();
        Place.refused(JMSException.class, "", () -> untilRefused(other, queue));
        Place.refused(JMSException.class, "", () -> untilRefused(other, topic));
    }

    /** The names go soon after the connection: nothing answers its end that one could wait for. */
    private static Object untilRefused(Session session, jakarta.jms.Destination destination) throws Exception {
        long deadline = System.currentTimeMillis() + Place.SOON_MS;
        while (System.currentTimeMillis() < deadline) {
            session.createProducer(destination).close();
        }
        return "it is still there";
    }

    @Law
    void only_its_connection_receives_from_a_temporary_destination(Place place) throws Exception {
        Session session = place.session();
        TemporaryQueue queue = session.createTemporaryQueue();
        TemporaryTopic topic = session.createTemporaryTopic();
        Session other = place.session();
        Place.refused(JMSException.class, "", () -> other.createConsumer(queue));
        Place.refused(JMSException.class, "", () -> other.createConsumer(topic));
    }
}

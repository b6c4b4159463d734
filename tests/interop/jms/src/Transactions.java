import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.springframework.jms.connection.CachingConnectionFactory;
import org.springframework.jms.connection.JmsTransactionManager;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.jms.listener.DefaultMessageListenerContainer;
import org.springframework.transaction.support.TransactionTemplate;

/** Transacted sessions: what was sent and received between two commits happens together, or not at all. */
final class Transactions {
    private static Session transacted(Connection connection) throws JMSException {
        return connection.createSession(true, Session.SESSION_TRANSACTED);
    }

    private static void delivered(Message message, String body, int count) throws JMSException {
        Scene.equal(body, Scene.text(message));
        Scene.equal(count, message.getIntProperty("JMSXDeliveryCount"));
        Scene.equal(count > 1, message.getJMSRedelivered());
    }

    // --- sending -----------------------------------------------------------------------------------------

    @Law
    void what_was_sent_comes_when_it_is_committed(Scene scene) throws Exception {
        Session session = transacted(scene.connect());
        Queue queue = session.createQueue(scene.name("q"));
        MessageConsumer consumer = scene.session().createConsumer(queue);
        Scene.send(session, session.createProducer(queue), Scene.numbered(0, 20));
        Scene.expectNothing(consumer);
        session.commit();
        Scene.expect(consumer, Scene.numbered(0, 20));
        Scene.equal(true, session.getTransacted());
    }

    @Law
    void what_was_sent_and_rolled_back_never_comes(Scene scene) throws Exception {
        Session session = transacted(scene.connect());
        Queue queue = session.createQueue(scene.name("q"));
        MessageConsumer consumer = scene.session().createConsumer(queue);
        MessageProducer producer = session.createProducer(queue);
        Scene.send(session, producer, Scene.numbered(0, 20));
        session.rollback();
        Scene.expectNothing(consumer);
        Scene.send(session, producer, "after");
        session.commit();
        Scene.expect(consumer, "after");
        Scene.expectNothing(consumer);
    }

    // --- receiving ---------------------------------------------------------------------------------------

    @Law
    void what_was_received_is_gone_when_it_is_committed(Scene scene) throws Exception {
        Connection connection = scene.connectWithoutPrefetch("c");
        Session session = transacted(connection);
        Queue queue = session.createQueue(scene.name("q"));
        Session other = scene.session();
        Scene.send(other, other.createProducer(queue), Scene.numbered(0, 5));
        MessageConsumer consumer = session.createConsumer(queue);
        Scene.expect(consumer, "m0", "m1", "m2");
        session.commit();
        connection.close();
        delivered(Scene.next(other.createConsumer(queue)), "m3", 1);
    }

    @Law
    void what_was_received_and_rolled_back_comes_again_in_order(Scene scene) throws Exception {
        Session session = transacted(scene.connectWithoutPrefetch("c"));
        Queue queue = session.createQueue(scene.name("q"));
        Session other = scene.session();
        Scene.send(other, other.createProducer(queue), Scene.numbered(0, 4));
        MessageConsumer consumer = session.createConsumer(queue);
        for (int count = 1; count <= 3; count++) {
            delivered(Scene.next(consumer), "m0", count);
            delivered(Scene.next(consumer), "m1", count);
            session.rollback();
        }
        delivered(Scene.next(consumer), "m0", 4);
        delivered(Scene.next(consumer), "m1", 4);
        delivered(Scene.next(consumer), "m2", 1);
        session.commit();
        delivered(Scene.next(consumer), "m3", 1);
        session.commit();
        Scene.expectNothing(consumer);
    }

    @Law
    void a_session_that_is_closed_without_a_commit_rolls_back(Scene scene) throws Exception {
        for (String closed : List.of("session", "connection")) {
            Connection connection = scene.connectWithoutPrefetch("c" + closed);
            Session session = transacted(connection);
            Queue from = session.createQueue(scene.name("from-" + closed));
            Queue to = session.createQueue(scene.name("to-" + closed));
            Session other = scene.session();
            Scene.send(other, other.createProducer(from), "m");
            Scene.equal("m", Scene.text(Scene.next(session.createConsumer(from))));
            Scene.send(session, session.createProducer(to), "never");
            if (closed.equals("session")) {
                session.close();
            } else {
                connection.close();
            }
            delivered(Scene.next(other.createConsumer(from)), "m", 2);
            Scene.expectNothing(other.createConsumer(to));
        }
    }

    // --- several sessions and kinds of them ---------------------------------------------------------------

    @Law
    void sessions_of_one_connection_have_transactions_of_their_own(Scene scene) throws Exception {
        Connection connection = scene.connect();
        Session one = transacted(connection);
        Session two = transacted(connection);
        Session plain = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = one.createQueue(scene.name("q"));
        MessageConsumer consumer = scene.session().createConsumer(queue);
        Scene.send(one, one.createProducer(queue), "of one");
        Scene.send(two, two.createProducer(queue), "of two");
        Scene.send(plain, plain.createProducer(queue), "of none");
        Scene.expect(consumer, "of none");
        two.commit();
        Scene.expect(consumer, "of two");
        one.rollback();
        Scene.expectNothing(consumer);
    }

    @Law
    void a_thousand_transactions_follow_each_other(Scene scene) throws Exception {
        Session session = transacted(scene.connect());
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);
        for (int round = 0; round < 500; round++) {
            Scene.send(session, producer, "m" + round);
            session.commit();
            Scene.expect(consumer, "m" + round);
            session.commit();
        }
    }

    @Law
    void a_durable_subscriber_receives_in_a_transaction(Scene scene) throws Exception {
        Connection connection = scene.connectWithoutPrefetch("c");
        Session session = transacted(connection);
        Topic topic = session.createTopic(scene.name("t"));
        MessageConsumer consumer = session.createDurableConsumer(topic, "s");
        Session other = scene.session();
        Scene.send(other, other.createProducer(topic), "one", "two");
        Scene.expect(consumer, "one", "two");
        session.rollback();
        Scene.expect(consumer, "one");
        session.commit();
        consumer.close();
        MessageConsumer again = session.createDurableConsumer(topic, "s");
        Scene.expect(again, "two");
        session.commit();
        Scene.expectNothing(again);
    }

    @Law
    void a_transaction_whose_messages_are_for_nobody_is_committed(Scene scene) throws Exception {
        Session session = transacted(scene.connect());
        Topic topic = session.createTopic(scene.name("t"));
        MessageProducer producer = session.createProducer(topic);
        Scene.send(session, producer, "for nobody");
        session.commit();
        MessageConsumer consumer = scene.session().createConsumer(topic);
        Scene.send(session, producer, "for one");
        session.commit();
        Scene.expect(consumer, "for one");
        Scene.expectNothing(consumer);
    }

    @Law
    void a_delay_needs_no_policy_in_a_transaction_either(Scene scene) throws Exception {
        Session session = transacted(scene.connect());
        Queue queue = session.createQueue(scene.name("q"));
        MessageConsumer consumer = scene.session().createConsumer(queue);
        MessageProducer producer = session.createProducer(queue);
        Scene.send(session, producer, "before");
        producer.setDeliveryDelay(600);
        Scene.send(session, producer, "late");
        producer.setDeliveryDelay(0);
        Scene.send(session, producer, "at once");
        session.commit();
        Scene.expect(consumer, "before", "at once");
        Message late = Scene.next(consumer);
        Scene.equal("late", Scene.text(late));
        Scene.check(late.getJMSDeliveryTime() <= System.currentTimeMillis(), "came too early");
    }

    @Law
    void a_subscriber_without_local_messages_gets_none_of_a_transaction_either(Scene scene) throws Exception {
        Connection connection = scene.connect();
        Session session = transacted(connection);
        Topic topic = session.createTopic(scene.name("t"));
        Session plain = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer others = plain.createConsumer(topic, null, true);
        Scene.send(session, session.createProducer(topic), "local");
        session.commit();
        Session elsewhere = transacted(scene.connect());
        Scene.send(elsewhere, elsewhere.createProducer(topic), "of another");
        elsewhere.commit();
        Scene.expect(others, "of another");
        Scene.expectNothing(others);
    }

    @Law
    void a_context_commits_and_rolls_back(Scene scene) throws Exception {
        try (JMSContext context =
                new JmsConnectionFactory("amqp://" + scene.address).createContext(JMSContext.SESSION_TRANSACTED)) {
            Queue queue = context.createQueue(scene.name("q"));
            context.createProducer().send(queue, "lost");
            context.rollback();
            context.createProducer().send(queue, "kept");
            context.commit();
            var consumer = context.createConsumer(queue);
            Scene.equal("kept", consumer.receiveBody(String.class, Scene.SOON_MS));
            context.rollback();
            Scene.equal("kept", consumer.receiveBody(String.class, Scene.SOON_MS));
            context.commit();
            Scene.equal(null, consumer.receiveBody(String.class, Scene.QUIET_MS));
        }
    }

    // --- Spring ------------------------------------------------------------------------------------------

    @Law
    void a_transaction_of_spring_commits_and_rolls_back(Scene scene) throws Exception {
        CachingConnectionFactory factory =
                new CachingConnectionFactory(new JmsConnectionFactory("amqp://" + scene.address));
        try {
            JmsTemplate template = new JmsTemplate(factory);
            template.setSessionTransacted(true);
            template.setReceiveTimeout(Scene.SOON_MS);
            TransactionTemplate transactions = new TransactionTemplate(new JmsTransactionManager(factory));
            transactions.executeWithoutResult(status -> {
                template.convertAndSend(scene.name("q"), "lost");
                status.setRollbackOnly();
            });
            transactions.executeWithoutResult(status -> template.convertAndSend(scene.name("q"), "kept"));
            transactions.executeWithoutResult(status -> {
                Scene.equal("kept", template.receiveAndConvert(scene.name("q")));
                status.setRollbackOnly();
            });
            transactions.executeWithoutResult(status ->
                    Scene.equal("kept", template.receiveAndConvert(scene.name("q"))));
        } finally {
            factory.destroy();
        }
        Scene.expectNothing(scene.session().createConsumer(scene.session().createQueue(scene.name("q"))));
    }

    @Law
    void a_transacted_container_of_spring_receives_again_what_fails(Scene scene) throws Exception {
        ConnectionFactory factory = new JmsConnectionFactory("amqp://" + scene.address);
        DefaultMessageListenerContainer container = new DefaultMessageListenerContainer();
        container.setConnectionFactory(factory);
        container.setDestinationName(scene.name("q"));
        container.setSessionTransacted(true);
        container.setConcurrency("2");
        container.setErrorHandler(error -> {});
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch came = new CountDownLatch(30);
        container.setMessageListener((jakarta.jms.MessageListener) message -> {
            try {
                if (!message.getJMSRedelivered()) {
                    throw new IllegalStateException("the first time fails");
                }
                Scene.check(seen.add(((TextMessage) message).getText()), "expected each message once");
            } catch (JMSException error) {
                throw new IllegalStateException(error);
            }
            came.countDown();
        });
        container.afterPropertiesSet();
        container.start();
        try {
            Session session = scene.session();
            Scene.send(session, session.createProducer(session.createQueue(scene.name("q"))), Scene.numbered(0, 30));
            Scene.check(came.await(Scene.SOON_MS, TimeUnit.MILLISECONDS), "expected all, found " + seen);
        } finally {
            container.destroy();
        }
        Session after = scene.session();
        Scene.expectNothing(after.createConsumer(after.createQueue(scene.name("q"))));
    }

}

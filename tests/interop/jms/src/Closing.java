import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** The ends of things: in every order, twice, while somebody waits, and from a listener. */
final class Closing {
    private static List<List<Integer>> orders(int count) {
        List<List<Integer>> found = List.of(List.of());
        for (int number = 0; number < count; number++) {
            List<List<Integer>> longer = new ArrayList<>();
            for (List<Integer> each : found) {
                for (int place = 0; place <= each.size(); place++) {
                    List<Integer> with = new ArrayList<>(each);
                    with.add(place, number);
                    longer.add(with);
                }
            }
            found = longer;
        }
        return found;
    }

    @Law
    void everything_may_be_closed_in_every_order_and_twice(Scene scene) throws Exception {
        Session other = scene.session();
        for (List<Integer> order : orders(5)) {
            Queue queue = other.createQueue(scene.name("q" + order.toString().replaceAll("\\D", "")));
            Connection connection = scene.connect();
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(queue);
            MessageConsumer consumer = session.createConsumer(queue);
            QueueBrowser browser = session.createBrowser(queue);
            browser.getEnumeration();
            Scene.send(session, producer, "one", "two", "three");
            Scene.equal("one", Scene.text(Scene.next(consumer)));
            List<AutoCloseable> things = List.of(producer, consumer, browser, session, connection);
            for (int round = 0; round < 2; round++) {
                for (int each : order) {
                    things.get(each).close();
                }
            }
        }
        for (List<Integer> order : orders(5).subList(0, 10)) {
            Queue queue = other.createQueue(scene.name("q" + order.toString().replaceAll("\\D", "")));
            MessageConsumer rest = other.createConsumer(queue);
            Scene.expect(rest, "one", "two", "three");
            rest.close();
        }
    }

    @Law
    void closing_counts_nothing_of_what_was_fetched_ahead(Scene scene) throws Exception {
        Session other = scene.session();
        Queue queue = other.createQueue(scene.name("q"));
        Scene.send(other, other.createProducer(queue), Scene.numbered(0, 200));
        for (int round = 0; round < 100; round++) {
            Connection connection = scene.connect();
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(queue);
            Scene.equal("m" + round, Scene.text(Scene.next(consumer)));
            if (round % 3 == 0) {
                consumer.close();
            }
            if (round % 3 == 1) {
                session.close();
            }
            connection.close();
        }
        MessageConsumer rest = other.createConsumer(queue);
        for (String body : Scene.numbered(100, 100)) {
            Message message = Scene.next(rest);
            Scene.equal(body, Scene.text(message));
            Scene.equal(1, message.getIntProperty("JMSXDeliveryCount"));
        }
    }

    @Law
    void what_is_closed_can_not_be_used(Scene scene) throws Exception {
        Connection connection = scene.connect();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);
        Message message = session.createTextMessage("m");
        connection.close();
        Scene.refused(jakarta.jms.IllegalStateException.class, "closed", consumer::receiveNoWait);
        Scene.refused(jakarta.jms.IllegalStateException.class, "closed", () -> session.createConsumer(queue));
        Scene.refused(jakarta.jms.IllegalStateException.class, "closed", () -> {
            producer.send(message);
            return "it was sent";
        });
    }

    @Law
    void a_receiver_that_waits_when_it_is_closed_gets_nothing(Scene scene) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        try {
            for (String closed : List.of("consumer", "session", "connection")) {
                Connection connection = scene.connect();
                Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                MessageConsumer consumer = session.createConsumer(session.createQueue(scene.name("q")));
                Callable<Message> waits = consumer::receive;
                Future<Message> received = threads.submit(waits);
                switch (closed) {
                    case "consumer" -> consumer.close();
                    case "session" -> session.close();
                    default -> connection.close();
                }
                try {
                    Scene.equal(null, received.get(Scene.SOON_MS, TimeUnit.MILLISECONDS));
                } catch (java.util.concurrent.ExecutionException late) {
                    // It was closed before it began to wait.
                    Scene.check(late.getCause() instanceof jakarta.jms.IllegalStateException, late.toString());
                }
            }
        } finally {
            threads.shutdownNow();
        }
    }

    @Law
    void a_listener_may_close_its_consumer_and_the_rest_stays(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        Scene.send(session, session.createProducer(queue), Scene.numbered(0, 10));
        MessageConsumer consumer = scene.session().createConsumer(queue);
        CompletableFuture<String> closed = new CompletableFuture<>();
        consumer.setMessageListener(message -> {
            try {
                consumer.close();
                closed.complete(Scene.text(message));
            } catch (JMSException error) {
                closed.completeExceptionally(error);
            }
        });
        Scene.equal("m0", closed.get(Scene.SOON_MS, TimeUnit.MILLISECONDS));
        Scene.expect(session.createConsumer(queue), Scene.numbered(1, 9));
    }

    @Law
    void a_thousand_producers_and_consumers_come_and_go(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        for (int round = 0; round < 500; round++) {
            MessageProducer producer = session.createProducer(queue);
            producer.send(session.createTextMessage("m" + round));
            producer.close();
            MessageConsumer consumer = session.createConsumer(queue);
            Scene.expect(consumer, "m" + round);
            consumer.close();
        }
    }
}

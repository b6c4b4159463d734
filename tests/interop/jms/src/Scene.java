import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import org.apache.qpid.jms.JmsConnectionFactory;

/** What one law works with: names and connections of its own, and checks. Everything is closed when the law ends. */
final class Scene implements AutoCloseable {
    /** In which something that has to come comes, on a machine with other work. */
    static final long SOON_MS = 15_000;
    /** In which nothing comes. The broker hands out what it has at once, so this need not be long. */
    static final long QUIET_MS = 150;

    private static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));

    final String address;
    private final String law;
    private final List<Connection> connections = new ArrayList<>();

    Scene(String address, String law) {
        this.address = address;
        this.law = law;
    }

    /** A name that no other law uses. */
    String name(String last) {
        return "jms/" + law + "/" + last;
    }

    /** A started connection without a client identifier. */
    Connection connect() throws JMSException {
        return connect("amqp://" + address, null);
    }

    /** A started connection with a client identifier, which is kept apart from those of other laws. */
    Connection connectAs(String client) throws JMSException {
        return connect("amqp://" + address, law + "." + client);
    }

    /** A started connection that comes back when it is lost. */
    Connection connectForGood(String client) throws JMSException {
        String uri = "failover:(amqp://" + address + ")?failover.reconnectDelay=50&failover.maxReconnectDelay=200"
                + "&failover.initialReconnectDelay=0&failover.maxReconnectAttempts=200";
        return connect(uri, client == null ? null : law + "." + client);
    }

    /**
     * The same, fetching each message when it is asked for. A client that fetches ahead gets what it gives back at its end
     * once more before it has closed its consumer, which counts as another delivery.
     */
    Connection connectWithoutPrefetch(String client) throws JMSException {
        return connect("amqp://" + address + "?jms.prefetchPolicy.all=0", law + "." + client);
    }

    private Connection connect(String uri, String client) throws JMSException {
        Connection made = new JmsConnectionFactory(uri).createConnection();
        synchronized (connections) {
            connections.add(made);
        }
        if (client != null) {
            made.setClientID(client);
        }
        made.start();
        return made;
    }

    /** The same as a session that acknowledges by itself. */
    Session session() throws JMSException {
        return connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    /** Asks the keeper of the broker, test_jms.py: {@code policy NAME JSON}, {@code kill ROLE}, {@code restart}. */
    static synchronized String ask(String what) throws IOException {
        System.out.println("ask " + what);
        String answer = ANSWERS.readLine();
        if (answer == null || answer.startsWith("error")) {
            throw new IOException(what + ": " + answer);
        }
        return answer;
    }

    // --- messages --------------------------------------------------------------------------------------

    static void send(Session session, MessageProducer producer, String... bodies) throws JMSException {
        for (String body : bodies) {
            producer.send(session.createTextMessage(body));
        }
    }

    static String[] numbered(int first, int count) {
        String[] made = new String[count];
        for (int index = 0; index < count; index++) {
            made[index] = "m" + (first + index);
        }
        return made;
    }

    /** The next message, which has to come. */
    static Message next(MessageConsumer consumer) throws JMSException {
        Message found = consumer.receive(SOON_MS);
        check(found != null, "expected a message, none came");
        return found;
    }

    static String text(Message message) throws JMSException {
        return ((TextMessage) message).getText();
    }

    /** The bodies of the next messages. */
    static List<String> texts(MessageConsumer consumer, int count) throws JMSException {
        List<String> found = new ArrayList<>();
        while (found.size() < count) {
            Message message = consumer.receive(SOON_MS);
            check(message != null, "expected " + count + " messages, found " + found);
            found.add(text(message));
        }
        return found;
    }

    static void expect(MessageConsumer consumer, String... bodies) throws JMSException {
        equal(List.of(bodies), texts(consumer, bodies.length));
    }

    static void expectNothing(MessageConsumer consumer) throws JMSException {
        Message found = consumer.receive(QUIET_MS);
        check(found == null, "expected no message, found " + found);
    }

    // --- checks ----------------------------------------------------------------------------------------

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object expected, Object found) {
        check(Objects.equals(expected, found), "expected " + expected + ", found " + found);
    }

    /** What a call is refused with, which has to be of this kind and say this. */
    static <T extends Exception> T refused(Class<T> kind, String saying, Callable<?> call) {
        Object came;
        try {
            came = call.call();
        } catch (Exception found) {
            String all = found.getClass().getName() + ": " + found.getMessage();
            check(kind.isInstance(found), "expected " + kind.getName() + ", found " + all);
            check(String.valueOf(found.getMessage()).contains(saying), "expected '" + saying + "' in " + all);
            return kind.cast(found);
        }
        throw new AssertionError("expected " + kind.getName() + ", found no error but " + came);
    }

    @Override
    public void close() throws JMSException {
        synchronized (connections) {
            for (Connection each : connections) {
                each.close();
            }
        }
    }
}

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.models.SubQueue;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;

/**
 * Calls of Azure's client for Java: {@code java Azure CONNECTION_STRING OTHER SECURE PREFIX NAME...} prints a line of JSON for
 * each scenario of that name; OTHER is the connection string of a user who may only receive, SECURE is one over TLS.
 */
final class Azure {
    private static final Duration TIMEOUT = Duration.ofSeconds(30);
    /** How long to wait for messages, which another program may send. */
    private static final Duration PATIENCE = Duration.ofSeconds(100);
    private static final PrintStream LINES = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Scenario> SCENARIOS = Map.ofEntries(
            Map.entry("send", Scenarios::send), Map.entry("batch", Scenarios::batch),
            Map.entry("settle", Scenarios::settle), Map.entry("renew", Scenarios::renew),
            Map.entry("lost", Scenarios::lost), Map.entry("rules", Scenarios::rules),
            Map.entry("peek", Scenarios::peek), Map.entry("schedule", Scenarios::schedule),
            Map.entry("topic", Scenarios::topic), Map.entry("refused", Scenarios::refused),
            Map.entry("websocket", Scenarios::websocket), Map.entry("processor", Scenarios::processor),
            Map.entry("transaction", Scenarios::transaction), Map.entry("deferring", Scenarios::deferring),
            Map.entry("deferred", Scenarios::deferred), Map.entry("duplicates", Scenarios::duplicates),
            Map.entry("session", Scenarios::session), Map.entry("restart", Scenarios::restart),
            Map.entry("settling", Transactions::settling), Map.entry("sessions", Transactions::sessions),
            Map.entry("pairs", Pairs::pairs));

    private Azure() {}

    /** What a scenario does; gives what it found. */
    @FunctionalInterface
    interface Scenario {
        Map<String, Object> play(Scene scene) throws Exception;
    }

    /** What a scenario works with: nodes whose names start with {@code name} are its own. */
    static final class Scene {
        final String connectionString;
        final String other;
        final String secure;
        final String name;
        ServiceBusClientBuilder builder;
        private final Deque<AutoCloseable> opened = new ArrayDeque<>();

        Scene(String connectionString, String other, String secure, String name) {
            this.connectionString = connectionString;
            this.other = other;
            this.secure = secure;
            this.name = name;
            this.builder = builder(connectionString);
        }

        /** Connects as a builder says; what it makes has a connection in common. */
        static ServiceBusClientBuilder builder(String connectionString) {
            return new ServiceBusClientBuilder()
                    .connectionString(connectionString)
                    .retryOptions(new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(TIMEOUT));
        }

        /** Closes it at the end, before what was opened earlier. */
        <T extends AutoCloseable> T opened(T client) {
            opened.push(client);
            return client;
        }

        ServiceBusSenderClient sender() {
            return opened(builder.sender().queueName(name).buildClient());
        }

        ServiceBusReceiverClient receiver() {
            return opened(builder.receiver().queueName(name).disableAutoComplete().buildClient());
        }

        ServiceBusReceiverClient deadLetters() {
            return opened(builder.receiver().queueName(name).subQueue(SubQueue.DEAD_LETTER_QUEUE)
                    .disableAutoComplete().buildClient());
        }

        /** Sends one message of each text. */
        void send(String... texts) {
            ServiceBusSenderClient sender = sender();
            for (String text : texts) {
                sender.sendMessage(new ServiceBusMessage(text).setMessageId(text));
            }
        }

        void close() throws Exception {
            while (!opened.isEmpty()) {
                opened.pop().close();
            }
        }
    }

    /** So many messages, in as many calls as it takes. */
    static List<ServiceBusReceivedMessage> received(ServiceBusReceiverClient receiver, int count) {
        List<ServiceBusReceivedMessage> found = new ArrayList<>();
        while (found.size() < count) {
            int before = found.size();
            receiver.receiveMessages(count - before, PATIENCE).forEach(found::add);
            if (found.size() == before) {
                throw new IllegalStateException("expected " + count + " messages, found " + before);
            }
        }
        return found;
    }

    static ServiceBusReceivedMessage next(ServiceBusReceiverClient receiver) {
        return received(receiver, 1).get(0);
    }

    /** How many messages a queue still has. */
    static long left(ServiceBusReceiverClient receiver) {
        return receiver.peekMessages(100, 0).stream().count();
    }

    /** The reason of an error as applications test for it. */
    static String why(Runnable work) {
        try {
            work.run();
        } catch (ServiceBusException error) {
            return error.getReason().toString();
        } catch (AmqpException error) {
            return error.getErrorCondition().toString();
        }
        return "";
    }

    private static Object run(Scenario scenario, Scene scene) {
        try {
            Map<String, Object> found = scenario.play(scene);
            scene.close();
            return found;
        } catch (Exception failure) {
            failure.printStackTrace();
            return Map.of("failed", failure.toString());
        }
    }

    /** Prints what a scenario found. */
    static void show(String scenario, Object found) throws Exception {
        LINES.println(JSON.writeValueAsString(Map.of("scenario", scenario, "found", found)));
    }

    public static void main(String[] arguments) throws Exception {
        for (String name : List.of(arguments).subList(4, arguments.length)) {
            Scenario scenario = SCENARIOS.get(name);
            Object found = scenario == null
                    ? Map.of("failed", "there is no scenario of this name")
                    : run(scenario, new Scene(arguments[0], arguments[1], arguments[2], arguments[3] + name));
            show(name, found);
        }
        // The client's threads would keep the process for a while.
        System.exit(0);
    }
}

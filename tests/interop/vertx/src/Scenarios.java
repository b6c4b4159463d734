import io.vertx.amqp.AmqpClient;
import io.vertx.amqp.AmqpClientOptions;
import io.vertx.amqp.AmqpConnection;
import io.vertx.amqp.AmqpMessage;
import io.vertx.amqp.AmqpReceiver;
import io.vertx.amqp.AmqpReceiverOptions;
import io.vertx.amqp.AmqpSender;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.json.JsonArray;
import io.vertx.core.json.JsonObject;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** What programs of Quarkus and SmallRye do, by the client and with the options that these use by default. */
final class Scenarios {
    private static final int SOON_S = 60;

    private final Vertx vertx = Vertx.vertx();
    private final AmqpClientOptions options;
    private final String queue;

    private Scenarios(String host, int port, String queue) {
        // As mp.messaging.connector.smallrye-amqp: reconnect-attempts, reconnect-interval, connect-timeout.
        options = new AmqpClientOptions().setHost(host).setPort(port).setReconnectAttempts(100)
                .setReconnectInterval(10_000).setConnectTimeout(1_000);
        this.queue = queue;
    }

    private static <T> T get(Future<T> future) throws Exception {
        return future.toCompletionStage().toCompletableFuture().get(SOON_S, TimeUnit.SECONDS);
    }

    private static AmqpMessage next(BlockingQueue<AmqpMessage> arrived) throws InterruptedException {
        AmqpMessage found = arrived.poll(SOON_S, TimeUnit.SECONDS);
        if (found == null) {
            throw new IllegalStateException("expected a message, none came");
        }
        return found;
    }

    private static BlockingQueue<AmqpMessage> arriving(AmqpReceiver receiver) {
        BlockingQueue<AmqpMessage> arrived = new LinkedBlockingQueue<>();
        receiver.handler(arrived::add);
        return arrived;
    }

    /** A receiver of SmallRye: acknowledged by the program, with the client's own prefetch, which is 1,000. */
    private static AmqpReceiver receiver(AmqpConnection connection, String address) throws Exception {
        return get(connection.createReceiver(address, new AmqpReceiverOptions().setAutoAcknowledgement(false)));
    }

    private void send(AmqpConnection connection, String address, int count) throws Exception {
        AmqpSender sender = get(connection.createSender(address));
        for (int number = 0; number < count; number++) {
            get(sender.sendWithAck(AmqpMessage.create().withBody("m" + number).durable(true).build()));
        }
        get(sender.close());
    }

    /** Receivers, connections and clients that fetch ahead, receive one message and close. */
    private JsonObject closing(String address, int rounds, int messages) throws Exception {
        AmqpClient client = AmqpClient.create(vertx, options);
        AmqpConnection connection = get(client.connect());
        send(connection, address, messages);
        JsonArray bodies = new JsonArray();
        for (int round = 0; round < rounds; round++) {
            AmqpReceiver receiver = receiver(connection, address);
            AmqpMessage message = next(arriving(receiver));
            bodies.add(message.bodyAsString());
            message.accepted();
            switch (round % 3) {
                case 0 -> get(receiver.close());
                case 1 -> {
                    get(connection.close());
                    connection = get(client.connect());
                }
                default -> {
                    get(client.close());
                    client = AmqpClient.create(vertx, options);
                    connection = get(client.connect());
                }
            }
        }
        BlockingQueue<AmqpMessage> arrived = arriving(receiver(connection, address));
        int counts = 0;
        while (bodies.size() < messages) {
            AmqpMessage message = next(arrived);
            bodies.add(message.bodyAsString());
            counts += message.deliveryCount();
            message.accepted();
        }
        get(client.close());
        return new JsonObject().put("bodies", bodies).put("counts", counts);
    }

    /** Each outcome, of which `rejected` is SmallRye's for a message whose method fails. */
    private JsonObject outcomes(String address) throws Exception {
        AmqpClient client = AmqpClient.create(vertx, options);
        AmqpConnection connection = get(client.connect());
        send(connection, address, 4);
        BlockingQueue<AmqpMessage> arrived = arriving(receiver(connection, address));
        next(arrived).accepted();
        next(arrived).rejected();
        next(arrived).released();
        next(arrived).modified(true, false);
        JsonObject again = new JsonObject();
        for (int count = 0; count < 2; count++) {
            AmqpMessage message = next(arrived);
            again.put(message.bodyAsString(), message.deliveryCount());
            message.accepted();
        }
        AmqpMessage dead = next(arriving(receiver(connection, address + "/$dlq")));
        get(client.close());
        return new JsonObject().put("again", again).put("dead", dead.bodyAsString());
    }

    /** A request over a dynamic receiver, answered by an anonymous sender. */
    private JsonArray requests(String address) throws Exception {
        AmqpClient client = AmqpClient.create(vertx, options);
        AmqpConnection connection = get(client.connect());
        AmqpSender answering = get(connection.createAnonymousSender());
        AmqpReceiver service = get(connection.createReceiver(address));
        service.handler(request -> answering.send(AmqpMessage.create().address(request.replyTo())
                .correlationId(request.id()).withBody(request.bodyAsString().toUpperCase()).build()));
        AmqpReceiver replies = get(connection.createDynamicReceiver());
        BlockingQueue<AmqpMessage> arrived = arriving(replies);
        AmqpSender sender = get(connection.createSender(address));
        JsonArray found = new JsonArray();
        for (int number = 0; number < 20; number++) {
            sender.send(AmqpMessage.create().id("" + number).replyTo(replies.address()).withBody("q" + number)
                    .build());
            AmqpMessage answer = next(arrived);
            found.add(answer.correlationId() + answer.bodyAsString());
        }
        get(client.close());
        return found;
    }

    private static void found(String scenario, Object what) {
        System.out.println(new JsonObject().put("scenario", scenario).put("found", what).encode());
    }

    public static void main(String[] arguments) throws Exception {
        int colon = arguments[0].lastIndexOf(':');
        Scenarios scenarios = new Scenarios(
                arguments[0].substring(0, colon), Integer.parseInt(arguments[0].substring(colon + 1)), arguments[1]);
        found("closing", scenarios.closing(scenarios.queue + "/closing", 100, 200));
        found("outcomes", scenarios.outcomes(scenarios.queue + "/outcomes"));
        found("requests", scenarios.requests(scenarios.queue + "/requests"));
        get(scenarios.vertx.close());
    }
}

import com.azure.core.amqp.AmqpRetryMode;
import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.ServiceBusMessageState;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** One method for each scenario; the names are those of test_azure_sdks.py. */
final class Scenarios {
    private Scenarios() {}

    private static String text(ServiceBusReceivedMessage message) {
        return message.getBody().toString();
    }

    private static List<String> texts(Iterable<ServiceBusReceivedMessage> messages) {
        List<String> found = new ArrayList<>();
        messages.forEach(message -> found.add(text(message)));
        return found;
    }

    /** One message with all that applications set, to and fro. */
    static Map<String, Object> send(Azure.Scene scene) {
        ServiceBusMessage sent = new ServiceBusMessage("Zug \uD83D\uDE82").setMessageId("id").setSubject("subject")
                .setCorrelationId("correlation").setContentType("text/plain").setReplyTo("reply").setTo("to")
                .setTimeToLive(Duration.ofHours(1));
        sent.getApplicationProperties().putAll(Map.of("text", "value", "number", 7L, "flag", true, "part", 0.5));
        scene.sender().sendMessage(sent);
        ServiceBusReceiverClient receiver = scene.receiver();
        OffsetDateTime before = OffsetDateTime.now();
        ServiceBusReceivedMessage message = Azure.next(receiver);
        receiver.complete(message);
        return Map.of(
                "body", text(message), "application", message.getApplicationProperties(),
                "properties", List.of(message.getMessageId(), message.getCorrelationId(), message.getSubject(),
                        message.getContentType(), message.getReplyTo(), message.getTo()),
                "ttl", message.getTimeToLive().toMillis() / 1000.0, "sequence", message.getSequenceNumber(),
                "count", message.getDeliveryCount(), "locked", message.getLockedUntil().isAfter(before),
                "token", message.getLockToken().length() == 36, "left", Azure.left(receiver));
    }

    /** A batch of messages, taken by a receiver that settles nothing. */
    static Map<String, Object> batch(Azure.Scene scene) {
        ServiceBusSenderClient sender = scene.sender();
        ServiceBusMessageBatch batch = sender.createMessageBatch();
        for (String text : List.of("one", "two", "three")) {
            batch.tryAddMessage(new ServiceBusMessage(text));
        }
        sender.sendMessages(batch);
        ServiceBusReceiverClient receiver = scene.opened(scene.builder.receiver().queueName(scene.name)
                .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient());
        return Map.of("bodies", texts(Azure.received(receiver, 3)), "left", Azure.left(receiver));
    }

    /** Completes, abandons and dead-letters, and reads the dead letter. */
    static Map<String, Object> settle(Azure.Scene scene) {
        scene.send("first", "second");
        ServiceBusReceiverClient receiver = scene.receiver();
        receiver.complete(Azure.next(receiver));
        receiver.abandon(Azure.next(receiver),
                new AbandonOptions().setPropertiesToModify(Map.of("tried", "once")));
        ServiceBusReceivedMessage again = Azure.next(receiver);
        receiver.deadLetter(again, new DeadLetterOptions()
                .setPropertiesToModify(Map.of("place", "yard"))
                .setDeadLetterReason("why").setDeadLetterErrorDescription("weil es größer ist"));
        ServiceBusReceiverClient letters = scene.deadLetters();
        ServiceBusReceivedMessage dead = Azure.next(letters);
        letters.complete(dead);
        return Map.of(
                "again", List.of(text(again), again.getDeliveryCount()),
                "dead", Arrays.asList(text(dead), dead.getMessageId(), dead.getDeadLetterReason(),
                        dead.getDeadLetterErrorDescription(), dead.getDeadLetterSource()),
                "changed", Arrays.asList(again.getApplicationProperties().get("tried"),
                        dead.getApplicationProperties().get("tried"),
                        dead.getApplicationProperties().get("place")),
                "left", List.of(Azure.left(receiver), Azure.left(letters)));
    }

    /** Renews a lock, and one that is no longer there. */
    static Map<String, Object> renew(Azure.Scene scene) {
        scene.send("one");
        ServiceBusReceiverClient receiver = scene.receiver();
        ServiceBusReceivedMessage message = Azure.next(receiver);
        OffsetDateTime before = message.getLockedUntil();
        OffsetDateTime until = receiver.renewMessageLock(message);
        receiver.complete(message);
        String lost = Azure.why(() -> receiver.renewMessageLock(message));
        return Map.of("renewed", !until.isBefore(before) && until.isAfter(OffsetDateTime.now()), "lost", lost);
    }

    /** Completes a message whose lock has ended: another receiver has it. */
    static Map<String, Object> lost(Azure.Scene scene) {
        scene.send("one");
        ServiceBusReceiverClient receiver = unrenewed(scene);
        ServiceBusReceiverClient other = unrenewed(scene);
        ServiceBusReceivedMessage message = Azure.next(receiver);
        ServiceBusReceivedMessage again = Azure.next(other);
        String lost = Azure.why(() -> receiver.complete(message));
        other.complete(again);
        return Map.of("again", text(again), "lost", lost, "left", Azure.left(receiver));
    }

    private static ServiceBusReceiverClient unrenewed(Azure.Scene scene) {
        return scene.opened(scene.builder.receiver().queueName(scene.name)
                .maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    /** Adds, lists and removes rules of a subscription. */
    static Map<String, Object> rules(Azure.Scene scene) throws Exception {
        List<String> found = new ArrayList<>();
        try (ServiceBusRuleManagerClient rules =
                scene.builder.ruleManager().topicName(scene.name).subscriptionName("mine").buildClient()) {
            rules.createRule("dear", new CreateRuleOptions(new SqlRuleFilter("price > 100")));
            rules.createRule("red", new CreateRuleOptions(new CorrelationRuleFilter("id").setLabel("red"))
                    .setAction(new SqlRuleAction("SET colour = 'red'")));
            rules.listRules().forEach(rule -> found.add(rule.getName() + " " + rule.getFilter()));
            rules.deleteRule("dear");
            return Map.of("listed", found, "left", rules.listRules().stream().count());
        }
    }

    /** Peeks from the start, further, and from a number. */
    static Map<String, Object> peek(Azure.Scene scene) {
        scene.send("one", "two", "three");
        ServiceBusReceiverClient receiver = scene.receiver();
        List<String> first = texts(receiver.peekMessages(2));
        List<String> rest = texts(receiver.peekMessages(2));
        ServiceBusReceivedMessage from = receiver.peekMessage(2);
        return Map.of("first", first, "rest", rest, "from", List.of(List.of(text(from)), from.getSequenceNumber()),
                "left", Azure.left(receiver));
    }

    /** Schedules and cancels; a message that is sent with a time comes at it. */
    static Map<String, Object> schedule(Azure.Scene scene) {
        ServiceBusSenderClient sender = scene.sender();
        ServiceBusReceiverClient receiver = scene.receiver();
        List<ServiceBusMessage> later = List.of(new ServiceBusMessage("one"), new ServiceBusMessage("two"));
        List<Long> numbers = new ArrayList<>();
        sender.scheduleMessages(later, OffsetDateTime.now().plusHours(1)).forEach(numbers::add);
        ServiceBusReceivedMessage peeked = receiver.peekMessage();
        sender.cancelScheduledMessages(numbers);
        String twice = "";
        try {
            sender.cancelScheduledMessages(numbers);
        } catch (RuntimeException error) {
            twice = error.getMessage();
        }
        OffsetDateTime soon = OffsetDateTime.now().plus(Duration.ofMillis(500));
        sender.sendMessage(new ServiceBusMessage("soon").setScheduledEnqueueTime(soon));
        ServiceBusReceivedMessage came = Azure.next(receiver);
        return Map.of("numbers", numbers, "peeked", text(peeked),
                "scheduled", peeked.getState() == ServiceBusMessageState.SCHEDULED,
                "twice", twice.contains("not scheduled"), "came", text(came),
                "early", OffsetDateTime.now().isBefore(soon));
    }

    /** A message for a topic, and the dead letters of a subscription. */
    static Map<String, Object> topic(Azure.Scene scene) {
        ServiceBusSenderClient sender = scene.opened(scene.builder.sender().topicName(scene.name).buildClient());
        sender.sendMessage(new ServiceBusMessage("for all"));
        ServiceBusReceiverClient receiver = scene.opened(scene.builder.receiver().topicName(scene.name)
                .subscriptionName("mine").disableAutoComplete().buildClient());
        ServiceBusReceivedMessage message = Azure.next(receiver);
        receiver.deadLetter(message);
        ServiceBusReceiverClient letters = scene.opened(scene.builder.receiver().topicName(scene.name)
                .subscriptionName("mine").subQueue(SubQueue.DEAD_LETTER_QUEUE).disableAutoComplete().buildClient());
        return Map.of("body", text(message), "dead", text(Azure.next(letters)));
    }

    /** A user who may only receive sends; a key that is none. */
    static Map<String, Object> refused(Azure.Scene scene) {
        String wrong = scene.connectionString.replace("SharedAccessKey=", "SharedAccessKey=x");
        return Map.of("right", sending(scene, scene.other), "key", sending(scene, wrong));
    }

    private static String sending(Azure.Scene scene, String connectionString) {
        try (ServiceBusSenderClient sender
                = Azure.Scene.builder(connectionString).sender().queueName(scene.name).buildClient()) {
            return Azure.why(() -> sender.sendMessage(new ServiceBusMessage("x")));
        }
    }

    /** There and back over a WebSocket, which this client opens over TLS alone. */
    static Map<String, Object> websocket(Azure.Scene scene) {
        scene.builder = Azure.Scene.builder(scene.secure).transportType(AmqpTransportType.AMQP_WEB_SOCKETS);
        scene.send("x");
        ServiceBusReceiverClient receiver = scene.receiver();
        ServiceBusReceivedMessage message = Azure.next(receiver);
        receiver.complete(message);
        return Map.of("body", text(message));
    }

    /** A processor completes what its handler returns from, and abandons that at which it fails. */
    static Map<String, Object> processor(Azure.Scene scene) throws InterruptedException {
        scene.send("one", "two", "three");
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        ServiceBusProcessorClient processor = scene.opened(scene.builder.processor().queueName(scene.name)
                .maxConcurrentCalls(1)
                .processMessage(context -> {
                    ServiceBusReceivedMessage message = context.getMessage();
                    seen.add(text(message) + " " + message.getDeliveryCount());
                    if (text(message).equals("two") && message.getDeliveryCount() == 0) {
                        throw new IllegalStateException("not yet");
                    }
                })
                .processError(context -> seen.add(context.getErrorSource().toString()))
                .buildProcessorClient());
        processor.start();
        List<String> found = new ArrayList<>();
        for (int count = 0; count < 5; count++) {
            found.add(seen.poll(20, TimeUnit.SECONDS));
        }
        found.sort(null);
        // The last one is completed after its handler.
        ServiceBusReceiverClient receiver = scene.receiver();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (Azure.left(receiver) > 0 && System.nanoTime() < deadline) {
            TimeUnit.MILLISECONDS.sleep(20);
        }
        return Map.of("seen", found, "left", Azure.left(receiver));
    }

    /** What is sent in a transaction comes when it is committed, and what is completed in one goes then. */
    static Map<String, Object> transaction(Azure.Scene scene) {
        ServiceBusSenderClient sender = scene.sender();
        ServiceBusTransactionContext rolled = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("never"), rolled);
        sender.rollbackTransaction(rolled);
        ServiceBusTransactionContext committed = sender.createTransaction();
        for (String text : List.of("one", "two")) {
            sender.sendMessage(new ServiceBusMessage(text), committed);
        }
        ServiceBusReceiverClient receiver = scene.receiver();
        long before = Azure.left(receiver);
        sender.commitTransaction(committed);
        List<ServiceBusReceivedMessage> found = Azure.received(receiver, 2);
        ServiceBusTransactionContext completing = receiver.createTransaction();
        receiver.complete(found.get(0), new CompleteOptions().setTransactionContext(completing));
        receiver.deadLetter(found.get(1), new DeadLetterOptions().setDeadLetterReason("why")
                .setTransactionContext(completing));
        receiver.commitTransaction(completing);
        ServiceBusReceivedMessage dead = Azure.next(scene.deadLetters());
        long left = Azure.left(receiver);
        scene.send("three");
        ServiceBusTransactionContext undone = receiver.createTransaction();
        receiver.complete(Azure.next(receiver), new CompleteOptions().setTransactionContext(undone));
        receiver.rollbackTransaction(undone);
        ServiceBusReceivedMessage again = Azure.next(receiver);
        return Map.of("before", before, "bodies", texts(found), "left", left,
                "dead", List.of(text(dead), dead.getDeadLetterReason()),
                "again", List.of(text(again), again.getDeliveryCount()));
    }

    /** A message that is deferred in a transaction is received by its number once it is committed. */
    static Map<String, Object> deferring(Azure.Scene scene) {
        scene.send("one", "two");
        ServiceBusReceiverClient receiver = scene.receiver();
        List<ServiceBusReceivedMessage> found = Azure.received(receiver, 2);
        ServiceBusTransactionContext committed = receiver.createTransaction();
        receiver.defer(found.get(0), new DeferOptions().setTransactionContext(committed));
        receiver.commitTransaction(committed);
        ServiceBusTransactionContext undone = receiver.createTransaction();
        receiver.defer(found.get(1), new DeferOptions().setTransactionContext(undone));
        receiver.rollbackTransaction(undone);
        ServiceBusReceivedMessage again = Azure.next(receiver);
        receiver.complete(again);
        ServiceBusReceivedMessage back = receiver.receiveDeferredMessage(found.get(0).getSequenceNumber());
        receiver.complete(back);
        return Map.of("back", text(back), "state", back.getState().toString(),
                "again", List.of(text(again), again.getDeliveryCount()), "left", Azure.left(receiver));
    }

    /** A message that is deferred is received by its number alone, and once. */
    static Map<String, Object> deferred(Azure.Scene scene) {
        scene.send("one", "two");
        ServiceBusReceiverClient receiver = scene.receiver();
        List<ServiceBusReceivedMessage> found = Azure.received(receiver, 2);
        receiver.defer(found.get(0));
        receiver.complete(found.get(1));
        long before = Azure.left(receiver);
        long number = found.get(0).getSequenceNumber();
        ServiceBusReceivedMessage back = receiver.receiveDeferredMessage(number);
        receiver.complete(back);
        // The client replaces the broker's answer, which others show, by an error of its own.
        boolean twice = !Azure.why(() -> receiver.receiveDeferredMessage(number)).isEmpty();
        return Map.of("back", text(back), "deferred", back.getState() == ServiceBusMessageState.DEFERRED,
                "twice", twice, "left", List.of(before, Azure.left(receiver)));
    }

    /** Of messages with one id the first is stored. */
    static Map<String, Object> duplicates(Azure.Scene scene) {
        ServiceBusSenderClient sender = scene.sender();
        for (List<String> each : List.of(List.of("a", "one"), List.of("a", "two"), List.of("b", "three"))) {
            sender.sendMessage(new ServiceBusMessage(each.get(1)).setMessageId(each.get(0)));
        }
        ServiceBusReceiverClient receiver = scene.opened(scene.builder.receiver().queueName(scene.name)
                .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient());
        return Map.of("bodies", texts(Azure.received(receiver, 2)), "left", Azure.left(receiver));
    }

    /** Sends and receives on the same objects while the broker is killed and started again. */
    static Map<String, Object> restart(Azure.Scene scene) throws Exception {
        scene.builder = Azure.Scene.builder(scene.connectionString).retryOptions(new AmqpRetryOptions()
                .setMaxRetries(20).setMode(AmqpRetryMode.FIXED).setDelay(Duration.ofMillis(500))
                .setTryTimeout(Duration.ofSeconds(10)));
        ServiceBusSenderClient sender = scene.sender();
        ServiceBusReceiverClient receiver = scene.receiver();
        Set<Integer> found = new TreeSet<>();
        for (int number = 0; number < 10; number++) {
            sender.sendMessage(new ServiceBusMessage(String.valueOf(number)));
        }
        while (found.size() < 5) {
            receive(receiver, found);
        }
        Azure.show("restart", "half");
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).readLine();
        for (int number = 10; number < 20; number++) {
            sender.sendMessage(new ServiceBusMessage(String.valueOf(number)));
        }
        while (found.size() < 20) {
            try {
                receive(receiver, found);
            } catch (ServiceBusException lost) {
                // A message whose completion was lost with the broker comes again.
                lost.printStackTrace();
            }
        }
        return Map.of("bodies", found);
    }

    private static void receive(ServiceBusReceiverClient receiver, Set<Integer> found) {
        receiver.receiveMessages(10, Duration.ofSeconds(5)).forEach(message -> {
            receiver.complete(message);
            found.add(Integer.valueOf(text(message)));
        });
    }

    /** Accepts a session by its id, and the next one that is available; sets its state. */
    static Map<String, Object> session(Azure.Scene scene) {
        ServiceBusSenderClient sender = scene.sender();
        for (String text : List.of("a1", "b1", "a2")) {
            sender.sendMessage(new ServiceBusMessage(text).setSessionId(text.substring(0, 1)));
        }
        ServiceBusSessionReceiverClient sessions = scene.opened(
                scene.builder.sessionReceiver().queueName(scene.name).disableAutoComplete().buildClient());
        ServiceBusReceiverClient first = scene.opened(sessions.acceptNextSession());
        String busy = Azure.why(() -> sessions.acceptSession("a"));
        List<ServiceBusReceivedMessage> found = Azure.received(first, 2);
        found.forEach(first::complete);
        byte[] none = first.getSessionState();
        first.setSessionState("state".getBytes(StandardCharsets.UTF_8));
        boolean renewed = first.renewSessionLock().isAfter(OffsetDateTime.now());
        ServiceBusReceiverClient second = scene.opened(sessions.acceptSession("b"));
        return Map.of("sessions", List.of(first.getSessionId(), second.getSessionId()), "bodies", texts(found),
                "busy", busy, "state", List.of(none == null ? 0 : none.length,
                        new String(first.getSessionState(), StandardCharsets.UTF_8)), "renewed", renewed);
    }
}

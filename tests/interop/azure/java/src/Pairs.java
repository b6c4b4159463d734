import com.azure.core.amqp.models.AmqpMessageBody;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * What this client sends to those of other languages, and receives from them: tests/interop/azure_pairs.py describes it.
 */
final class Pairs {
    private static final List<String> LANGUAGES = List.of("python", "javascript", "go", "java", "dotnet");

    private Pairs() {}

    static Map<String, Object> pairs(Azure.Scene scene) {
        LANGUAGES.parallelStream().forEach(receiver -> give(scene, "pairs/java/" + receiver));
        return LANGUAGES.parallelStream()
                .collect(Collectors.toConcurrentMap(sender -> sender, sender -> take(scene, "pairs/" + sender + "/java")));
    }

    private static void give(Azure.Scene scene, String queue) {
        ServiceBusMessage data = new ServiceBusMessage("Zug \uD83D\uDE82").setMessageId("data").setSubject("subject")
                .setCorrelationId("correlation").setContentType("text/plain").setReplyTo("reply").setTo("to")
                .setSessionId("s").setReplyToSessionId("r").setTimeToLive(Duration.ofHours(1));
        data.getApplicationProperties().putAll(Map.of("text", "value", "number", 7L, "flag", true, "part", 0.5));
        try (ServiceBusSenderClient sender = scene.builder.sender().queueName(queue).buildClient()) {
            sender.sendMessage(data);
            sender.sendMessage(new ServiceBusMessage(AmqpMessageBody.fromValue("größer")).setMessageId("value"));
            sender.sendMessage(
                    new ServiceBusMessage(AmqpMessageBody.fromSequence(List.of(1, "a"))).setMessageId("sequence"));
            sender.scheduleMessage(
                    new ServiceBusMessage("later").setMessageId("scheduled"), OffsetDateTime.now().plusSeconds(1));
        }
        try (ServiceBusSenderClient sender = scene.builder.sender().queueName(queue + "/session").buildClient()) {
            for (String text : List.of("1", "2")) {
                sender.sendMessage(new ServiceBusMessage(text).setSessionId("s"));
            }
        }
    }

    private static Map<String, Object> take(Azure.Scene scene, String queue) {
        Map<String, Object> found = new HashMap<>();
        try (ServiceBusReceiverClient receiver =
                scene.builder.receiver().queueName(queue).disableAutoComplete().buildClient()) {
            Map<String, ServiceBusReceivedMessage> messages = new HashMap<>();
            Azure.received(receiver, 4).forEach(each -> messages.put(each.getMessageId(), each));
            ServiceBusReceivedMessage data = messages.get("data");
            ServiceBusReceivedMessage value = messages.get("value");
            ServiceBusReceivedMessage sequence = messages.get("sequence");
            receiver.complete(data);
            receiver.abandon(value);
            ServiceBusReceivedMessage again = Azure.next(receiver);
            receiver.complete(again);
            receiver.deadLetter(sequence,
                    new DeadLetterOptions().setDeadLetterReason("why").setDeadLetterErrorDescription("because"));
            receiver.defer(messages.get("scheduled"));
            ServiceBusReceivedMessage deferred =
                    receiver.receiveDeferredMessage(messages.get("scheduled").getSequenceNumber());
            receiver.complete(deferred);
            found.put("data", data.getBody().toString());
            found.put("fields", Arrays.asList(data.getCorrelationId(), data.getSubject(), data.getContentType(),
                    data.getReplyTo(), data.getTo(), data.getSessionId(), data.getReplyToSessionId(),
                    Math.round(data.getTimeToLive().toMillis() / 1000.0)));
            found.put("application", data.getApplicationProperties());
            found.put("value", value.getRawAmqpMessage().getBody().getValue());
            found.put("again", List.of(again.getRawAmqpMessage().getBody().getValue(),
                    again.getDeliveryCount() - value.getDeliveryCount()));
            found.put("sequence", sequence.getRawAmqpMessage().getBody().getSequence());
            found.put("scheduled", deferred.getBody().toString());
        }
        // Over the connection of all pairs: the client names a link by the id of its session, at whatever queue.
        try (ServiceBusSessionReceiverClient sessions = scene.builder.sessionReceiver()
                .queueName(queue + "/session").disableAutoComplete().buildClient();
                ServiceBusReceiverClient session = sessions.acceptSession("s")) {
            StringBuilder texts = new StringBuilder();
            for (ServiceBusReceivedMessage each : Azure.received(session, 2)) {
                texts.append(each.getBody());
                session.complete(each);
            }
            session.setSessionState("java".getBytes(StandardCharsets.UTF_8));
            found.put("session", texts.toString());
        }
        return found;
    }
}

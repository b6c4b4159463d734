import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import java.util.List;
import java.util.Map;

/** Transactions that settle deferred messages, which have no link, and messages of sessions. */
final class Transactions {
    private Transactions() {}

    /** Messages that were received by their numbers are settled by the commit, and are still locked after a rollback. */
    static Map<String, Object> settling(Azure.Scene scene) {
        scene.send("one", "two", "three", "four");
        ServiceBusSenderClient sender = scene.sender();
        ServiceBusReceiverClient receiver = scene.receiver();
        List<ServiceBusReceivedMessage> found = Azure.received(receiver, 4);
        found.forEach(receiver::defer);
        List<Long> numbers = found.stream().map(ServiceBusReceivedMessage::getSequenceNumber).toList();
        List<ServiceBusReceivedMessage> back =
                receiver.receiveDeferredMessageBatch(numbers).stream().toList();
        ServiceBusTransactionContext undone = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("never"), undone);
        receiver.complete(back.get(3), new CompleteOptions().setTransactionContext(undone));
        sender.rollbackTransaction(undone);
        ServiceBusTransactionContext committed = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("answer"), committed);
        receiver.complete(back.get(0), new CompleteOptions().setTransactionContext(committed));
        receiver.abandon(back.get(1), new AbandonOptions().setTransactionContext(committed));
        receiver.deadLetter(back.get(2), new DeadLetterOptions().setDeadLetterReason("why")
                .setTransactionContext(committed));
        List<Boolean> locked = numbers.subList(1, 4).stream()
                .map(number -> !Azure.why(() -> receiver.receiveDeferredMessage(number)).isEmpty()).toList();
        sender.commitTransaction(committed);
        ServiceBusReceivedMessage answer = Azure.next(receiver);
        receiver.complete(answer);
        ServiceBusReceivedMessage again = receiver.receiveDeferredMessage(numbers.get(1));
        receiver.complete(again);
        ServiceBusReceivedMessage dead = Azure.next(scene.deadLetters());
        List<String> left =
                receiver.peekMessages(100, 0).stream().map(each -> each.getBody().toString()).toList();
        return Map.of("answer", answer.getBody().toString(), "locked", locked,
                "again", List.of(again.getBody().toString(), again.getDeliveryCount()),
                "dead", List.of(dead.getBody().toString(), dead.getDeadLetterReason()), "left", left);
    }

    /** Messages of a session are settled and sent in one transaction. */
    static Map<String, Object> sessions(Azure.Scene scene) {
        ServiceBusSenderClient sender = scene.sender();
        for (String text : List.of("a1", "a2", "a3")) {
            sender.sendMessage(new ServiceBusMessage(text).setSessionId("a"));
        }
        ServiceBusSessionReceiverClient all = scene.opened(
                scene.builder.sessionReceiver().queueName(scene.name).disableAutoComplete().buildClient());
        ServiceBusReceiverClient receiver = scene.opened(all.acceptSession("a"));
        List<ServiceBusReceivedMessage> found = Azure.received(receiver, 3);
        ServiceBusTransactionContext committed = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("a4").setSessionId("a"), committed);
        receiver.complete(found.get(0), new CompleteOptions().setTransactionContext(committed));
        receiver.defer(found.get(1), new DeferOptions().setTransactionContext(committed));
        sender.commitTransaction(committed);
        ServiceBusReceivedMessage sent = Azure.next(receiver);
        ServiceBusTransactionContext undone = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("never").setSessionId("a"), undone);
        receiver.complete(found.get(2), new CompleteOptions().setTransactionContext(undone));
        sender.rollbackTransaction(undone);
        ServiceBusReceivedMessage late = receiver.receiveDeferredMessage(found.get(1).getSequenceNumber());
        ServiceBusTransactionContext last = sender.createTransaction();
        for (ServiceBusReceivedMessage each : List.of(sent, late)) {
            receiver.complete(each, new CompleteOptions().setTransactionContext(last));
        }
        sender.commitTransaction(last);
        // To this client the third message is settled; it is its session's still, and comes again with its next receiver.
        List<String> left =
                receiver.peekMessages(100, 0).stream().map(each -> each.getBody().toString()).toList();
        return Map.of("sent", sent.getBody().toString(), "late", late.getBody().toString(), "left", left);
    }
}

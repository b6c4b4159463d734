import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Work in threads of the client: listeners, sends that complete later, groups. */
final class Listening {
    private static void await(CountDownLatch latch) throws InterruptedException {
        boolean done = latch.await(Scene.SOON_MS, TimeUnit.MILLISECONDS);
        Scene.check(done, "expected all to come, " + latch.getCount() + " have not");
    }

    @Law
    void listeners_of_several_sessions_work_at_the_same_time(Scene scene) throws Exception {
        Connection connection = scene.connectWithoutPrefetch("c");
        Session sending = scene.session();
        Queue queue = sending.createQueue(scene.name("q"));
        int many = 8;
        // Each listener waits until all of them have a message.
        CyclicBarrier together = new CyclicBarrier(many);
        CountDownLatch passed = new CountDownLatch(many * 5);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        for (int number = 0; number < many; number++) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            session.createConsumer(queue).setMessageListener(message -> {
                try {
                    seen.add(Scene.text(message));
                    together.await(Scene.SOON_MS, TimeUnit.MILLISECONDS);
                    passed.countDown();
                } catch (Exception late) {
                    throw new IllegalStateException(late);
                }
            });
        }
        Scene.send(sending, sending.createProducer(queue), Scene.numbered(0, many * 5));
        await(passed);
        Scene.equal(many * 5, seen.size());
    }

    @Law
    void one_session_calls_its_listeners_one_after_another(Scene scene) throws Exception {
        Session session = scene.connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
        Session sending = scene.session();
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        CountDownLatch came = new CountDownLatch(100);
        for (String name : List.of("a", "b")) {
            session.createConsumer(session.createQueue(scene.name(name))).setMessageListener(message -> {
                most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                inside.decrementAndGet();
                came.countDown();
            });
        }
        for (String name : List.of("a", "b")) {
            Scene.send(sending, sending.createProducer(sending.createQueue(scene.name(name))), Scene.numbered(0, 50));
        }
        await(came);
        Scene.equal(1, most.get());
    }

    @Law
    void a_context_listens_and_answers(Scene scene) throws Exception {
        try (JMSContext serving = new JmsConnectionFactory("amqp://" + scene.address).createContext();
                JMSContext asking = new JmsConnectionFactory("amqp://" + scene.address).createContext()) {
            Queue service = serving.createQueue(scene.name("service"));
            JMSContext answers = serving.createContext(JMSContext.AUTO_ACKNOWLEDGE);
            serving.createConsumer(service).setMessageListener(request -> {
                try {
                    answers.createProducer()
                            .setJMSCorrelationID(request.getJMSMessageID())
                            .send(request.getJMSReplyTo(), request.getBody(String.class).toUpperCase());
                } catch (JMSException error) {
                    throw new IllegalStateException(error);
                }
            });
            Queue replies = asking.createTemporaryQueue();
            try (JMSConsumer consumer = asking.createConsumer(replies)) {
                for (int number = 0; number < 50; number++) {
                    Message request = asking.createTextMessage("question " + number);
                    asking.createProducer().setJMSReplyTo(replies).send(service, request);
                    Message answer = consumer.receive(Scene.SOON_MS);
                    Scene.check(answer != null, "expected an answer");
                    Scene.equal("QUESTION " + number, answer.getBody(String.class));
                    Scene.equal(request.getJMSMessageID(), answer.getJMSCorrelationID());
                }
            }
            answers.close();
        }
    }

    /** Notes the outcome of every send, in the order of the calls. */
    private static final class Noted implements CompletionListener {
        final List<String> completed = Collections.synchronizedList(new ArrayList<>());
        final List<String> failed = Collections.synchronizedList(new ArrayList<>());
        final CountDownLatch waiting;

        Noted(int count) {
            waiting = new CountDownLatch(count);
        }

        private static String body(Message message) {
            try {
                return Scene.text(message);
            } catch (JMSException error) {
                return error.toString();
            }
        }

        @Override
        public void onCompletion(Message message) {
            completed.add(body(message));
            waiting.countDown();
        }

        @Override
        public void onException(Message message, Exception error) {
            failed.add(body(message));
            waiting.countDown();
        }
    }

    @Law
    void sends_complete_in_order_although_their_producer_is_closed(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        Noted noted = new Noted(300);
        MessageProducer producer = session.createProducer(queue);
        for (String body : Scene.numbered(0, 300)) {
            producer.send(session.createTextMessage(body), noted);
        }
        producer.close();
        // JMS has the close wait for them; this client calls its listeners in a thread of their own, perhaps later.
        await(noted.waiting);
        Scene.equal(List.of(Scene.numbered(0, 300)), noted.completed);
        Scene.equal(List.of(), noted.failed);
    }

    @Law
    void a_send_that_a_full_queue_refuses_completes_with_the_reason(Scene scene) throws Exception {
        Scene.ask("policy " + scene.name("q") + " {\"role\": \"queue\", \"max_length\": 3}");
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        Noted noted = new Noted(5);
        for (String body : Scene.numbered(0, 5)) {
            producer.send(session.createTextMessage(body), noted);
        }
        await(noted.waiting);
        Scene.equal(List.of("m0", "m1", "m2"), noted.completed);
        Scene.equal(List.of("m3", "m4"), noted.failed);
        Scene.refused(JMSException.class, "full", () -> {
            Scene.send(session, producer, "m5");
            return "it was sent";
        });
        MessageConsumer consumer = session.createConsumer(queue);
        Scene.expect(consumer, "m0", "m1", "m2");
        Scene.expectNothing(consumer);
    }

    @Law
    void messages_without_persistence_arrive_in_order(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        producer.setDisableMessageID(true);
        producer.setDisableMessageTimestamp(true);
        Scene.send(session, producer, Scene.numbered(0, 1000));
        Scene.expect(session.createConsumer(queue), Scene.numbered(0, 1000));
    }

    @Law
    void messages_of_a_group_go_to_one_consumer_at_a_time_in_order(Scene scene) throws Exception {
        Scene.ask("policy " + scene.name("q") + " {\"role\": \"queue\", \"groups\": true}");
        Session sending = scene.session();
        Queue queue = sending.createQueue(scene.name("q"));
        int groups = 10;
        int each = 12;
        CountDownLatch came = new CountDownLatch(groups * each);
        Map<String, List<Integer>> seen = new ConcurrentHashMap<>();
        Map<String, AtomicInteger> inside = new ConcurrentHashMap<>();
        AtomicInteger most = new AtomicInteger();
        for (int number = 0; number < 3; number++) {
            Session session = scene.connectWithoutPrefetch("c" + number).createSession(false, Session.AUTO_ACKNOWLEDGE);
            session.createConsumer(queue).setMessageListener(message -> {
                try {
                    String group = message.getStringProperty("JMSXGroupID");
                    AtomicInteger working = inside.computeIfAbsent(group, key -> new AtomicInteger());
                    most.accumulateAndGet(working.incrementAndGet(), Math::max);
                    seen.computeIfAbsent(group, key -> Collections.synchronizedList(new ArrayList<>()))
                            .add(message.getIntProperty("JMSXGroupSeq"));
                    working.decrementAndGet();
                } catch (JMSException error) {
                    throw new IllegalStateException(error);
                }
                came.countDown();
            });
        }
        MessageProducer producer = sending.createProducer(queue);
        for (int sequence = 1; sequence <= each; sequence++) {
            for (int group = 0; group < groups; group++) {
                Message message = sending.createTextMessage("m");
                message.setStringProperty("JMSXGroupID", "g" + group);
                message.setIntProperty("JMSXGroupSeq", sequence);
                producer.send(message);
            }
        }
        await(came);
        Scene.equal(1, most.get());
        Scene.equal(groups, seen.size());
        for (List<Integer> sequences : seen.values()) {
            Scene.equal(IntStream.rangeClosed(1, each).boxed().toList(), sequences);
        }
    }

    @Law
    void large_messages_arrive_whole(Scene scene) throws Exception {
        Session session = scene.session();
        Queue queue = session.createQueue(scene.name("q"));
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);
        for (int size : new int[] {1, 65_535, 65_536, 1 << 20, 12_000_000}) {
            byte[] sent = new byte[size];
            for (int index = 0; index < size; index++) {
                sent[index] = (byte) (index * 31 + (index >> 8));
            }
            var message = session.createBytesMessage();
            message.writeBytes(sent);
            message.setStringProperty("size", String.valueOf(size));
            producer.send(message);
            var found = Scene.next(consumer);
            Scene.equal(String.valueOf(size), found.getStringProperty("size"));
            Scene.check(Arrays.equals(sent, found.getBody(byte[].class)), "expected the same " + size + " bytes");
        }
        String text = "\u00fc".repeat(3_000_000);
        producer.send(session.createTextMessage(text));
        Scene.check(text.equals(Scene.text(Scene.next(consumer))), "expected the same text");
    }
}

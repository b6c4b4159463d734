import jakarta.jms.ConnectionFactory;
import jakarta.jms.Message;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.camel.CamelContext;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.jms.JmsComponent;
import org.apache.camel.impl.DefaultCamelContext;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.springframework.jms.connection.CachingConnectionFactory;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.jms.listener.DefaultMessageListenerContainer;

/** What people use JMS through: Spring's templates and containers, and routes of Apache Camel. */
final class Frameworks {
    private static ConnectionFactory factory(Scene scene) {
        return new JmsConnectionFactory("amqp://" + scene.address);
    }

    private static JmsTemplate template(ConnectionFactory factory) {
        JmsTemplate made = new JmsTemplate(factory);
        made.setReceiveTimeout(Scene.SOON_MS);
        return made;
    }

    private static void await(CountDownLatch latch) throws InterruptedException {
        boolean done = latch.await(Scene.SOON_MS, TimeUnit.MILLISECONDS);
        Scene.check(done, "expected all to come, " + latch.getCount() + " have not");
    }

    // --- Spring ------------------------------------------------------------------------------------------

    @Law
    void a_template_of_spring_sends_receives_browses_and_selects(Scene scene) throws Exception {
        CachingConnectionFactory factory = new CachingConnectionFactory(factory(scene));
        try {
            JmsTemplate template = template(factory);
            String queue = scene.name("q");
            for (int number = 0; number < 5; number++) {
                int copied = number;
                template.convertAndSend(queue, "m" + number, message -> {
                    message.setIntProperty("number", copied);
                    return message;
                });
            }
            List<String> seen = template.browse(queue, (session, browser) -> {
                List<String> found = new ArrayList<>();
                for (var each = browser.getEnumeration(); each.hasMoreElements(); ) {
                    found.add(((TextMessage) each.nextElement()).getText());
                }
                return found;
            });
            Scene.equal(List.of("m0", "m1", "m2", "m3", "m4"), seen);
            Scene.equal("m3", template.receiveSelectedAndConvert(queue, "number = 3"));
            for (String body : List.of("m0", "m1", "m2", "m4")) {
                Scene.equal(body, template.receiveAndConvert(queue));
            }
            template.convertAndSend(queue, Map.of("a", 1));
            Scene.equal(Map.of("a", 1), template.receiveAndConvert(queue));
            template.setReceiveTimeout(JmsTemplate.RECEIVE_TIMEOUT_NO_WAIT);
            Scene.equal(null, template.receiveAndConvert(queue));
        } finally {
            factory.destroy();
        }
    }

    @Law
    void a_template_of_spring_in_a_loop_makes_no_dead_letters(Scene scene) throws Exception {
        JmsTemplate template = template(factory(scene));
        String queue = scene.name("q");
        for (String body : Scene.numbered(0, 60)) {
            template.convertAndSend(queue, body);
        }
        for (String body : Scene.numbered(0, 40)) {
            Scene.equal(body, template.receiveAndConvert(queue));
        }
        for (String body : Scene.numbered(40, 20)) {
            TextMessage message = (TextMessage) template.receive(queue);
            Scene.equal(body, message.getText());
            Scene.equal(1, message.getIntProperty("JMSXDeliveryCount"));
        }
    }

    @Law
    void a_template_of_spring_delays_and_expires(Scene scene) throws Exception {
        CachingConnectionFactory factory = new CachingConnectionFactory(factory(scene));
        try {
            JmsTemplate template = template(factory);
            template.setExplicitQosEnabled(true);
            template.setDeliveryDelay(300);
            template.convertAndSend(scene.name("q"), "late");
            Message found = template.receive(scene.name("q"));
            Scene.check(found.getJMSDeliveryTime() <= System.currentTimeMillis(), "came too early");
            template.setDeliveryDelay(0);
            template.setTimeToLive(1);
            template.convertAndSend(scene.name("q"), "expires");
            Thread.sleep(20); // the passing of time is what this law is about
            template.setReceiveTimeout(Scene.QUIET_MS);
            Scene.equal(null, template.receiveAndConvert(scene.name("q")));
        } finally {
            factory.destroy();
        }
    }

    private static DefaultMessageListenerContainer container(ConnectionFactory factory, String name) {
        DefaultMessageListenerContainer made = new DefaultMessageListenerContainer();
        made.setConnectionFactory(factory);
        made.setDestinationName(name);
        made.setReceiveTimeout(500);
        return made;
    }

    private static void started(DefaultMessageListenerContainer container) {
        container.afterPropertiesSet();
        container.start();
    }

    @Law
    void a_request_through_spring_is_answered_by_a_container(Scene scene) throws Exception {
        CachingConnectionFactory factory = new CachingConnectionFactory(factory(scene));
        JmsTemplate template = template(factory);
        DefaultMessageListenerContainer container = container(factory, scene.name("service"));
        container.setMessageListener((jakarta.jms.MessageListener) request -> {
            try {
                String body = ((TextMessage) request).getText();
                template.send(request.getJMSReplyTo(), session -> {
                    Message answer = session.createTextMessage(body.toUpperCase());
                    answer.setJMSCorrelationID(request.getJMSMessageID());
                    return answer;
                });
            } catch (jakarta.jms.JMSException error) {
                throw new IllegalStateException(error);
            }
        });
        started(container);
        try {
            for (int number = 0; number < 10; number++) {
                String body = "question " + number;
                Message answer =
                        template.sendAndReceive(scene.name("service"), session -> session.createTextMessage(body));
                Scene.check(answer != null, "expected an answer");
                Scene.equal(body.toUpperCase(), ((TextMessage) answer).getText());
            }
        } finally {
            container.destroy();
            factory.destroy();
        }
    }

    @Law
    void containers_of_spring_receive_everything_once_and_again_what_fails(Scene scene) throws Exception {
        ConnectionFactory factory = factory(scene);
        CachingConnectionFactory sending = new CachingConnectionFactory(factory);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        List<String> twice = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger failures = new AtomicInteger();
        CountDownLatch came = new CountDownLatch(200);
        DefaultMessageListenerContainer container = container(factory, scene.name("q"));
        container.setConcurrency("2-4");
        container.setSessionAcknowledgeMode(Session.CLIENT_ACKNOWLEDGE);
        container.setMessageListener((jakarta.jms.MessageListener) message -> {
            String body;
            try {
                body = ((TextMessage) message).getText();
                if (body.endsWith("7") && !message.getJMSRedelivered()) {
                    failures.incrementAndGet();
                    throw new IllegalStateException("the first time fails");
                }
            } catch (jakarta.jms.JMSException error) {
                throw new IllegalStateException(error);
            }
            if (!seen.add(body)) {
                twice.add(body);
            }
            came.countDown();
        });
        container.setErrorHandler(error -> {});
        started(container);
        try {
            JmsTemplate template = template(sending);
            for (int number = 0; number < 200; number++) {
                template.convertAndSend(scene.name("q"), "m" + number);
            }
            await(came);
            Scene.equal(200, seen.size());
            Scene.equal(List.of(), twice);
            Scene.check(failures.get() >= 20, "expected 20 failures at least, found " + failures);
        } finally {
            container.destroy();
            sending.destroy();
        }
    }

    @Law
    void containers_of_spring_subscribe_durably_and_share(Scene scene) throws Exception {
        String topic = scene.name("t");
        CachingConnectionFactory sending = new CachingConnectionFactory(factory(scene));
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        JmsTemplate template = template(sending);
        template.setPubSubDomain(true);
        for (int round = 0; round < 2; round++) {
            DefaultMessageListenerContainer container = container(factory(scene), topic);
            container.setPubSubDomain(true);
            container.setSubscriptionDurable(true);
            container.setSubscriptionShared(true);
            container.setSubscriptionName(scene.name("s"));
            container.setConcurrency("2");
            container.setMessageListener((jakarta.jms.MessageListener) message -> {
                try {
                    seen.add(((TextMessage) message).getText());
                } catch (jakarta.jms.JMSException error) {
                    throw new IllegalStateException(error);
                }
            });
            if (round == 0) {
                // The subscription is there before anything is sent.
                scene.session().createSharedDurableConsumer(scene.session().createTopic(topic), scene.name("s"))
                        .close();
            }
            started(container);
            template.convertAndSend(topic, "while it runs " + round);
            Set<String> found = new TreeSet<>();
            while (found.size() < 1 + round) {
                String next = seen.poll(Scene.SOON_MS, TimeUnit.MILLISECONDS);
                Scene.check(next != null, "expected " + (1 + round) + " messages, found " + found);
                found.add(next);
            }
            Set<String> expected = new TreeSet<>(Set.of("while it runs " + round));
            if (round == 1) {
                expected.add("while it is stopped 0");
            }
            Scene.equal(expected, found);
            container.destroy();
            template.convertAndSend(topic, "while it is stopped " + round);
        }
        sending.destroy();
    }

    // --- Camel -------------------------------------------------------------------------------------------

    /** Routes of Camel that run until it is closed. */
    record Camel(CamelContext context) implements AutoCloseable {
        static Camel of(JmsComponent component, RouteBuilder routes) throws Exception {
            CamelContext made = new DefaultCamelContext();
            made.addComponent("jms", component);
            made.addRoutes(routes);
            made.start();
            return new Camel(made);
        }

        @Override
        public void close() {
            context.stop();
        }
    }

    private static Camel camel(Scene scene, RouteBuilder routes) throws Exception {
        return Camel.of(JmsComponent.jmsComponentAutoAcknowledge(factory(scene)), routes);
    }

    @Law
    void a_route_of_camel_takes_messages_from_queue_to_queue(Scene scene) throws Exception {
        String from = "jms:queue:" + scene.name("in") + "?concurrentConsumers=3";
        String to = "jms:queue:" + scene.name("out");
        try (Camel camel = camel(scene, new RouteBuilder() {
            @Override
            public void configure() {
                from(from).setHeader("routed", constant(true)).to(to);
            }
        })) {
            ProducerTemplate template = camel.context().createProducerTemplate();
            for (int number = 0; number < 100; number++) {
                template.sendBodyAndHeader("jms:queue:" + scene.name("in"), "m" + number, "number", number);
            }
            Session session = scene.session();
            var consumer = session.createConsumer(session.createQueue(scene.name("out")));
            Set<Integer> seen = ConcurrentHashMap.newKeySet();
            for (int number = 0; number < 100; number++) {
                Message found = Scene.next(consumer);
                Scene.equal(true, found.getBooleanProperty("routed"));
                Scene.equal("m" + found.getIntProperty("number"), Scene.text(found));
                seen.add(found.getIntProperty("number"));
            }
            Scene.equal(100, seen.size());
        }
    }

    @Law
    void a_route_of_camel_answers_requests_over_temporary_and_named_queues(Scene scene) throws Exception {
        String service = "jms:queue:" + scene.name("service");
        try (Camel camel = camel(scene, new RouteBuilder() {
            @Override
            public void configure() {
                from(service).process(exchange -> {
                    String body = exchange.getMessage().getBody(String.class);
                    exchange.getMessage().setBody(body.toUpperCase());
                });
            }
        })) {
            ProducerTemplate template = camel.context().createProducerTemplate();
            String named = service + "?replyTo=" + scene.name("replies");
            String own = named + "&replyToType=Exclusive";
            for (String endpoint : List.of(service, named, own)) {
                for (int number = 0; number < 5; number++) {
                    Scene.equal("Q" + number, template.requestBody(endpoint, "q" + number, String.class));
                }
            }
        }
    }

    @Law
    void a_topic_of_camel_reaches_every_route(Scene scene) throws Exception {
        String topic = "jms:topic:" + scene.name("t");
        String durable =
                topic + "?subscriptionDurable=true&subscriptionShared=true&subscriptionName=" + scene.name("s");
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        Session setup = scene.session();
        setup.createSharedDurableConsumer(setup.createTopic(scene.name("t")), scene.name("s")).close();
        try (Camel camel = camel(scene, new RouteBuilder() {
            @Override
            public void configure() {
                from(durable).process(exchange -> seen.add("durable " + exchange.getMessage().getBody(String.class)));
            }
        })) {
            camel.context().createProducerTemplate().sendBody(topic, "hello");
            Scene.equal("durable hello", seen.poll(Scene.SOON_MS, TimeUnit.MILLISECONDS));
        }
        try (Camel camel = camel(scene, new RouteBuilder() {
            @Override
            public void configure() {
                from(durable).process(exchange -> seen.add("again " + exchange.getMessage().getBody(String.class)));
            }
        })) {
            camel.context().createProducerTemplate().sendBody(topic, "world");
            Scene.equal("again world", seen.poll(Scene.SOON_MS, TimeUnit.MILLISECONDS));
        }
    }
}

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.api.core.SimpleString;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.config.impl.SecurityConfiguration;
import org.apache.activemq.artemis.core.remoting.impl.netty.NettyAcceptor;
import org.apache.activemq.artemis.core.security.Role;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;
import org.apache.activemq.artemis.spi.core.security.ActiveMQJAASSecurityManager;
import org.apache.activemq.artemis.spi.core.security.jaas.InVMLoginModule;

/** ActiveMQ Artemis with one AMQP acceptor on loopback: `Artemis DATA PORT USER PASSWORD JOURNAL-FILE-BYTES`; prints its port when it is ready. */
public final class Artemis {
    public static void main(String[] arguments) throws Exception {
        var data = arguments[0];
        var configuration = new ConfigurationImpl();
        configuration.setPersistenceEnabled(true).setJournalType(JournalType.NIO).setMaxDiskUsage(-1);
        configuration.setJournalDirectory(data + "/journal").setBindingsDirectory(data + "/bindings");
        configuration.setPagingDirectory(data + "/paging").setLargeMessagesDirectory(data + "/large");
        configuration.setJournalMinFiles(2).setJournalFileSize(Integer.parseInt(arguments[4]));
        configuration.setJMXManagementEnabled(false).setPopulateValidatedUser(false);
        configuration.addAcceptorConfiguration("amqp", "tcp://127.0.0.1:" + arguments[1] + "?protocols=AMQP");
        configuration.putSecurityRoles("#", Set.of(
            new Role("all", true, true, true, true, true, true, true, true, true, true, true, true)));
        configuration.addAddressSetting("#", new AddressSettings()
            .setDefaultAddressRoutingType(RoutingType.ANYCAST).setDefaultQueueRoutingType(RoutingType.ANYCAST)
            .setAutoCreateDeadLetterResources(false).setDeadLetterAddress(SimpleString.of("DLQ"))
            .setMaxDeliveryAttempts(10).setRedeliveryDelay(0));
        // What is sent there goes to each receiver.
        configuration.addAddressSetting("topic.#", new AddressSettings()
            .setDefaultAddressRoutingType(RoutingType.MULTICAST).setDefaultQueueRoutingType(RoutingType.MULTICAST));
        var users = new SecurityConfiguration(
            Map.of(arguments[2], arguments[3]), Map.of(arguments[2], List.of("all")));
        var broker = new EmbeddedActiveMQ().setConfiguration(configuration)
            .setSecurityManager(new ActiveMQJAASSecurityManager(InVMLoginModule.class.getName(), users));
        broker.start();
        var acceptor = (NettyAcceptor) broker.getActiveMQServer().getRemotingService().getAcceptor("amqp");
        System.out.println(acceptor.getActualPort());
        System.out.flush();
        // Until whoever started it closes the pipe.
        while (System.in.read() >= 0) {}
        broker.stop();
        System.exit(0);
    }
}

import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import java.util.Map;
import org.apache.qpid.server.SystemLauncher;
import org.apache.qpid.server.SystemLauncherListener.DefaultSystemLauncherListener;
import org.slf4j.LoggerFactory;

/** Apache Qpid Broker-J with a JSON file as its configuration: `BrokerJ CONFIGURATION DATA PORT`; prints its port when it is ready. */
public final class BrokerJ {
    public static void main(String[] arguments) throws Exception {
        // Standard output is for the port alone; logback writes to System.out.
        var output = System.out;
        System.setOut(System.err);
        ((Logger) LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.WARN);
        // SystemLauncher.startup returns as if all was well when the broker could not start.
        var launcher = new SystemLauncher(new DefaultSystemLauncherListener() {
            @Override
            public void errorOnStartup(RuntimeException error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        });
        // The virtual host alone is stored, in DATA; the broker's own configuration is read anew at each start.
        launcher.startup(Map.of(
            "type", "Memory",
            "initialConfigurationLocation", arguments[0],
            "startupLoggedToSystemOut", false,
            "context", Map.of("qpid.work_dir", arguments[1], "qpid.amqp_port", arguments[2])));
        output.println(arguments[2]);
        output.flush();
        // Until whoever started it closes the pipe.
        while (System.in.read() >= 0) {}
        launcher.shutdown();
        System.exit(0);
    }
}

import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Runs laws in one process: {@code java Suite ADDRESS LAW...}, in the order of {@link #GROUPS}.
 *
 * <p>Stdout carries one line per law, {@code passed NAME SECONDS} or {@code failed NAME SECONDS TEXT} with its line
 * breaks as {@code \n}, and what a law asks of the broker's keeper (see {@link Scene#ask}).
 */
final class Suite {
    private static final List<Class<?>> GROUPS = List.of(
            Messages.class, Acknowledging.class, Consuming.class, Listening.class, Closing.class, Subscriptions.class,
            Temporary.class, Frameworks.class, ClientIdentifiers.class, Transactions.class,
            TransactionsOverShards.class, Failover.class);
    private static final long LAW_SECONDS_MAX = 40;

    private Suite() {}

    public static void main(String[] arguments) {
        Deque<String> wanted = new ArrayDeque<>(List.of(arguments));
        String address = wanted.removeFirst();
        ExecutorService threads = Executors.newCachedThreadPool(work -> {
            Thread thread = new Thread(work);
            thread.setDaemon(true);
            return thread;
        });
        for (Class<?> group : GROUPS) {
            for (Method law : group.getDeclaredMethods()) {
                if (law.isAnnotationPresent(Law.class) && wanted.remove(law.getName())) {
                    run(threads, address, group, law);
                }
            }
        }
        for (String unknown : wanted) {
            System.out.println("failed " + unknown + " 0 no class of Suite.GROUPS has this law");
        }
        System.exit(0);
    }

    private static void run(ExecutorService threads, String address, Class<?> group, Method law) {
        long began = System.nanoTime();
        String problem = null;
        try (Scene scene = new Scene(address, law.getName())) {
            Future<?> future = threads.submit(() -> {
                law.invoke(group.getDeclaredConstructor().newInstance(), scene);
                return null;
            });
            problem = outcome(future);
        } catch (Exception closing) {
            problem = "what the law had opened could not be closed: " + text(closing);
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        String verdict = problem == null ? "passed" : "failed";
        String details = problem == null ? "" : " " + problem.replace("\\", "\\\\").replace("\n", "\\n");
        System.out.printf("%s %s %.2f%s%n", verdict, law.getName(), seconds, details);
    }

    private static String outcome(Future<?> future) throws InterruptedException {
        try {
            future.get(LAW_SECONDS_MAX, TimeUnit.SECONDS);
            return null;
        } catch (TimeoutException timeout) {
            future.cancel(true);
            return "expected an end within " + LAW_SECONDS_MAX + " s";
        } catch (ExecutionException failed) {
            Throwable cause = failed.getCause();
            return text(cause instanceof InvocationTargetException ? cause.getCause() : cause);
        }
    }

    private static String text(Throwable error) {
        StringWriter text = new StringWriter();
        error.printStackTrace(new PrintWriter(text));
        return text.toString();
    }
}

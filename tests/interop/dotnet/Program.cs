// Starts one program of this folder: CLASS ARGUMENT... runs CLASS.Run(arguments).
using System.Reflection;

public static class Program
{
    public static async Task<int> Main(string[] arguments)
    {
        var name = arguments.FirstOrDefault() ?? "";
        var run = Assembly.GetExecutingAssembly().GetType(name)?.GetMethod("Run", [typeof(string[])]);
        if (run is null)
        {
            Console.Error.WriteLine($"expected a class with Run(string[]) as the first argument, found '{name}'");
            return 2;
        }
        await (Task)run.Invoke(null, [arguments[1..]]);
        return 0;
    }
}

public static class Report
{
    // A line {"scenario": NAME, "found": ANYTHING}, as the programs of other languages write them.
    public static void Found(string scenario, object found) =>
        Console.WriteLine(JsonSerializer.Serialize(new { scenario, found }));

    // How a call failed: the reason of Service Bus, the name of another exception, or "none".
    public static async Task<string> Failure(Func<Task> call)
    {
        try
        {
            await call();
            return "none";
        }
        catch (ServiceBusException error)
        {
            return error.Reason.ToString();
        }
        catch (Exception error)
        {
            return error.GetType().Name;
        }
    }

    // Options with which a call fails instead of being tried again for minutes.
    public static ServiceBusClientOptions Once() =>
        new() { RetryOptions = new ServiceBusRetryOptions { MaxRetries = 0, TryTimeout = TimeSpan.FromSeconds(20) } };
}

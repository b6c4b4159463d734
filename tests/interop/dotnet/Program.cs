// Starts programs of this folder: CLASS ARGUMENT... runs CLASS.Run(arguments); several run at once, with -- between them, and what each
// finds begins with the name of its class.
using System.Reflection;

public static class Program
{
    public static async Task<int> Main(string[] arguments)
    {
        var programs = new List<List<string>> { new() };
        foreach (var word in arguments)
            if (word == "--")
                programs.Add(new());
            else
                programs[^1].Add(word);
        var runs = programs.Select(words => Assembly.GetExecutingAssembly().GetType(words.FirstOrDefault() ?? "")?.GetMethod("Run", [typeof(string[])])).ToList();
        if (runs.IndexOf(null) is var missing and >= 0)
        {
            Console.Error.WriteLine($"expected a class with Run(string[]) before its arguments, found '{programs[missing].FirstOrDefault()}'");
            return 2;
        }
        if (programs.Count > 1)
            // As many calls begin at once as a pool of threads takes a while to grow to.
            ThreadPool.SetMinThreads(64, 64);
        await Task.WhenAll(programs.Zip(runs, async (words, run) =>
        {
            Report.Prefix.Value = programs.Count > 1 ? $"{words[0]}: " : "";
            await (Task)run.Invoke(null, [words.Skip(1).ToArray()]);
        }));
        return 0;
    }
}

public static class Report
{
    // A line {"scenario": NAME, "found": ANYTHING}, as the programs of other languages write them.
    public static void Found(string scenario, object found) =>
        Console.WriteLine(JsonSerializer.Serialize(new { scenario = Prefix.Value + scenario, found }));

    // Of the scenarios of the program that runs.
    public static readonly AsyncLocal<string> Prefix = new();

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

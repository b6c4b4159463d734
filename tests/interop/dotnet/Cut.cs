// Handlers that outlive their connection: CONNECTION_STRING QUEUE COUNT STARTED GO. The program makes the file STARTED when
// each of them has a message; they complete them when the file GO is there.
using System.Collections.Concurrent;

public static class Cut
{
    public static async Task Run(string[] arguments)
    {
        var (queue, count, started, go) = (arguments[1], int.Parse(arguments[2]), arguments[3], arguments[4]);
        var running = 0;
        var options = new ServiceBusClientOptions
        {
            RetryOptions = new ServiceBusRetryOptions { Mode = ServiceBusRetryMode.Fixed, Delay = TimeSpan.FromMilliseconds(200), MaxRetries = 100, TryTimeout = TimeSpan.FromSeconds(3) },
        };
        await using var client = new ServiceBusClient(arguments[0], options);
        var results = new ConcurrentBag<string>();
        var counts = new ConcurrentBag<int>();
        // One more than there are messages: a receive that waits notices the end of the connection at once.
        await using var processor = client.CreateProcessor(queue, new ServiceBusProcessorOptions { MaxConcurrentCalls = count + 1, AutoCompleteMessages = false });
        processor.ProcessErrorAsync += _ => Task.CompletedTask;
        processor.ProcessMessageAsync += async call =>
        {
            if (Interlocked.Increment(ref running) == count)
            {
                File.WriteAllText(started, "");
            }
            while (!File.Exists(go))
            {
                await Task.Delay(20);
            }
            counts.Add(call.Message.DeliveryCount);
            results.Add(await Report.Failure(() => call.CompleteMessageAsync(call.Message)));
        };
        await processor.StartProcessingAsync();
        while (results.Count < count)
        {
            await Task.Delay(20);
        }
        await processor.StopProcessingAsync();
        Report.Found("completed", results.Count(result => result == "none"));
        Report.Found("failed", results.Where(result => result != "none").Distinct());
        Report.Found("delivery counts", counts.Distinct().Order());
        Report.Found("handled", counts.Count);
    }
}

// Many processors of one client, and many sessions of one processor, all of whose handlers run at once and outlive their lock:
// CONNECTION_STRING PREFIX PROCESSORS SESSIONS, with queues PREFIX/0 to PREFIX/PROCESSORS-1 and a queue PREFIX/sessions with sessions.
using System.Collections.Concurrent;

public static class ManyProcessors
{
    public static async Task Run(string[] arguments)
    {
        await using var client = new ServiceBusClient(arguments[0], new ServiceBusClientOptions { RetryOptions = new ServiceBusRetryOptions { TryTimeout = TimeSpan.FromSeconds(60) } });
        await Task.WhenAll(Processors(client, arguments[1], int.Parse(arguments[2])), Sessions(client, $"{arguments[1]}/sessions", int.Parse(arguments[3])));
    }

    static async Task Processors(ServiceBusClient client, string prefix, int count)
    {
        await Task.WhenAll(Enumerable.Range(0, count).Select(number => client.CreateSender($"{prefix}/{number}").SendMessageAsync(new ServiceBusMessage($"{number}"))));
        var handlers = new Handlers(count);
        var processors = Enumerable.Range(0, count).Select(number => client.CreateProcessor($"{prefix}/{number}")).ToList();
        foreach (var processor in processors)
        {
            processor.ProcessErrorAsync += handlers.Failed;
            processor.ProcessMessageAsync += call => handlers.Handle(call.Message, () => call.Message.LockedUntil);
        }
        await Task.WhenAll(processors.Select(processor => processor.StartProcessingAsync()));
        await handlers.Done;
        await Task.WhenAll(processors.Select(processor => processor.StopProcessingAsync()));
        handlers.Report("processors");
    }

    static async Task Sessions(ServiceBusClient client, string queue, int count)
    {
        var sender = client.CreateSender(queue);
        foreach (var piece in Enumerable.Range(0, count).Chunk(100))
            await sender.SendMessagesAsync(piece.Select(number => new ServiceBusMessage($"{number}") { SessionId = $"{number}" }));
        var handlers = new Handlers(count);
        await using var processor = client.CreateSessionProcessor(queue, new ServiceBusSessionProcessorOptions { MaxConcurrentSessions = count, SessionIdleTimeout = TimeSpan.FromSeconds(60) });
        processor.ProcessErrorAsync += handlers.Failed;
        processor.ProcessMessageAsync += call => handlers.Handle(call.Message, () => call.SessionLockedUntil);
        await processor.StartProcessingAsync();
        await handlers.Done;
        await processor.StopProcessingAsync();
        handlers.Report("sessions");
    }

    // Each ends when all have a message, the lock that it began with has ended, and a renewal was just answered: one that is
    // under way while its message is completed would be refused.
    sealed class Handlers(int count)
    {
        readonly TaskCompletionSource _all = new(), _done = new();
        readonly ConcurrentDictionary<string, int> _calls = new();
        readonly ConcurrentBag<string> _errors = [];
        int _running, _highest, _ended;

        public Task Done => _done.Task;

        public async Task Handle(ServiceBusReceivedMessage message, Func<DateTimeOffset> lockedUntil)
        {
            _calls.AddOrUpdate(message.Body.ToString(), 1, (_, calls) => calls + 1);
            _highest = Math.Max(_highest, message.DeliveryCount);
            var first = lockedUntil();
            if (Interlocked.Increment(ref _running) == count)
                _all.SetResult();
            await _all.Task;
            while (DateTimeOffset.UtcNow < first)
                await Task.Delay(50);
            if (lockedUntil() <= first)
                _errors.Add("not renewed");
            for (var last = lockedUntil(); lockedUntil() == last && DateTimeOffset.UtcNow < last;)
                await Task.Delay(50);
            if (Interlocked.Increment(ref _ended) == count)
                _done.SetResult();
        }

        public Task Failed(ProcessErrorEventArgs failure)
        {
            _errors.Add($"{failure.ErrorSource} {failure.Exception.GetType().Name} {failure.Exception.Message}");
            return Task.CompletedTask;
        }

        public void Report(string kind) =>
            global::Report.Found(kind, new { calls = _calls.Values.Sum(), messages = _calls.Count, at_once = _running, delivery_count = _highest, errors = _errors.Distinct().Take(5) });
    }
}

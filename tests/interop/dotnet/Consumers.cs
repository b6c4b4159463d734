// Every kind of receiver at work while others break the broker: CONNECTION_STRING PREFIX COUNT FOLDER. Each kind has a queue
// PREFIX/KIND, into which the program sends COUNT messages with the ids 0 to COUNT-1; transactions answer to PREFIX/answers.
// The file FOLDER/KIND has a line for each event, in order, which begins with milliseconds: MS ID got DELIVERY_COUNT at the beginning of
// a call, MS ID done none, or how settling failed, at its end. The program ends when the file FOLDER/stop is there.
using System.Transactions;

public static class Consumers
{
    const int Calls = 4, Sessions = 8;
    static readonly string[] Kinds = ["processor", "prefetch", "loop", "deletes", "transactions", "sessions"];
    static string _prefix, _folder;

    static bool IsStopped => File.Exists(Path.Combine(_folder, "stop"));

    static ServiceBusClient Client(string connection, bool crossing = false) => new(connection, new ServiceBusClientOptions
    {
        EnableCrossEntityTransactions = crossing,
        RetryOptions = new ServiceBusRetryOptions { Mode = ServiceBusRetryMode.Fixed, Delay = TimeSpan.FromMilliseconds(200), MaxRetries = 100, TryTimeout = TimeSpan.FromSeconds(5) },
    });

    public static async Task Run(string[] arguments)
    {
        var count = int.Parse(arguments[2]);
        (_prefix, _folder) = (arguments[1], arguments[3]);
        await using var client = Client(arguments[0]);
        await using var crossing = Client(arguments[0], crossing: true);
        var journals = Kinds.ToDictionary(kind => kind, kind => new Journal(Path.Combine(_folder, kind)));
        var sending = Kinds.Select(kind => Send(client, kind, count)).ToList();

        ServiceBusProcessor Processor(string kind, int prefetch)
        {
            var processor = client.CreateProcessor($"{_prefix}/{kind}", new ServiceBusProcessorOptions { MaxConcurrentCalls = Calls, PrefetchCount = prefetch, AutoCompleteMessages = false });
            processor.ProcessErrorAsync += journals[kind].Failed;
            processor.ProcessMessageAsync += call => journals[kind].Handle(call.Message, () => call.CompleteMessageAsync(call.Message));
            return processor;
        }

        await using var processor = Processor("processor", 0);
        await using var prefetching = Processor("prefetch", 50);
        await processor.StartProcessingAsync();
        await prefetching.StartProcessingAsync();

        var loop = client.CreateReceiver($"{_prefix}/loop");
        var deletes = client.CreateReceiver($"{_prefix}/deletes", new ServiceBusReceiverOptions { ReceiveMode = ServiceBusReceiveMode.ReceiveAndDelete });
        var source = crossing.CreateReceiver($"{_prefix}/transactions");
        var answers = crossing.CreateSender($"{_prefix}/answers");
        await Task.WhenAll(
            Task.Run(async () =>
            {
                while (!IsStopped)
                    await ProcessSessions(client, journals["sessions"]);
            }),
            Loop(loop, journals["loop"], message => loop.CompleteMessageAsync(message)),
            Loop(deletes, journals["deletes"], _ => Task.CompletedTask),
            Loop(source, journals["transactions"], async message =>
            {
                using var scope = new TransactionScope(TransactionScopeAsyncFlowOption.Enabled);
                await source.CompleteMessageAsync(message);
                await answers.SendMessageAsync(new ServiceBusMessage(message.MessageId));
                scope.Complete();
            }));
        await Task.WhenAll(processor.StopProcessingAsync(), prefetching.StopProcessingAsync());
        await Task.WhenAll(sending);
        Report.Found("answers", await Drain(client));
        foreach (var (kind, journal) in journals)
            Report.Found(kind, journal.Errors);
    }

    // Until the end, or until the processor is stuck: up to version 7.21 one whose link ends while a handler runs goes on with the link
    // that has ended, and only another processor helps (Azure/azure-sdk-for-net 53321).
    static async Task ProcessSessions(ServiceBusClient client, Journal journal)
    {
        var isStuck = false;
        await using var processor = client.CreateSessionProcessor($"{_prefix}/sessions", new ServiceBusSessionProcessorOptions { MaxConcurrentSessions = Calls, AutoCompleteMessages = false, SessionIdleTimeout = TimeSpan.FromSeconds(1) });
        processor.ProcessErrorAsync += failure =>
        {
            isStuck |= failure.Exception is ObjectDisposedException;
            return journal.Failed(failure);
        };
        processor.ProcessMessageAsync += call => journal.Handle(call.Message, () => call.CompleteMessageAsync(call.Message));
        await processor.StartProcessingAsync();
        while (!IsStopped && !isStuck)
            await Task.Delay(100);
        await processor.CloseAsync();
    }

    static async Task<List<int>> Drain(ServiceBusClient client)
    {
        await using var receiver = client.CreateReceiver($"{_prefix}/answers");
        var answers = new List<int>();
        while (await receiver.ReceiveMessagesAsync(100, TimeSpan.FromSeconds(1)) is { Count: > 0 } found)
        {
            answers.AddRange(found.Select(message => int.Parse(message.Body.ToString())));
            await Task.WhenAll(found.Select(message => receiver.CompleteMessageAsync(message)));
        }
        return answers;
    }

    // In pieces, while messages are received. What was not answered is sent again: the queue drops duplicates.
    static async Task Send(ServiceBusClient client, string kind, int count)
    {
        var sender = client.CreateSender($"{_prefix}/{kind}");
        foreach (var piece in Enumerable.Range(0, count).Chunk(10))
        {
            var messages = piece.Select(id => new ServiceBusMessage($"{id}") { MessageId = $"{id}", SessionId = kind == "sessions" ? $"{id % Sessions}" : null }).ToList();
            while (await Report.Failure(() => sender.SendMessagesAsync(messages)) != "none" && !IsStopped)
                await Task.Delay(100);
            await Task.Delay(100);
        }
        File.WriteAllText(Path.Combine(_folder, $"sent-{kind}"), "");
    }

    static async Task Loop(ServiceBusReceiver receiver, Journal journal, Func<ServiceBusReceivedMessage, Task> settle)
    {
        while (!IsStopped)
        {
            try
            {
                // One after the other would let locks end in a batch that waits.
                var found = await receiver.ReceiveMessagesAsync(Calls, TimeSpan.FromSeconds(1));
                await Task.WhenAll(found.Select(message => journal.Handle(message, () => settle(message))));
            }
            catch (ServiceBusException error)
            {
                journal.Note(error.Reason.ToString());
            }
        }
    }

    sealed class Journal(string file)
    {
        readonly StreamWriter _events = new(file) { AutoFlush = true };
        readonly Dictionary<string, int> _errors = [];

        public IReadOnlyDictionary<string, int> Errors => _errors;

        void Add(string id, string what, object value)
        {
            lock (_events)
                _events.WriteLine($"{Environment.TickCount64} {id} {what} {value}");
        }

        public void Note(string error)
        {
            lock (_errors)
                _errors[error] = _errors.GetValueOrDefault(error) + 1;
        }

        public Task Failed(ProcessErrorEventArgs failure)
        {
            Note(failure.Exception is ServiceBusException error ? $"{failure.ErrorSource} {error.Reason}" : $"{failure.ErrorSource} {failure.Exception.GetType().Name}");
            return Task.CompletedTask;
        }

        public async Task Handle(ServiceBusReceivedMessage message, Func<Task> settle)
        {
            Add(message.MessageId, "got", message.DeliveryCount);
            await Task.Delay(Random.Shared.Next(50));
            Add(message.MessageId, "done", await Report.Failure(settle));
        }
    }
}

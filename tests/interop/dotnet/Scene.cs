// Where a program works that runs beside others: entities whose names begin with Name are its own.
public sealed record Scene(string ConnectionString, ServiceBusAdministrationClient Administration, string Name)
{
    public static readonly TimeSpan Patience = TimeSpan.FromSeconds(40);

    // A lock that a test can wait for, and that a busy machine has the time to renew.
    public static readonly TimeSpan ShortLock = TimeSpan.FromSeconds(8);

    public async Task<string> Queue(string name, Action<CreateQueueOptions> change = null)
    {
        var options = new CreateQueueOptions($"{Name}/{name}");
        change?.Invoke(options);
        await Administration.CreateQueueAsync(options);
        return options.Name;
    }

    public async Task<string> Topic(string name)
    {
        await Administration.CreateTopicAsync($"{Name}/{name}");
        return $"{Name}/{name}";
    }

    // A subscription that forwards, with one rule or with everything.
    public Task Forward(string topic, string name, string target, RuleFilter filter = null) =>
        Administration.CreateSubscriptionAsync(
            new CreateSubscriptionOptions(topic, name) { ForwardTo = target },
            new CreateRuleOptions("$Default", filter ?? new TrueRuleFilter()));

    public void Found(string what, object found) => Report.Found($"{Name[(Name.LastIndexOf('/') + 1)..]}: {what}", found);

    // So many messages of an entity, each completed.
    public static async Task<List<ServiceBusReceivedMessage>> Take(ServiceBusReceiver receiver, int count)
    {
        var found = new List<ServiceBusReceivedMessage>();
        while (found.Count < count)
        {
            var more = await receiver.ReceiveMessagesAsync(count - found.Count, Patience);
            if (more.Count == 0)
                break;
            foreach (var message in more)
                await receiver.CompleteMessageAsync(message);
            found.AddRange(more);
        }
        return found;
    }

    public static async Task<List<string>> Texts(ServiceBusReceiver receiver, int count) =>
        (await Take(receiver, count)).Select(message => message.Body.ToString()).Order(StringComparer.Ordinal).ToList();

    public static ServiceBusReceiverOptions DeadLetters() => new() { SubQueue = SubQueue.DeadLetter };

    // Ends when a condition holds; what it waits for is a state of this program.
    public static async Task Until(Func<bool> holds, string what)
    {
        var watch = Stopwatch.StartNew();
        while (!holds())
        {
            if (watch.Elapsed > Patience)
                throw new TimeoutException($"expected within {Patience}: {what}");
            await Task.Delay(20);
        }
    }

    // What is left: messages that are ready, locked, deferred or scheduled, and dead letters.
    public async Task<string> Left(string queue)
    {
        QueueRuntimeProperties counts = await Administration.GetQueueRuntimePropertiesAsync(queue);
        return $"{counts.ActiveMessageCount} {counts.ScheduledMessageCount} {counts.DeadLetterMessageCount}";
    }
}

// What the Service Bus extension of Azure Functions does: triggers of single messages, of batches and of sessions, the actions of
// a function, and what its scale monitor asks.
public static class FunctionsLinks
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString);
        await Task.WhenAll(
            Failing(scene, client), Actions(scene, client), Batches(scene, client), Sessions(scene, client), DeadLetters(scene, client));
    }

    private static async Task Process(ServiceBusProcessor processor, Func<ProcessMessageEventArgs, Task> function, Func<bool> done, string what)
    {
        processor.ProcessMessageAsync += function;
        processor.ProcessErrorAsync += _ => Task.CompletedTask;
        await processor.StartProcessingAsync();
        await Scene.Until(done, what);
        await processor.StopProcessingAsync();
        await processor.DisposeAsync();
    }

    private static ServiceBusProcessorOptions Options(bool complete) => new()
    {
        AutoCompleteMessages = complete, PrefetchCount = 0, MaxConcurrentCalls = 32, MaxAutoLockRenewalDuration = TimeSpan.FromMinutes(5),
    };

    private static async Task Failing(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("trigger", options => options.MaxDeliveryCount = 3);
        await using var sender = client.CreateSender(queue);
        await sender.SendMessagesAsync(Enumerable.Range(0, 50).Select(number => new ServiceBusMessage($"{number}")));
        await sender.SendMessageAsync(new ServiceBusMessage("bad"));
        var seen = new ConcurrentBag<string>();
        await Process(client.CreateProcessor(queue, Options(complete: true)), call =>
        {
            seen.Add(call.Message.Body.ToString());
            if (call.Message.Body.ToString() == "bad")
                throw new InvalidOperationException("the function failed");
            return Task.CompletedTask;
        }, () => seen.Count >= 53, "each message is seen, and one three times");
        scene.Found("seen", $"{seen.Distinct().Count()} {seen.Count}");
        // The dead letters have a trigger of their own.
        ServiceBusReceivedMessage dead = null;
        await Process(client.CreateProcessor($"{queue}/$DeadLetterQueue", Options(complete: true)), call =>
        {
            dead = call.Message;
            return Task.CompletedTask;
        }, () => dead is not null, "the dead letter is seen");
        scene.Found("dead", $"{dead.Body} {dead.DeadLetterReason}");
        scene.Found("trigger left", await scene.Left(queue));
    }

    private static async Task Actions(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("actions");
        await using var sender = client.CreateSender(queue);
        await sender.SendMessagesAsync(new[] { "complete", "abandon", "defer", "dead-letter", "renew" }.Select(text => new ServiceBusMessage(text)));
        var log = new ConcurrentBag<string>();
        long deferred = 0;
        await Process(client.CreateProcessor(queue, Options(complete: false)), async call =>
        {
            var (message, text) = (call.Message, call.Message.Body.ToString());
            if (text == "abandon" && !message.ApplicationProperties.ContainsKey("again"))
                await call.AbandonMessageAsync(message, new Dictionary<string, object> { ["again"] = 1 });
            else if (text == "defer")
            {
                deferred = message.SequenceNumber;
                await call.DeferMessageAsync(message);
            }
            else if (text == "dead-letter")
                await call.DeadLetterMessageAsync(message, "why", "because");
            else
            {
                if (text == "renew")
                    await call.RenewMessageLockAsync(message);
                await call.CompleteMessageAsync(message);
            }
            log.Add($"{text} {message.DeliveryCount}");
        }, () => log.Count >= 6, "each action is done");
        scene.Found("actions", log.Order(StringComparer.Ordinal));
        // A function receives more messages by itself, deferred ones too.
        await sender.SendMessagesAsync([new("one"), new("two"), new("three")]);
        List<string> received = null;
        var first = 0;
        await Process(client.CreateProcessor(queue, new ServiceBusProcessorOptions { AutoCompleteMessages = true, MaxConcurrentCalls = 1 }), async call =>
        {
            if (Interlocked.Exchange(ref first, 1) == 1)
                return;
            var actions = call.GetReceiveActions();
            var more = new List<ServiceBusReceivedMessage>(await actions.ReceiveDeferredMessagesAsync([deferred]));
            while (more.Count < 3 && await actions.ReceiveMessagesAsync(10, Scene.Patience) is { Count: > 0 } messages)
                more.AddRange(messages);
            foreach (var message in more)
                await call.CompleteMessageAsync(message);
            received = more.Append(call.Message).Select(message => message.Body.ToString()).Order(StringComparer.Ordinal).ToList();
        }, () => received is not null, "the function has received");
        scene.Found("received", received);
        scene.Found("actions left", await scene.Left(queue));
    }

    private static async Task Batches(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("batch");
        await using var sender = client.CreateSender(queue);
        await sender.SendMessagesAsync(Enumerable.Range(0, 500).Select(number => new ServiceBusMessage($"{number}")));
        await using var receiver = client.CreateReceiver(queue);
        // What the scale monitor asks for.
        var oldest = await receiver.PeekMessageAsync(0);
        QueueRuntimeProperties counts = await scene.Administration.GetQueueRuntimePropertiesAsync(queue);
        scene.Found("monitor", $"{oldest.Body} {oldest.State} {counts.ActiveMessageCount}");
        var texts = new HashSet<string>();
        while (texts.Count < 500 && await receiver.ReceiveMessagesAsync(1000, Scene.Patience) is { Count: > 0 } messages)
        {
            texts.UnionWith(messages.Select(message => message.Body.ToString()));
            await Task.WhenAll(messages.Select(message => receiver.CompleteMessageAsync(message)));
        }
        scene.Found("batch", texts.Count);
        scene.Found("batch left", await scene.Left(queue));
    }

    private static async Task Sessions(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("session", options => options.RequiresSession = true);
        await using var sender = client.CreateSender(queue);
        await sender.SendMessagesAsync(Enumerable.Range(0, 120).Select(number => new ServiceBusMessage($"{number}") { SessionId = $"s{number % 12}" }));
        var seen = new ConcurrentDictionary<string, ConcurrentQueue<int>>();
        await using var processor = client.CreateSessionProcessor(queue, new ServiceBusSessionProcessorOptions
        {
            AutoCompleteMessages = true, PrefetchCount = 0, MaxConcurrentSessions = 8, SessionIdleTimeout = TimeSpan.FromSeconds(2),
        });
        processor.ProcessErrorAsync += _ => Task.CompletedTask;
        processor.ProcessMessageAsync += async call =>
        {
            var numbers = seen.GetOrAdd(call.SessionId, _ => new ConcurrentQueue<int>());
            await call.SetSessionStateAsync(BinaryData.FromString($"{numbers.Count + 1}"));
            numbers.Enqueue(int.Parse(call.Message.Body.ToString()));
            if (numbers.Count == 10)
                call.ReleaseSession();
        };
        await processor.StartProcessingAsync();
        await Scene.Until(() => seen.Values.Sum(numbers => numbers.Count) >= 120, "each message of each session is seen");
        await processor.StopProcessingAsync();
        scene.Found("sessions", seen.Values.Count(numbers => numbers.Count == 10 && numbers.SequenceEqual(numbers.Order())));
        await using var session = await client.AcceptSessionAsync(queue, "s3");
        scene.Found("state", (await session.GetSessionStateAsync()).ToString());
        scene.Found("session left", await scene.Left(queue));
    }

    private static async Task DeadLetters(Scene scene, ServiceBusClient client)
    {
        var topic = await scene.Topic("topic");
        await scene.Administration.CreateSubscriptionAsync(topic, "sub");
        await using var sender = client.CreateSender(topic);
        await sender.SendMessageAsync(new ServiceBusMessage("dead"));
        var (letters, texts) = (0, new ConcurrentBag<string>());
        await Process(client.CreateProcessor(topic, "sub", Options(complete: false)), async call =>
        {
            await call.DeadLetterMessageAsync(call.Message);
            Interlocked.Increment(ref letters);
        }, () => letters == 1, "the message is a dead letter");
        await Process(client.CreateProcessor(topic, "sub/$DeadLetterQueue", Options(complete: true)), call =>
        {
            texts.Add(call.Message.Body.ToString());
            return Task.CompletedTask;
        }, () => !texts.IsEmpty, "the dead letter is seen");
        scene.Found("letters of a subscription", texts);
    }
}

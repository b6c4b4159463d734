// What Wolverine's transport does on links: batches of senders, listeners that receive up to 20 at a time or one call for each, queues of
// retries and answers, dead letters of the queue or in a queue of its own, sessions one after the other.
public static class WolverineLinks
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString);
        await Task.WhenAll(Buffered(scene, client), Inline(scene, client), Sessions(scene, client), Topics(scene, client));
    }

    private static async Task Buffered(Scene scene, ServiceBusClient client)
    {
        var (queue, dead) = (await scene.Queue("buffered"), await scene.Queue("wolverine-dead-letter-queue"));
        await using var sender = client.CreateSender(queue);
        // A batch that is full is sent, and the next one begun.
        const int Count = 300;
        var batches = 0;
        var waiting = new Queue<ServiceBusMessage>(Enumerable.Range(0, Count).Select(number => new ServiceBusMessage(new byte[10_000]) { MessageId = $"{number}" }));
        while (waiting.Count > 0)
        {
            using var batch = await sender.CreateMessageBatchAsync();
            while (waiting.TryPeek(out var next) && batch.TryAddMessage(next))
                waiting.Dequeue();
            await sender.SendMessagesAsync(batch);
            batches++;
        }
        scene.Found("batches", batches > 1);
        await using var receiver = client.CreateReceiver(queue);
        await using var failed = client.CreateSender(dead);
        var (ids, largest) = (new HashSet<string>(), 0);
        while (ids.Count < Count)
        {
            var messages = await receiver.ReceiveMessagesAsync(20, Scene.Patience);
            largest = Math.Max(largest, messages.Count);
            await Task.WhenAll(messages.Select(message => receiver.CompleteMessageAsync(message)));
            foreach (var message in messages.Where(message => message.MessageId == "7"))
                await failed.SendMessageAsync(new ServiceBusMessage(message) { ApplicationProperties = { ["exception-type"] = "Bad" } });
            ids.UnionWith(messages.Select(message => message.MessageId));
            if (messages.Count == 0)
                break;
        }
        scene.Found("buffered", $"{ids.Count} {largest <= 20}");
        scene.Found("buffered left", await scene.Left(queue));
        var letter = (await Scene.Take(client.CreateReceiver(dead), 1)).Single();
        scene.Found("own dead letters", $"{letter.MessageId} {letter.ApplicationProperties["exception-type"]}");
    }

    private static async Task Inline(Scene scene, ServiceBusClient client)
    {
        var (queue, retries) = (await scene.Queue("ping"), await scene.Queue("wolverine.retries"));
        var answers = await scene.Queue("wolverine.response");
        var handled = new ConcurrentQueue<string>();
        await using var retry = client.CreateSender(retries);
        await using var reply = client.CreateSender(answers);
        ServiceBusProcessor Listen(string name, Func<ProcessMessageEventArgs, Task> handle)
        {
            var processor = client.CreateProcessor(name, new ServiceBusProcessorOptions { AutoCompleteMessages = false, MaxConcurrentCalls = 1 });
            processor.ProcessErrorAsync += _ => Task.CompletedTask;
            processor.ProcessMessageAsync += async call =>
            {
                await handle(call);
                handled.Enqueue(call.Message.Body.ToString());
            };
            return processor;
        }
        await using var pings = Listen(queue, async call =>
        {
            var message = call.Message;
            switch (message.Body.ToString())
            {
                case "ping":
                    await reply.SendMessageAsync(new ServiceBusMessage("pong") { CorrelationId = message.MessageId });
                    await call.CompleteMessageAsync(message);
                    break;
                case "retried":
                    await retry.SendMessageAsync(new ServiceBusMessage("later") { ScheduledEnqueueTime = DateTimeOffset.UtcNow.AddSeconds(1) });
                    await call.CompleteMessageAsync(message);
                    break;
                case "requeued" when message.DeliveryCount == 1:
                    await call.AbandonMessageAsync(message);
                    break;
                case "bad":
                    await call.DeadLetterMessageAsync(message, "System.DivideByZeroException", "Attempted to divide by zero.");
                    break;
                default:
                    await call.CompleteMessageAsync(message);
                    break;
            }
        });
        await using var later = Listen(retries, call => call.CompleteMessageAsync(call.Message));
        await Task.WhenAll(pings.StartProcessingAsync(), later.StartProcessingAsync());
        await using var sender = client.CreateSender(queue);
        foreach (var text in new[] { "ping", "retried", "requeued", "bad" })
            await sender.SendMessageAsync(new ServiceBusMessage(text) { MessageId = text });
        await Scene.Until(() => handled.Count >= 6, "each message is handled");
        await Task.WhenAll(pings.StopProcessingAsync(), later.StopProcessingAsync());
        scene.Found("inline", handled.Order(StringComparer.Ordinal));
        var answer = (await Scene.Take(client.CreateReceiver(answers), 1)).Single();
        scene.Found("answer", $"{answer.Body} {answer.CorrelationId}");
        var dead = (await Scene.Take(client.CreateReceiver(queue, Scene.DeadLetters()), 1)).Single();
        scene.Found("dead", $"{dead.Body} {dead.DeadLetterReason} {dead.DeadLetterErrorDescription}");
        scene.Found("inline left", await scene.Left(queue));
    }

    private static async Task Sessions(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("sess", options => options.RequiresSession = true);
        await using var sender = client.CreateSender(queue);
        for (var number = 0; number < 5; number++)
            await sender.SendMessagesAsync(new[] { "red", "green", "blue" }.Select(
                session => new ServiceBusMessage($"{number}") { SessionId = session }));
        scene.Found("without a session", await Report.Failure(() => sender.SendMessageAsync(new ServiceBusMessage("none"))));
        var found = new List<string>();
        for (var count = 0; count < 3; count++)
        {
            await using var session = await client.AcceptNextSessionAsync(queue);
            found.Add($"{session.SessionId} {string.Join("", await Scene.Texts(session, 5))}");
        }
        scene.Found("sessions", found.Order(StringComparer.Ordinal));
        await using var impatient = new ServiceBusClient(scene.ConnectionString, new ServiceBusClientOptions
        {
            RetryOptions = new ServiceBusRetryOptions { MaxRetries = 0, TryTimeout = TimeSpan.FromSeconds(1) },
        });
        scene.Found("no session", await Report.Failure(() => impatient.AcceptNextSessionAsync(queue)));
    }

    private static async Task Topics(Scene scene, ServiceBusClient client)
    {
        var topic = await scene.Topic("topic");
        await scene.Administration.CreateSubscriptionAsync(topic, "all");
        await scene.Administration.CreateSubscriptionAsync(
            new CreateSubscriptionOptions(topic, "red"), new CreateRuleOptions("red", new SqlRuleFilter("color = 'red'")));
        await using var sender = client.CreateSender(topic);
        foreach (var color in new[] { "red", "blue" })
            await sender.SendMessageAsync(new ServiceBusMessage(color) { ApplicationProperties = { ["Color"] = color } });
        scene.Found("all", await Scene.Texts(client.CreateReceiver(topic, "all"), 2));
        scene.Found("red", await Scene.Texts(client.CreateReceiver(topic, "red"), 1));
        SubscriptionRuntimeProperties counts = await scene.Administration.GetSubscriptionRuntimePropertiesAsync(topic, "red");
        scene.Found("red left", counts.TotalMessageCount);
    }
}

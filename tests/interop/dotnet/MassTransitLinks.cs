// What MassTransit's transport does on links: topics that forward to topics and queues, processors with and without sessions,
// schedules that are cancelled by their number, copies of failed and unknown messages in queues beside the endpoint's.
public static class MassTransitLinks
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString);
        var order = await scene.Queue("order", options =>
        {
            (options.LockDuration, options.MaxDeliveryCount) = (TimeSpan.FromMinutes(5), 5);
            (options.DeadLetteringOnMessageExpiration, options.DefaultMessageTimeToLive) = (true, TimeSpan.FromDays(366));
        });
        await Task.WhenAll(Endpoint(scene, client, order), Sessions(scene, client));
    }

    private static async Task Endpoint(Scene scene, ServiceBusClient client, string order)
    {
        var (error, skipped, own) = (await scene.Queue("order_error"), await scene.Queue("order_skipped"), await scene.Queue("vm_bus"));
        var (derived, contract) = (await scene.Topic("Shop/Derived"), await scene.Topic("Shop/IBase"));
        await scene.Administration.CreateSubscriptionAsync(
            new CreateSubscriptionOptions(derived, "IBase-Shop") { ForwardTo = contract });
        await scene.Forward(contract, "order", order);
        var handled = new ConcurrentBag<string>();
        var failures = new ConcurrentBag<string>();
        await using var processor = client.CreateProcessor(order, new ServiceBusProcessorOptions
        {
            PrefetchCount = 32, MaxConcurrentCalls = 8, AutoCompleteMessages = false, MaxAutoLockRenewalDuration = TimeSpan.FromMinutes(5),
        });

        async Task Move(ProcessMessageEventArgs call, string queue, string reason)
        {
            var copy = new ServiceBusMessage(call.Message);
            copy.ApplicationProperties["MT-Reason"] = reason;
            await using var sender = client.CreateSender(queue);
            await sender.SendMessageAsync(copy);
            await call.CompleteMessageAsync(call.Message);
        }

        processor.ProcessMessageAsync += async call =>
        {
            var (message, text) = (call.Message, call.Message.Body.ToString());
            if (text == "bad")
                await Move(call, error, "fault");
            else if (text == "unknown")
                await Move(call, skipped, "dead-letter");
            else if (text == "native")
                await call.DeadLetterMessageAsync(message, new Dictionary<string, object> { ["MT-Fault-Message"] = "no" }, "fault", "no");
            else if (text == "again" && !message.ApplicationProperties.ContainsKey("MT-Redelivery-Count"))
            {
                // Delayed redelivery: a copy with a later time, and the end of this one.
                var copy = new ServiceBusMessage(message) { ScheduledEnqueueTime = DateTimeOffset.UtcNow.AddSeconds(1) };
                copy.ApplicationProperties["MT-Redelivery-Count"] = 1;
                await using var sender = client.CreateSender(order);
                await sender.SendMessageAsync(copy);
                await call.CompleteMessageAsync(message);
            }
            else
            {
                if (text == "request" && (await scene.Administration.QueueExistsAsync(message.ReplyTo)).Value)
                {
                    await using var sender = client.CreateSender(message.ReplyTo);
                    await sender.SendMessageAsync(new ServiceBusMessage("answer") { CorrelationId = message.MessageId });
                }
                await call.CompleteMessageAsync(message);
            }
            handled.Add(text);
        };
        processor.ProcessErrorAsync += call =>
        {
            failures.Add($"{call.ErrorSource} {call.Exception.Message}");
            return Task.CompletedTask;
        };
        await processor.StartProcessingAsync();

        // Events in batches through both topics, and messages for the endpoint itself.
        const int Events = 100;
        await using var publisher = client.CreateSender(derived);
        await publisher.SendMessagesAsync(Enumerable.Range(0, Events).Select(number => new ServiceBusMessage($"event {number}")));
        await using var direct = client.CreateSender(order);
        foreach (var text in new[] { "bad", "unknown", "native", "again" })
            await direct.SendMessageAsync(new ServiceBusMessage(text) { TimeToLive = TimeSpan.FromHours(1), MessageId = text });
        await direct.SendMessageAsync(new ServiceBusMessage("request") { ReplyTo = own, MessageId = "7" });

        // A message that is scheduled has a number by which it is cancelled, once.
        var soon = DateTimeOffset.UtcNow.AddSeconds(1);
        await direct.ScheduleMessageAsync(new ServiceBusMessage("scheduled"), soon);
        var number = await direct.ScheduleMessageAsync(new ServiceBusMessage("cancelled"), DateTimeOffset.UtcNow.AddHours(1));
        scene.Found("cancel", await Report.Failure(() => direct.CancelScheduledMessageAsync(number)));
        scene.Found("cancel again", await Report.Failure(() => direct.CancelScheduledMessageAsync(number)));

        // "again" is handled twice.
        await Scene.Until(() => handled.Count >= Events + 7, "each message is handled");
        await processor.StopProcessingAsync();
        scene.Found("events", handled.Where(text => text.StartsWith("event")).Distinct().Count());
        scene.Found("others", handled.Where(text => !text.StartsWith("event")).Order(StringComparer.Ordinal));
        scene.Found("errors", failures);
        var answer = (await Scene.Take(client.CreateReceiver(own), 1)).Single();
        scene.Found("answer", $"{answer.Body} {answer.CorrelationId}");
        foreach (var (name, queue) in new[] { ("error", error), ("skipped", skipped) })
        {
            var moved = (await Scene.Take(client.CreateReceiver(queue), 1)).Single();
            scene.Found(name, $"{moved.Body} {moved.ApplicationProperties["MT-Reason"]} {moved.MessageId} {moved.TimeToLive}");
        }
        var dead = (await Scene.Take(client.CreateReceiver(order, Scene.DeadLetters()), 1)).Single();
        scene.Found("dead", $"{dead.Body} {dead.DeadLetterReason} {dead.ApplicationProperties["MT-Fault-Message"]}");
        scene.Found("left", await scene.Left(order));
    }

    private static async Task Sessions(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("sess", options => options.RequiresSession = true);
        var topic = await scene.Topic("Shop/Sess");
        await scene.Forward(topic, "sess", queue);
        var seen = new ConcurrentDictionary<string, ConcurrentQueue<int>>();
        await using var processor = client.CreateSessionProcessor(queue, new ServiceBusSessionProcessorOptions
        {
            MaxConcurrentSessions = 4, MaxConcurrentCallsPerSession = 1, SessionIdleTimeout = TimeSpan.FromSeconds(1),
            AutoCompleteMessages = false, PrefetchCount = 8,
        });
        processor.ProcessMessageAsync += async call =>
        {
            // A saga's state, which each message changes.
            var state = await call.GetSessionStateAsync();
            var numbers = seen.GetOrAdd(call.SessionId, _ => new ConcurrentQueue<int>());
            await call.SetSessionStateAsync(BinaryData.FromString($"{state}{call.Message.Body}"));
            await call.CompleteMessageAsync(call.Message);
            numbers.Enqueue(int.Parse(call.Message.Body.ToString()));
        };
        processor.ProcessErrorAsync += _ => Task.CompletedTask;
        await processor.StartProcessingAsync();
        await using var sender = client.CreateSender(topic);
        for (var number = 0; number < 6; number++)
            await sender.SendMessagesAsync(Enumerable.Range(0, 10).Select(
                session => new ServiceBusMessage($"{number}") { SessionId = $"s{session}" }));
        await Scene.Until(() => seen.Values.Sum(numbers => numbers.Count) >= 60, "each message of each session is handled");
        await processor.StopProcessingAsync();
        scene.Found("sessions", seen.Values.Count(numbers => numbers.SequenceEqual(Enumerable.Range(0, 6))));
        await using var session = await client.AcceptSessionAsync(queue, "s3");
        scene.Found("state", (await session.GetSessionStateAsync()).ToString());
    }
}

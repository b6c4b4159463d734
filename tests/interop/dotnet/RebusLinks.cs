// What Rebus' transport does on links: it receives one by one and renews locks by itself, defers by a time, publishes to topics whose
// subscriptions forward to queues, and sends what fails to an error queue.
public static class RebusLinks
{
    public static async Task Run(Scene scene)
    {
        await using var client = new ServiceBusClient(scene.ConnectionString);
        await Task.WhenAll(Renewal(scene, client), Deferral(scene, client), Topics(scene, client), Failures(scene, client));
    }

    private static async Task Renewal(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("input", options => (options.LockDuration, options.MaxDeliveryCount) = (Scene.ShortLock, 100));
        await using var sender = client.CreateSender(queue);
        await sender.SendMessageAsync(new ServiceBusMessage("long"));
        await using var receiver = client.CreateReceiver(queue);
        await using var other = client.CreateReceiver(queue);
        var message = await receiver.ReceiveMessageAsync(Scene.Patience);
        var renewals = 0;
        for (var watch = Stopwatch.StartNew(); watch.Elapsed < Scene.ShortLock * 1.4; renewals++)
        {
            var before = message.LockedUntil;
            await other.ReceiveMessageAsync(Scene.ShortLock / 4);
            await receiver.RenewMessageLockAsync(message);
            if (message.LockedUntil <= before)
                break;
        }
        scene.Found("renewed", renewals > 1);
        scene.Found("completed", await Report.Failure(() => receiver.CompleteMessageAsync(message)));
        scene.Found("input left", await scene.Left(queue));
    }

    private static async Task Deferral(Scene scene, ServiceBusClient client)
    {
        var queue = await scene.Queue("deferring");
        var expiring = await scene.Queue("expiring", options => options.DeadLetteringOnMessageExpiration = true);
        await using var sender = client.CreateSender(queue);
        var due = DateTimeOffset.UtcNow.AddSeconds(2);
        await sender.SendMessageAsync(new ServiceBusMessage("deferred")
        {
            ScheduledEnqueueTime = due, ApplicationProperties = { ["rbs2-deferred-until"] = due.ToString("O") },
        });
        await sender.SendMessageAsync(new ServiceBusMessage("now"));
        await using var brief = client.CreateSender(expiring);
        await brief.SendMessageAsync(new ServiceBusMessage("short") { TimeToLive = TimeSpan.FromMilliseconds(100) });
        await using var receiver = client.CreateReceiver(queue);
        var texts = new List<string>();
        while (texts.Count < 2)
        {
            var message = (await Scene.Take(receiver, 1)).Single();
            var isDue = message.ScheduledEnqueueTime < DateTimeOffset.UtcNow.AddMilliseconds(10);
            texts.Add($"{message.Body} {isDue} {message.DeliveryCount}");
        }
        scene.Found("deferred", texts.Order());
        var dead = (await Scene.Take(client.CreateReceiver(expiring, Scene.DeadLetters()), 1)).Single();
        scene.Found("expired", $"{dead.Body} {dead.DeadLetterReason}");
    }

    private static async Task Topics(Scene scene, ServiceBusClient client)
    {
        var topic = await scene.Topic("System.Private.CoreLib/System.String");
        var queues = new List<string>();
        foreach (var number in new[] { 1, 2, 3 })
        {
            queues.Add(await scene.Queue($"pubsub{number}"));
            await scene.Forward(topic, $"pubsub{number}", queues[^1]);
        }
        // A unit of work sends to several entities when it ends, a batch to each.
        await using var publisher = client.CreateSender(topic);
        await using var direct = client.CreateSender(queues[0]);
        async Task Publish(string text)
        {
            using var batch = await publisher.CreateMessageBatchAsync();
            batch.TryAddMessage(new ServiceBusMessage(text));
            await Task.WhenAll(publisher.SendMessagesAsync(batch), direct.SendMessageAsync(new ServiceBusMessage($"{text} to one")));
        }
        await Publish("hello");
        await scene.Administration.DeleteSubscriptionAsync(topic, "pubsub2");
        await Publish("once more");
        var found = new List<List<string>>();
        foreach (var (queue, count) in queues.Zip([4, 1, 2]))
            found.Add(await Scene.Texts(client.CreateReceiver(queue), count));
        scene.Found("published", found);
        await scene.Administration.DeleteTopicAsync(topic);
        scene.Found("nobody's", await Report.Failure(() => publisher.SendMessageAsync(new ServiceBusMessage("lost"))));
    }

    private static async Task Failures(Scene scene, ServiceBusClient client)
    {
        var (queue, error) = (await scene.Queue("failing", options => options.MaxDeliveryCount = 100), await scene.Queue("error"));
        await using var sender = client.CreateSender(queue);
        await sender.SendMessagesAsync([new("to the error queue"), new("natively")]);
        await using var receiver = client.CreateReceiver(queue);
        var counts = new List<int>();
        while (await receiver.ReceiveMessageAsync(Scene.Patience) is { } message)
        {
            counts.Add(message.DeliveryCount);
            if (message.DeliveryCount < 4)
                await receiver.AbandonMessageAsync(message);
            else if (message.Body.ToString() == "natively")
                await receiver.DeadLetterMessageAsync(message, new Dictionary<string, object> { ["rbs2-error-details"] = "4 failed" }, "4 deliveries", "4 failed");
            else
            {
                await using var forward = client.CreateSender(error);
                await forward.SendMessageAsync(new ServiceBusMessage(message) { ApplicationProperties = { ["rbs2-source-queue"] = queue } });
                await receiver.CompleteMessageAsync(message);
            }
            if (counts.Count == 8)
                break;
        }
        scene.Found("deliveries", counts.Order());
        scene.Found("error", (await Scene.Take(client.CreateReceiver(error), 1)).Single().ApplicationProperties["rbs2-source-queue"].Equals(queue));
        var dead = (await Scene.Take(client.CreateReceiver(queue, Scene.DeadLetters()), 1)).Single();
        scene.Found("dead", $"{dead.Body}: {dead.DeadLetterReason}, {dead.ApplicationProperties["rbs2-error-details"]}");
        scene.Found("failing left", await scene.Left(queue));
    }
}
